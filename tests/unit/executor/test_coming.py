"""What a standby takes over where the job stands: the dead rank's, as of its last vote."""

from __future__ import annotations

import threading
from dataclasses import replace
from typing import Any

import pytest
import torch
from tests.unit.executor.decisions import plan

from trainmover_executor.moves.course_packing import PACKING, portable_part, result_of, told_of
from trainmover_executor.moves.joining.coming import NOWHERE, Coming
from trainmover_executor.moves.work_kept import WorkKept, packed_work, results_of, works_of
from trainmover_executor.position.ended import EndedCall, EndedCalls
from trainmover_executor.position.position import Place, Position, WorkDone
from trainmover_executor.position.results import Results, Returned
from trainmover_executor.state.handing_over.written import beginning_of
from trainmover_executor.state.packing.blobs import blob_of, tree_of
from trainmover_executor.state.training import TrainingState


def voted(*open_calls: list[int], **variables: Any) -> Position:
    feeds: list[Any] = [f"feed {depth}" for depth in range(len(open_calls))]
    return Position(feeds, {"cpu": b"then"}, [], variables, open=list(open_calls))


def place(*open_calls: list[int], ended: int = 0) -> Place:
    calls = EndedCalls(EndedCall(4, 4, False, {}) if ended else None)
    return Place(list(open_calls), [calls, *(EndedCalls() for _ in open_calls)], 4, 0)


def coming(
    vote: Position, now: Place, *, then: dict[str, Any] | None = None, **variables: Any
) -> Coming:
    found = Coming(plan(2, kind="failure"))
    found.voted = vote
    told = {"place": now.to_tree(), "then": then or vote.variables, "now": variables}
    found.told = {**told, "between": 0, "passed": []}
    return found


def arrived(one: Coming, *, issued: int = 0, hidden: frozenset[str] = frozenset()) -> Position:
    one.ran_the_rest, one.hidden = True, hidden
    return one.position(issued=issued, live=[], settings={})


def test_the_program_goes_to_the_last_vote_first() -> None:
    one = coming(voted([1, 4]), place([2, 0], ended=1))
    assert one.needs_the_rest
    assert one.target.open == [[1, 4]]
    one.ran_the_rest = True
    assert one.target.open == [[2, 0]]


def test_what_the_dead_rank_showed_last_is_taken_as_it_is() -> None:
    one = coming(voted([1, 4]), place([1, 4]))
    one.now = voted([1, 4], n=7)
    assert not one.needs_the_rest
    assert one.position(issued=0, live=[], settings={}) is one.now


def test_a_rank_that_wrote_to_parameters_behind_its_vote_has_that_code_run_again() -> None:
    one = coming(voted([1, 4]), place([1, 4]))
    one.now, one.written = voted([1, 4], n=7), {"0:weight": 5}
    assert one.needs_the_rest
    assert arrived(one) is one.now


class _Net:
    """A state whose program writes to one of two parameters behind the vote."""

    def __init__(self) -> None:
        self.model = torch.nn.Linear(3, 2)
        self.state = TrainingState(models=[self.model], optimizers=[], others={})

    def write(self) -> None:
        with torch.no_grad():
            self.model.weight.mul_(0.5)


@pytest.fixture
def net() -> _Net:
    return _Net()


def followed(net: _Net) -> Coming:
    """A joiner whose state came from a follower, in front of the code behind the vote."""
    one = coming(voted([1, 4]), place([1, 4]))
    one.rest = {"followed": ["0:weight", "0:bias"], "writes_between": True}
    one.keep(net.state, step=4)
    one.own_writes.end(issued=0)  # the body begins
    net.model.bias.data.fill_(9)  # of the body, which does not count
    one.put_state_back(net.state)
    return one


def test_what_the_program_writes_behind_the_vote_stays(net: _Net) -> None:
    before = {name: each.detach().clone() for name, each in net.model.named_parameters()}
    one = followed(net)
    net.write()
    one.own_writes.end(issued=0)
    net.model.weight.data.fill_(3)  # of another body on the way
    one.put_state_back(net.state)
    assert torch.equal(net.model.weight, before["weight"] * 0.5)
    assert torch.equal(net.model.bias, before["bias"])
    assert one.own_writes.names == {"0:weight"}


