"""The parts of a session: steps, their start, the position in the data, plans that wait."""

from __future__ import annotations

import contextlib
import json
import sys
from collections import OrderedDict
from types import FrameType
from unittest.mock import Mock

import numpy as np
import pytest
import torch
from tests.unit.executor.decisions import active
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from trainmover.errors import ConfigError
from trainmover_executor.checks.determinism import NotDeterministicError
from trainmover_executor.collectives.finite import nonfinite_in
from trainmover_executor.collectives.latch import Latch
from trainmover_executor.decisions.shell import RankDecisions
from trainmover_executor.feed import Feed
from trainmover_executor.feed.batches.kept import KeptBatch
from trainmover_executor.links.link import LinkBrokenError
from trainmover_executor.report.metrics import StepLog
from trainmover_executor.state.redo import StepStart
from trainmover_executor.state.training import TrainingState
from trainmover_executor.training.body.step import Step, StepAborted
from trainmover_executor.training.session import Session


class Attempts:
    """A loop that says what it is told to; the body runs as often as there are ``votes``."""

    def __init__(self, votes: list[bool], *, broken: bool = False) -> None:
        self.votes = votes
        self.broken = broken
        self.begun = 0

    def begin(self, step: Step, frame: FrameType) -> None:
        assert frame.f_code.co_name.startswith("test_")
        self.begun += 1

    def vote(self, step: Step) -> bool:
        return self.votes.pop(0)

    def is_broken(self) -> bool:
        return self.broken

    def end(self, step: Step) -> bool:
        return bool(self.votes)


def step(*votes: bool, broken: bool = False, batch=None) -> Step:
    attempts = Attempts(list(votes or (True,)), broken=broken)
    kept = KeptBatch(batch, copies=False)
    return Step(index=4, epoch=0, batch=kept, attempts=attempts)


class TestStep:
    def test_a_vote_in_front_of_the_optimizer_counts_for_the_whole_body(self):
        one = step(True)
        with one:
            assert one.cast_vote()
            assert one.cast_vote()
        assert one.committed

    def test_an_aborted_body_is_left_past_any_except_clause(self):
        one = step(False)
        with one:
            try:
                if not one.cast_vote():
                    raise StepAborted  # noqa: TRY301 - where an optimizer's hook raises it
            except Exception:  # noqa: BLE001 - that it is blind is the point
                pytest.fail("no 'except Exception' of user code may catch it")
            pytest.fail("the optimizer's step must not be taken")
        assert not one.committed

    def test_a_body_without_an_optimizer_step_votes_on_leaving(self):
        one = step(True)
        with one:
            pass
        assert one.committed

    def test_an_aborted_body_runs_again_before_the_code_behind_it(self):
        one = step(False, False, True)
        behind = 0
        with one as batch:
            assert batch is None
        behind += 1
        assert (one.committed, behind) == (True, 1)
        assert one._attempts.begun == 3

    def test_what_a_broken_body_raises_is_swallowed(self):
        one = step(broken=True)
        one._attempts.votes.clear()
        with one:
            raise ValueError("a consequence of stand-ins")
        assert not one.committed

    def test_what_a_sound_body_raises_is_the_users(self):
        with pytest.raises(ValueError, match="a bug"), step():
            raise ValueError("a bug")

    @pytest.mark.parametrize("error", [ConfigError, NotDeterministicError])
    def test_a_verdict_on_the_program_is_no_consequence_of_a_peer_that_had_it_first(self, error):
        with pytest.raises(error, match="of this kind"), step(broken=True):
            raise error("of this kind")

    @pytest.mark.parametrize("error", [KeyboardInterrupt, SystemExit])
    def test_leaving_the_program_is_never_swallowed(self, error):
        with pytest.raises(error), step(broken=True):
            raise error

    @pytest.mark.parametrize("by", ["a generator", "a context manager"])
    def test_a_body_that_a_generator_yields_is_refused(self, by):
        one = step(True)

        def test_yields():
            with one as batch:
                yield batch

        def test_optimize():
            one.check_body()
            pytest.fail("the optimizer's step must not be taken")

        def train():
            if by == "a generator":
                for _ in test_yields():
                    test_optimize()
            with contextlib.contextmanager(test_yields)():
                test_optimize()

        with pytest.raises(ConfigError, match=r"test_steps.py:\d+\) yields from inside"):
            train()

    def test_a_comprehension_that_runs_bodies_is_refused(self):
        def test_run(one):
            with one:
                pytest.fail("its body must not run")

        def test_steps(loops):
            one = step(True)
            loops.append(sys._getframe(1))
            one._loop = loops[0]
            yield one

        with pytest.raises(ConfigError, match=r"a comprehension \(.*test_steps.py:\d+\)"):
            sum(test_run(one) for one in test_steps([]))

    def test_a_generator_expression_may_hand_steps_on(self):
        def test_steps():
            one = step(True)
            one._loop = sys._getframe(1)
            yield one

        for one in (each for each in test_steps()):
            with one:
                pass
            assert one.committed

    def test_a_generator_may_hold_a_whole_body(self):
        one = step(False, True)
        taken = 0

        def test_losses():
            nonlocal taken
            with one:
                one.check_body()
                taken += 1
            yield taken

        assert list(test_losses()) == [2]
        assert one.committed

    def test_a_committed_step_is_not_entered_again(self):
        one = step()
        with one:
            pass
        with pytest.raises(ConfigError, match="step 4 was entered twice"), one:
            pytest.fail("the body must not run")

    def test_a_step_is_not_unpacked(self):
        with pytest.raises(ConfigError, match=r"with step as \(x, y\)"):
            _one, (_x, _y) = step(batch=(1, 2))

    def test_work_between_steps_is_a_function(self):
        with pytest.raises(ConfigError, match="was given a float: give it the function"):
            Session.between_steps(Mock(), 0.93)

    def test_microbatches_split_every_tensor(self):
        x, y = torch.arange(8.0).view(4, 2), torch.arange(4)
        parts = list(step(batch=(x, y)).microbatches(2))
        assert [part[1].tolist() for part in parts] == [[0, 1], [2, 3]]
        assert torch.equal(torch.cat([part[0] for part in parts]), x)


