"""Leaver and joiner, each with a real model, over real sockets: what is followed, what is not."""

from __future__ import annotations

import copy
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import pytest
import torch
from tests.support.fabric import socket_pair
from torch import nn

from trainmover.errors import ProtocolError
from trainmover_executor.links.link import Link, LinkBrokenError
from trainmover_executor.position.ended import EndedCalls
from trainmover_executor.position.moment import Moment
from trainmover_executor.position.placement import Placement
from trainmover_executor.position.position import Place, Position
from trainmover_executor.state.handing_over.arrival import say_arrived
from trainmover_executor.state.handing_over.follow import StateFollower
from trainmover_executor.state.handing_over.lead import StateLead
from trainmover_executor.state.handing_over.transfer import receive_tree
from trainmover_executor.state.training import TrainingState

EPOCH = 4
WAIT_S = 20.0
PLACE = Place(open=[[1, 3]], ended=[EndedCalls(), EndedCalls()], committed=3, between=0)
NOWHERE = Position(feeds=[], rng={}, buffers=[], variables={})
MOMENT = Moment(
    position=NOWHERE,
    place=PLACE,
    placement=Placement(),
    votes_at_end=False,
    accumulates=False,
    voted=NOWHERE,
)


class Program:
    """A small training program whose optimizer may be told to fail."""

    def __init__(self, *, seed: int) -> None:
        torch.manual_seed(seed)
        self.model = nn.Sequential(nn.Linear(5, 7), nn.Linear(7, 3))
        self.optimizer = torch.optim.Adam(self.model.parameters())
        self.state = TrainingState(models=[self.model], optimizers=[self.optimizer], others={})
        self.backward(seed)
        self.optimizer.step()

    def backward(self, seed: int) -> None:
        generator = torch.Generator().manual_seed(seed)
        self.model.zero_grad()
        self.model(torch.randn(2, 5, generator=generator)).sum().backward()


class Pair:
    """Leaver and joiner, and what they said."""

    def __init__(self, program: type[Program] = Program) -> None:
        one, other = socket_pair()
        self.leaver, self.joiner = program(seed=1), program(seed=2)
        self.current, self.lost = threading.Event(), threading.Event()
        self.reason = ""
        self.lead = StateLead(
            Link(one, peer=0, group="s"),
            self.leaver.state,
            moment=MOMENT,
            epoch=EPOCH,
            wanted=lambda: True,
            current=self.current.set,
            lost=self._lose,
        )
        self.link = Link(other, peer=0, group="s")
        self.follower = StateFollower(self.link, self.joiner.state, epoch=EPOCH, patience_s=WAIT_S)
        self._pool = ThreadPoolExecutor(2)

    def _lose(self, reason: str) -> None:
        self.reason = reason
        self.lost.set()

    def follow(self) -> Future[Any]:
        return self._pool.submit(self._arrive_and_follow)

    def _arrive_and_follow(self) -> Any:
        told, _ = receive_tree(self.link, epoch=EPOCH, live={}, first_timeout_s=WAIT_S)
        assert Place.from_tree(told["place"]) == PLACE
        say_arrived(self.link, epoch=EPOCH)
        return self.follower.follow(meanwhile=lambda: None)

    def step(self, number: int) -> None:
        self.leaver.backward(number)
        self.lead.before_optimizer(0)
        self.leaver.optimizer.step()
        self.lead.after_optimizer()

    def steps_until(self, reached: Callable[[], bool]) -> None:
        for number in range(100_000):
            if reached():
                return
            self.step(number)
        raise AssertionError("it did not happen")

    def within(self, action: Callable[[], Any]) -> Any:
        """What ``action`` returns; it must not take for ever."""
        return self._pool.submit(action).result(timeout=WAIT_S)

    def close(self) -> None:
        self.link.shutdown()
        self.within(self.lead.cancel)
        self._pool.shutdown()
        self.link.close()


@pytest.fixture
def pair() -> Iterator[Pair]:
    pair = Pair()
    yield pair
    pair.close()


def test_the_joiner_is_current_at_the_switch(pair):
    following = pair.follow()
    pair.lead.start()
    pair.steps_until(pair.current.is_set)
    pair.lead.finish({"committed": 7}, large={})
    message, _ = following.result(timeout=WAIT_S)
    assert message["committed"] == 7
    assert not pair.follower.copied
    assert pair.joiner.state.digest() == pair.leaver.state.digest()


@pytest.mark.parametrize("steps_behind", [0, 1])
def test_what_is_written_behind_a_late_step_is_copied(pair, steps_behind):
    """Weights that are averaged or blended every few steps: all may be compared by then."""
    following = pair.follow()
    pair.lead.start()
    pair.steps_until(pair.current.is_set)
    pair.step(1)
    pair.leaver.model[1].weight.data.mul_(0.9)
    for number in range(steps_behind):
        pair.step(number)
    pair.lead.finish({"committed": 7}, large={})
    following.result(timeout=WAIT_S)
    assert "1.weight is written to outside of its optimizer's step" in pair.lead.obstacle
    assert pair.follower.copied
    assert pair.joiner.state.digest() == pair.leaver.state.digest()