def test_a_replica_gives_the_state_as_it_is_now(net: _Net) -> None:
    before = net.model.weight.detach().clone()
    one = coming(voted([1, 4]), place([1, 4]))
    one.rest = {"followed": []}
    one.keep(net.state, step=4)
    net.write()
    one.own_writes.end(issued=0)
    one.put_state_back(net.state)
    assert torch.equal(net.model.weight, before)


def test_writes_that_nobody_can_do_again_are_lost(net: _Net) -> None:
    one = followed(net)
    assert "had passed" in one.lost_writes()
    one.now = voted([1, 4])
    assert one.lost_writes() == ""  # the dead rank showed that it had not written


def test_writes_behind_collectives_hold_if_they_are_what_the_dead_rank_showed(net: _Net) -> None:
    one = followed(net)
    one.was_at_vote = True
    net.write()
    one.own_writes.end(issued=0)
    assert one.lost_writes() == ""
    one.put_state_back(net.state)
    one.own_writes.end(issued=1)  # behind work that the program passed
    assert "stand-ins" in one.lost_writes()
    one.now = voted([1, 4])
    one.written = {"0:weight": beginning_of(net.model.weight)}
    assert one.lost_writes() == ""
    one.written = {"0:weight": one.written["0:weight"] + 1}
    assert "0:weight came out different" in one.lost_writes()
    one.written = {"0:bias": 1}
    assert "came out different" in one.lost_writes()


def test_code_in_front_of_the_body_of_one_more_step_sees_what_it_saw_in_the_job() -> None:
    vote = replace(voted([1, 4], count=4, best=0.5), given={"count": 3})
    one = coming(vote, place([1, 4]), count=5)
    assert one.variables_when_given([[1, 4]]) == {"count": 3, "best": 0.5}
    assert one.variables_when_given([[1, 5]]) == {}  # it comes there by itself
    one.now = voted([1, 4], count=6)
    assert one.variables_when_given([[1, 5]]) == {"count": 6}


@pytest.mark.parametrize(
    ("then", "now", "feeds"),
    [
        ([[1, 4]], [[1, 4]], ["feed 0"]),
        ([[1, 4]], [[2, 0]], [None]),  # the next call has given no step
        ([[1, 4]], [], []),  # between two calls
        ([[1, 4]], [[1, 4], [1, 0]], ["feed 0", None]),  # a call inside of it has begun
        ([[1, 4], [1, 3]], [[1, 4]], ["feed 0"]),  # that one has ended
        ([[1, 4], [1, 3]], [[1, 5], [1, 0]], ["feed 0", None]),  # one of the next outer step
    ],
)
def test_positions_belong_to_the_calls_of_the_vote(then: Any, now: Any, feeds: Any) -> None:
    one = coming(voted(*then), place(*now, ended=int(now != then)))
    assert arrived(one).feeds == feeds


def test_variables_that_the_program_set_from_the_dead_ranks_stay() -> None:
    """A sum that began with 0 at every rank: another rank's is no guess for it."""
    one = coming(voted([1, 4], **{"main.gap": 0.0}), place([1, 4]), **{"main.gap": 0.7})
    assert arrived(one).variables == {}


@pytest.mark.parametrize("norm", [0.37, {"is": "dict", "items": [["line", [1.0, 0.37]]]}])
def test_what_ranks_have_computed_alike_is_what_another_rank_has(norm: Any) -> None:
    """The norm of gradients that were reduced: those of this program's body were not."""
    alike = {"main.norm": norm}
    one = coming(voted([1, 4], **alike), place([1, 4]), **{"main.norm": 0.5})
    assert arrived(one).variables == {"main.norm": 0.5}


def test_what_was_computed_from_stand_ins_is_what_another_rank_has() -> None:
    one = coming(
        voted([1, 4], **{"main.mean": 0.0, "main.own": 3}),
        place([1, 4]),
        then={"main.mean": 0.0, "main.own": 2},
        **{"main.mean": 0.7, "main.own": 4, "main.set": 1},
    )
    assert arrived(one, issued=1).variables == {"main.mean": 0.7}