class TestStepStart:
    def make(self):
        model = nn.Sequential(nn.Linear(2, 2), nn.BatchNorm1d(2))
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        scheduler = torch.optim.lr_scheduler.StepLR(optimizer, step_size=1)
        state = TrainingState(models=[model], optimizers=[optimizer], others={"s": scheduler})
        return model, scheduler, state

    def test_a_void_step_leaves_no_trace(self):
        model, scheduler, state = self.make()
        start = StepStart(state)
        start.capture(0)
        before, random = state.digest(), torch.get_rng_state()
        model(torch.randn(4, 2)).sum().backward()
        scheduler.last_epoch = 9
        np.random.rand()
        start.restore()
        assert state.digest() == before
        assert torch.equal(torch.get_rng_state(), random)
        assert all(parameter.grad is None for parameter in model.parameters())

    def test_a_void_step_leaves_counts_as_they_were(self):
        model = nn.Linear(2, 2)
        optimizer = torch.optim.SGD(model.parameters())
        scheduler = torch.optim.lr_scheduler.MultiStepLR(optimizer, [2, 4])
        state = TrainingState(models=[model], optimizers=[optimizer], others={"s": scheduler})
        start = StepStart(state)
        start.capture(0)
        start.restore()
        assert scheduler.milestones == {2: 1, 4: 1}

    def test_for_a_checkpoint_the_start_is_put_in_place_and_everything_comes_back(self):
        model, scheduler, state = self.make()
        start = StepStart(state)
        start.capture(4)
        before, random = state.digest(), torch.get_rng_state()
        model(torch.randn(4, 2)).sum().backward()
        scheduler.last_epoch = 9
        later, gradient = state.digest(), model[0].weight.grad.clone()
        with start.in_place(4):
            assert state.digest() == before
            assert torch.equal(torch.get_rng_state(), random)
        assert state.digest() == later
        assert torch.equal(model[0].weight.grad, gradient)
        with start.in_place(5):  # the step that began was committed: this is the state after it
            assert state.digest() == later

    def test_a_large_extra_is_kept_in_the_same_memory_each_time(self):
        class Extra:
            def __init__(self):
                self.state = OrderedDict(average=[torch.zeros(3)], shapes=(torch.ones(2), "a"))

            def state_dict(self):
                return self.state

            def load_state_dict(self, state):
                self.state = state

        extra = Extra()
        start = StepStart(TrainingState(models=[], optimizers=[], others={"extra": extra}))
        start.capture(0)
        [kept] = start._small["extra"]["average"]
        extra.state["average"][0].add_(1)
        extra.state["shapes"] = (torch.ones(5), "b")
        start.capture(1)
        assert start._small["extra"]["average"][0] is kept
        extra.state["average"][0].add_(1)
        del extra.state["shapes"]
        for _ in range(2):  # what was put back may be changed, and put back again
            start.restore()
            assert type(extra.state) is OrderedDict
            assert extra.state["average"][0].tolist() == [1, 1, 1]
            assert extra.state["shapes"][0].shape == (5,)
            assert extra.state["shapes"][1] == "b"
            extra.state["average"][0].add_(1)

    def test_gradients_that_were_there_are_zero_again(self):
        model, _, state = self.make()
        model(torch.randn(4, 2)).sum().backward()
        start = StepStart(state)
        start.capture(0)
        start.restore()
        assert all(parameter.grad.eq(0).all() for parameter in model.parameters())

    def whole(self) -> TrainingState:
        """Adam has no state before its first step."""
        model = nn.Sequential(nn.Linear(2, 2), nn.BatchNorm1d(2))
        optimizer = torch.optim.Adam(model.parameters())
        return TrainingState(models=[model], optimizers=[optimizer], others={})

    @staticmethod
    def train(state: TrainingState) -> None:
        state.models[0](torch.randn(4, 2)).square().sum().backward()
        state.optimizers[0].step()
        for group in state.optimizers[0].param_groups:
            group["lr"] *= 0.5

    @pytest.mark.parametrize("steps_before", [0, 1, 2])
    def test_a_whole_body_is_taken_back_with_its_optimizer(self, steps_before):
        state = self.whole()
        for _ in range(steps_before):
            self.train(state)
        start = StepStart(state)
        assert start.nbytes == 0
        start.capture(steps_before, whole=True)
        before = state.digest()
        for _ in range(2):  # a step may be aborted more than once
            self.train(state)
            assert state.digest() != before
            start.restore()
            assert state.digest() == before
        parameters = sum(each.nbytes for each in state.parameters())
        assert start.nbytes >= parameters
        start.capture(steps_before)
        assert start.nbytes == 0

    def test_what_is_done_again_after_a_whole_body_has_the_same_bits(self):
        state = self.whole()
        start = StepStart(state)
        start.capture(0, whole=True)
        self.train(state)
        expected = state.digest()
        start.restore()
        self.train(state)
        assert state.digest() == expected

    @pytest.mark.parametrize("had_some", [False, True])
    def test_accumulated_gradients_are_those_of_the_bodies_before(self, had_some):
        model, _, state = self.make()
        if had_some:
            model(torch.randn(4, 2)).sum().backward()
        parameters = list(model.parameters())
        before = [None if p.grad is None else p.grad.clone() for p in parameters]
        memory = [p.grad for p in parameters]
        start = StepStart(state)
        start.capture(0, accumulates=True)
        model(torch.randn(4, 2)).square().sum().backward()
        start.restore()
        for parameter, kept, same in zip(parameters, before, memory, strict=True):
            if kept is None:
                assert parameter.grad is None
            else:
                assert parameter.grad is same
                assert torch.equal(parameter.grad, kept)

    def test_accumulated_gradients_come_back_where_the_body_let_go_of_them(self):
        model, _, state = self.make()
        model(torch.randn(4, 2)).square().sum().backward()
        before = [parameter.grad.clone() for parameter in model.parameters()]
        start = StepStart(state)
        start.capture(0, accumulates=True)
        model.zero_grad(set_to_none=True)
        start.restore()
        now = [parameter.grad for parameter in model.parameters()]
        assert all(map(torch.equal, now, before))

    def test_only_buffers_that_training_changes_are_private(self):
        model, _, state = self.make()
        model.register_buffer("mask", torch.ones(1000))
        start = StepStart(state)
        start.capture(0)
        assert start.private_buffers() == []
        model(torch.randn(4, 2))
        changed = [state.buffers()[index].shape for index, _ in start.private_buffers()]
        assert torch.Size([1000]) not in changed
        assert len(changed) == 3  # mean, variance, count