class Averaging(Program):
    """It keeps an average of its weights, which no optimizer trains."""

    def __init__(self, *, seed: int) -> None:
        super().__init__(seed=seed)
        self.average = copy.deepcopy(self.model).requires_grad_(False)
        self.state = TrainingState(
            models=[self.model, self.average], optimizers=[self.optimizer], others={}
        )


@pytest.mark.parametrize("seen", ["compared", "late"])
def test_what_no_optimizer_trains_comes_with_the_switch(seen):
    """As an average that is written to through ``.data`` every few steps."""
    pair = Pair(Averaging)
    following = pair.follow()
    pair.lead.start()

    def reached() -> bool:
        if seen == "compared":
            _average(pair.leaver)
        return pair.current.is_set()

    pair.steps_until(reached)
    pair.step(1)
    _average(pair.leaver)
    pair.lead.finish({"committed": 7}, large={})
    following.result(timeout=WAIT_S)
    assert not pair.lead.obstacle
    assert not pair.follower.copied
    assert pair.joiner.state.digest() == pair.leaver.state.digest()
    pair.close()


def _average(program: Any) -> None:
    for mean, live in zip(program.average.parameters(), program.model.parameters(), strict=True):
        mean.data.lerp_(live.data, 0.1)


def test_nobody_waits_for_an_optimizer_that_takes_no_step(pair):
    """A program may write to its parameters by itself."""
    following = pair.follow()
    pair.lead.start()
    while not pair.current.wait(0.01):
        pair.lead.step_begins()
        with torch.no_grad():
            pair.leaver.model[0].weight.add_(0.1)
    assert "no optimizer took a step in" in pair.lead.obstacle
    pair.lead.finish({"committed": 7}, large={})
    following.result(timeout=WAIT_S)
    assert pair.joiner.state.digest() == pair.leaver.state.digest()


def _scale_moments(pair: Pair, factor: float) -> None:
    """A change that no parameter shows before the next step."""
    optimizer = pair.leaver.optimizer
    *_, last = pair.leaver.model.parameters()  # of the first one a change shows at once
    optimizer.state[last]["exp_avg"].mul_(factor)


def test_a_change_behind_the_optimizer_is_found(pair):
    lead = pair.lead

    def handed() -> bool:
        return len(lead._sent) == len(lead._units.names)

    pair.follow()
    lead.start()
    for number in range(20):
        follows = handed()
        pair.step(number)
        if follows and pair.current.wait(0.5):  # it may compare before the change is made
            break
        _scale_moments(pair, 0.9)
        with lead._changed:
            lead._changed.wait_for(handed, timeout=0.5)
    assert "differs after a followed step" in lead.obstacle


class TestAnOptimizerThatRaises:
    def fail(self, pair: Pair) -> None:
        """As where the program's own hook, or a step on bad values, raises."""
        pair.steps_until(lambda: pair.lead._met)
        pair.leaver.backward(0)
        pair.lead.before_optimizer(0)
        with pytest.raises(RuntimeError):
            raise RuntimeError("the optimizer's")

    def test_the_move_can_be_ended_behind_it(self, pair):
        following = pair.follow()
        pair.lead.start()
        self.fail(pair)
        pair.within(pair.lead.cancel)
        with pytest.raises(LinkBrokenError):
            following.result(timeout=WAIT_S)

    def test_a_program_that_goes_on_is_copied(self, pair):
        following = pair.follow()
        pair.lead.start()
        self.fail(pair)
        pair.within(lambda: pair.steps_until(pair.current.is_set))
        assert "raised an error" in pair.lead.obstacle
        pair.within(lambda: pair.lead.finish({}, large={}))
        following.result(timeout=WAIT_S)
        assert pair.follower.copied
        assert pair.joiner.state.digest() == pair.leaver.state.digest()


class TestAnErrorNobodyThoughtOf:
    def test_in_the_thread_it_ends_the_move_with_its_reason(self, pair, monkeypatch):
        def broken(name):
            raise KeyError(f"no {name}")

        monkeypatch.setattr(pair.lead._units, "tree", broken)
        pair.follow()
        pair.lead.start()
        assert pair.lost.wait(WAIT_S)
        assert pair.reason == "KeyError while following the state: 'no 0:0.weight'"

    def test_in_front_of_a_step_it_is_no_error_of_training(self, pair, monkeypatch):
        pair.leaver.optimizer.param_groups[0]["schedule"] = object()  # no way to hand it over
        pair.follow()
        pair.lead.start()
        pair.within(lambda: pair.steps_until(pair.lost.is_set))
        assert "StateNotPortableError while following" in pair.reason
        assert "schedule" in pair.reason