def test_variables_of_a_generator_come_from_another_rank() -> None:
    one = coming(voted([1, 4]), place([1, 4]), **{"progress@1.count": 10, "main.hidden": 0.1})
    found = arrived(one, hidden=frozenset({"progress@1"}))
    assert found.variables == {"progress@1.count": 10}


def test_a_program_beyond_the_vote_goes_on_from_where_it_is() -> None:
    one = coming(voted([1, 4], **{"main.n": 4}), place([2, 0], ended=1), **{"main.n": 5})
    one.is_beyond = True
    found = one.position(issued=0, live=[], settings={})
    assert one.target.open == [[2, 0]]
    assert found.variables == {"main.n": 5}
    assert found.rng == {"cpu": b"then"}


def kept(*works: WorkDone) -> dict[str, Any]:
    """What a neighbour says of a dead rank that had these works behind it, and no vote."""
    neighbour = WorkKept()
    for work in works:
        neighbour.heard(packed_work(work), rank=2, step=4)
    return {"private_state": b"", **neighbour.of(2, step=4)}


def rollout(ordinal: int, **variables: Any) -> WorkDone:
    return WorkDone(Returned(ordinal, f"own {ordinal}"), replace(voted(**variables), rng={"r": 9}))


class TestWorkBetweenSteps:
    def coming(self, *works: WorkDone, passed: tuple[int, ...] = ()) -> Coming:
        """To a place behind the second and the third work of the job, told of by another rank."""
        theirs = Results()
        for n in (1, 2, 3):
            theirs.add(Returned(n, f"theirs {n}"), packing=PACKING)
        now = Place([], [EndedCalls(EndedCall(4, 4, False, {}))], 4, 0, [1, 2, 3], theirs)
        one = coming(voted([1, 4], drawn=1), now, drawn=6)
        told = [WorkDone(Returned(n, f"theirs {n}"), voted(drawn=6)).to_tree() for n in passed]
        one.told = {**one.told, "between": 3 + len(passed), "passed": told}
        one.take_private_state(kept(*works))
        return one

    def test_it_returns_what_it_returned_at_the_dead_rank(self) -> None:
        place = Place.from_tree(self.coming(rollout(2), rollout(3)).told["place"])
        returned = [place.returned.of(n, packing=PACKING) for n in place.results]
        assert [one.value for one in returned] == ["theirs 1", "own 2", "own 3"]

    def test_a_large_result_is_the_dead_ranks_too(self) -> None:
        large = WorkDone(Returned(2, told_of(torch.full((2000,), 7.0))), voted())
        place = Place.from_tree(self.coming(large, rollout(3)).told["place"])
        assert (result_of(place.returned.of(2, packing=PACKING)) == 7.0).all()
        assert place.returned.of(3, packing=PACKING).value == "own 3"

    def test_the_program_goes_on_behind_the_last_one(self) -> None:
        one = self.coming(rollout(2, drawn=4), rollout(3, drawn=5))
        assert one.behind(Returned(2, "own 2")) is one.works[2]
        assert one.behind(Returned(1, "theirs 1")) is None, "of an earlier step"
        one.is_beyond = True  # it had passed them before
        position = one.position(issued=0, live=[], settings={})
        assert (position.rng, position.variables) == ({"r": 9}, {"drawn": 5})

    def test_work_that_broke_did_not_happen(self) -> None:
        assert list(self.coming(rollout(3), rollout(4)).works) == [3]

    def test_work_behind_a_draw_comes_after_the_place(self) -> None:
        one = self.coming(rollout(3, drawn=4), rollout(4, drawn=5), passed=(4,))
        assert one.known is one.works[3]
        (passed,) = (WorkDone.from_tree(tree) for tree in one.told["passed"])
        assert (passed.returned.value, passed.position.variables) == ("own 4", {"drawn": 5})

    def test_nothing_of_another_rank_is_taken_for_its_position(self) -> None:
        (tree,) = self.coming(passed=(4,)).told["passed"]
        assert WorkDone.from_tree(tree) == WorkDone(Returned(4, "theirs 4"), NOWHERE)