class Counter:
    """A loader with a state of its own."""

    def __init__(self) -> None:
        self.at = 0

    def __iter__(self):
        while self.at < 5:
            self.at += 1
            yield self.at
        self.at = 0

    def state_dict(self):
        return {"at": self.at}

    def load_state_dict(self, state):
        self.at = state["at"]


def draw_all(feed: Feed) -> list:
    drawn = []
    while True:
        more, batch = feed.draw()
        if not more:
            return drawn
        drawn.append(batch[0].tolist() if isinstance(batch, list) else batch)


class TestFeed:
    def shuffled(self) -> DataLoader:
        return DataLoader(TensorDataset(torch.arange(12)), batch_size=3, shuffle=True)

    @pytest.mark.parametrize("taken", [0, 1, 4, 5, 11, 12])
    def test_a_plain_loader_goes_on_where_it_was(self, taken):
        torch.manual_seed(5)
        feed = Feed(self.shuffled(), epochs=3)
        for _ in range(taken):
            feed.draw()
        position, random = feed.position(), torch.get_rng_state()
        expected = draw_all(feed)

        torch.manual_seed(99)
        other = Feed(self.shuffled(), epochs=3)
        other.draw()
        other.seek(position)
        torch.set_rng_state(random)
        assert draw_all(other) == expected
        assert len(expected) == 12 - taken

    @pytest.mark.parametrize("taken", [0, 2, 5, 7])
    def test_a_stateful_loader_goes_on_by_its_own_state(self, taken):
        feed = Feed(Counter(), epochs=2)
        for _ in range(taken):
            feed.draw()
        position = feed.position()
        other = Feed(Counter(), epochs=2)
        other.draw()
        other.seek(position)
        assert draw_all(other) == draw_all(feed)

    def test_samplers_hear_of_each_epoch(self):
        heard = []

        class Sampler:
            def set_epoch(self, epoch):
                heard.append(epoch)

        class Loader(list):
            sampler = Sampler()

        draw_all(Feed(Loader([1, 2]), epochs=3))
        assert heard == [0, 1, 2]