class TestOnTheWay:
    def test_a_step_that_the_joiner_arrives_in_is_over_before_units_are_handed(self, pair):
        following = pair.follow()
        pair.leaver.backward(0)
        pair.lead.before_optimizer(0)
        met = pair._pool.submit(pair.lead.meet, MOMENT)
        with pytest.raises(TimeoutError):
            met.result(timeout=0.2)
        pair.leaver.optimizer.step()
        pair.lead.after_optimizer()
        met.result(timeout=WAIT_S)
        pair.lead.obstacle = "this test"
        pair.lead.finish({}, large={})
        following.result(timeout=WAIT_S)
        assert pair.joiner.state.digest() == pair.leaver.state.digest()

    def test_a_pause_before_the_joiner_arrived_waits_for_it_and_hands_nothing_over(self, pair):
        pair.lead.start()
        assert pair.lead.pause() is None
        assert not pair.lead.is_met
        following = pair.follow()
        pair.lead._thread.join(WAIT_S)
        assert pair.lead.is_met
        assert pair.lead.pause() is not None
        assert not pair.current.is_set()
        assert pair.follower.steps == 0
        pair.lead.cancel()
        with pytest.raises(LinkBrokenError):
            following.result(timeout=WAIT_S)

    def test_a_deferred_lead_hands_everything_over_at_the_switch(self, pair):
        pair.lead.defer("this test")
        pair.lead.start()
        assert pair.current.wait(WAIT_S)
        assert not pair.lead.is_met
        following = pair.follow()
        pair.lead.meet(MOMENT)
        pair.lead.finish({}, large={})
        following.result(timeout=WAIT_S)
        assert pair.follower.copied
        assert pair.joiner.state.digest() == pair.leaver.state.digest()

    def test_a_deferred_lead_gives_the_link_back_while_it_says_so(self, pair):
        """The call may end in the very step after: nobody is on the way whom it could wait for."""
        saying, said = threading.Event(), threading.Event()

        def current():
            saying.set()
            said.wait(WAIT_S)
            pair.current.set()

        pair.lead._current = current
        pair.lead.defer("this test")
        pair.lead.start()
        assert saying.wait(WAIT_S)
        paused = pair._pool.submit(pair.lead.pause)
        with pytest.raises(TimeoutError):
            paused.result(timeout=0.2)
        said.set()
        assert paused.result(timeout=WAIT_S) is not None
        assert pair.current.is_set()

    def test_after_a_pause_another_lead_goes_on_over_the_same_link(self, pair):
        following = pair.follow()
        pair.lead.start()
        pair.steps_until(pair.current.is_set)
        link = pair.lead.pause()
        assert link is not None
        again = StateLead(
            link,
            pair.leaver.state,
            moment=MOMENT,
            epoch=EPOCH,
            wanted=lambda: True,
            current=pair.current.set,
            lost=pair._lose,
        )
        pair.current.clear()
        again.start()
        message, _ = following.result(timeout=WAIT_S)
        assert Place.from_tree(message["place"]) == PLACE
        pair.lead = again
        say_arrived(pair.link, epoch=EPOCH)
        following = pair._pool.submit(pair.follower.follow, meanwhile=lambda: None)
        pair.steps_until(pair.current.is_set)
        pair.lead.finish({}, large={})
        following.result(timeout=WAIT_S)
        assert not pair.follower.copied
        assert pair.joiner.state.digest() == pair.leaver.state.digest()


class TestGradientsOfTheJoiner:
    def test_are_back_where_the_leaver_is_lost(self, pair):
        had = [parameter.grad for parameter in pair.joiner.state.parameters()]
        assert all(gradient is not None for gradient in had)
        following = pair.follow()
        pair.lead.start()
        pair.steps_until(lambda: pair.follower.steps > 0)
        pair.within(pair.lead.cancel)
        with pytest.raises(LinkBrokenError):
            following.result(timeout=WAIT_S)
        now = [parameter.grad for parameter in pair.joiner.state.parameters()]
        assert list(map(id, now)) == list(map(id, had))

    def test_are_back_behind_a_message_that_nobody_knows(self, pair, monkeypatch):
        had = [parameter.grad for parameter in pair.joiner.state.parameters()]
        following = pair.follow()
        pair.lead.start()
        pair.steps_until(pair.current.is_set)
        pair.within(lambda: pair.lead._send({"kind": "postcard"}))
        with pytest.raises(ProtocolError, match="postcard"):
            following.result(timeout=WAIT_S)
        now = [parameter.grad for parameter in pair.joiner.state.parameters()]
        assert list(map(id, now)) == list(map(id, had))