class TestWorkKept:
    def test_results_outlive_the_steps_after_which_they_came(self) -> None:
        neighbour = WorkKept()
        neighbour.heard(packed_work(rollout(1)), rank=2, step=4)
        neighbour.forget(before=6)
        kept = neighbour.of(2, step=6)
        assert results_of(kept) == {1: Returned(1, "own 1")}
        assert works_of(kept) == {}

    def test_the_newest_results_are_kept_up_to_a_limit(self) -> None:
        neighbour = WorkKept()
        for ordinal in range(1, 5):
            work = WorkDone(Returned(ordinal, torch.zeros(2 << 20)), NOWHERE)  # 8 MiB
            neighbour.heard(packed_work(work), rank=2, step=4)
        assert list(results_of(neighbour.of(2, step=4))) == [4]

    def test_a_result_that_is_too_large_is_not_kept(self) -> None:
        neighbour = WorkKept()
        work = WorkDone(Returned(1, torch.zeros(5 << 20)), NOWHERE)
        neighbour.heard(packed_work(work), rank=2, step=4)
        assert results_of(neighbour.of(2, step=4)) == {1: None}

    def test_another_process_keeps_it_on(self) -> None:
        leaver, joiner = WorkKept(), WorkKept()
        leaver.heard(packed_work(rollout(1, n=3)), rank=2, step=4)
        joiner.keep(leaver.kept(step=4), step=4)
        assert joiner.of(2, step=4) == leaver.of(2, step=4)

    def test_own_position_is_that_behind_the_last_work(self) -> None:
        own = WorkKept()
        for ordinal in (1, 2, 3):
            own.did(rollout(ordinal, n=ordinal), step=4)
        found = own.own(step=4, ordinal=2)
        assert found is not None
        assert found.variables == {"n": 2}
        assert own.own(step=4, ordinal=0) is None


class TestBuffers:
    """Code behind the vote may change them: it counts updates, or averages weights."""

    @staticmethod
    def coming(**now: int) -> Coming:
        """Buffer 0 was alike at the vote, 1 was not, and 2 the giver has not seen change."""
        vote = replace(voted([1, 4]), buffers=buffers(a=4, b=1, c=7))
        found = coming(vote, place([1, 4]))
        found.told["buffers"] = {"then": buffers(a=4, b=2), "now": buffers(**now)}
        return found

    def test_the_giver_has_what_was_alike_at_the_vote(self) -> None:
        one = self.coming(a=5, b=3)
        one.ran_the_rest = True
        found = one.position(issued=0, live=[torch.tensor(each) for each in (9, 8, 6)], settings={})
        assert numbers(found.buffers) == {0: 5, 1: 8, 2: 6}

    def test_without_running_the_code_behind_the_vote_the_rest_is_as_it_was_there(self) -> None:
        one = self.coming(a=5, b=3)
        one.is_beyond = True
        found = one.position(issued=0, live=[torch.tensor(each) for each in (9, 8, 6)], settings={})
        assert numbers(found.buffers) == {0: 5, 1: 1, 2: 7}

    def test_a_giver_of_the_release_before_says_nothing_of_them(self) -> None:
        one = self.coming(a=5, b=3)
        del one.told["buffers"]
        one.ran_the_rest = True
        found = one.position(issued=0, live=[torch.tensor(each) for each in (9, 8, 6)], settings={})
        assert numbers(found.buffers) == {0: 9, 1: 8, 2: 6}


def buffers(**values: int) -> list[list[Any]]:
    return [["abc".index(name), torch.tensor(value)] for name, value in values.items()]


def numbers(found: list[list[Any]]) -> dict[int, int]:
    return {index: int(value) for index, value in found}


def test_the_part_of_a_result_that_can_be_carried_is() -> None:
    """An evaluation of a detector returns its numbers, and the object that gathered them."""
    result = ({"loss": 0.5, "by_class": [torch.ones(2), object()]}, threading.Lock(), (1, None))
    part, left_out = portable_part(result)
    assert told_of(result) is None
    assert left_out == ["object", "lock"]
    numbers, gathered, rest = tree_of(blob_of(part))
    assert (numbers["loss"], numbers["by_class"][1], gathered, rest) == (0.5, None, None, (1, None))