class TestLatch:
    def test_outside_of_the_step_loop_the_error_is_raised(self):
        latch = Latch(RankDecisions(active()))
        latch.trip("rank 2 is gone")
        with pytest.raises(LinkBrokenError, match=r"outside of 'with step': rank 2 is gone"):
            latch.check_protected()
        latch.protected = True
        latch.check_protected()


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
@pytest.mark.parametrize(
    ("values", "count"),
    [
        ([1.0, -2.0, 0.0, 6e4], 0),
        ([float("nan"), float("inf"), -float("inf"), 1.0], 3),
        ([], 0),
    ],
)
def test_what_is_not_finite_is_counted(dtype, values, count):
    tensor = torch.tensor(values, dtype=dtype)
    assert nonfinite_in([tensor, torch.tensor([1, 2])]) == count
    assert nonfinite_in([torch.finfo(dtype).max * torch.ones(3, dtype=dtype)]) == 0


@pytest.mark.parametrize("size", [31, 32, 33, 1000, 100_003])
def test_samples_are_spread_over_all_of_a_tensor(size):
    tensor = torch.zeros(size)
    whole = nonfinite_in([tensor * float("nan")])
    assert min(size, 32) <= whole <= 2 * 32
    tensor[size // 2 :] = float("nan")
    assert 0 < nonfinite_in([tensor]) < whole


def test_only_what_lies_in_one_piece_is_looked_at():
    wide = torch.full((4, 8), float("nan"))
    assert nonfinite_in([wide]) == 32
    assert nonfinite_in([wide[:, ::2]]) == 0


def test_only_committed_steps_are_written(tmp_path):
    log = StepLog(str(tmp_path), rank=1, machine="m")
    log.note({"loss": torch.tensor(0.1)})
    log.note({"loss": 0.25})  # the redo
    log.commit(step=0, epoch=0)
    (line,) = (tmp_path / "rank-1.jsonl").read_text().splitlines()
    assert '"loss_hex": "0x1.0000000000000p-2"' in line
    assert log.loss == 0.25
    log.final(steps=1, digest="d")
    assert json.loads((tmp_path / "rank-1.final.json").read_text())["steps"] == 1


@pytest.mark.parametrize("left", ['{"step": 7, "loss": 1.0}\n', '{"step": 7, "lo', ""])
def test_a_step_that_a_dead_machine_alone_saw_committed_is_written_once(tmp_path, left):
    path = tmp_path / "rank-1.jsonl"
    path.write_text('{"step": 5}\n{"step": 6}\n' + left)
    log = StepLog(str(tmp_path), rank=1, machine="joiner")
    for step in (7, 8):
        log.commit(step=step, epoch=0)
    log.final(steps=9, digest="d")
    assert [json.loads(line)["step"] for line in path.read_text().splitlines()] == [5, 6, 7, 8]


def test_lines_of_an_earlier_job_are_kept(tmp_path):
    path = tmp_path / "rank-1.jsonl"
    path.write_text('{"step": 0}\n{"step": 1}\n')
    log = StepLog(str(tmp_path), rank=1, machine="m")
    log.commit(step=0, epoch=0)
    log.final(steps=1, digest="d")
    assert [json.loads(line)["step"] for line in path.read_text().splitlines()] == [0, 1, 0]
