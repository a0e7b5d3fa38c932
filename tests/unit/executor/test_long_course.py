"""Where a rank stands is told in few bytes, however long the way there was."""

from __future__ import annotations

import pytest
import torch

from trainmover_executor.moves.course_packing import PACKING, result_of, told_of
from trainmover_executor.position.course import Course, EndCall, Stay, way_to
from trainmover_executor.position.packed import Blob, PackedList
from trainmover_executor.position.position import Place
from trainmover_executor.position.results import Results, Returned
from trainmover_executor.program.values.trees import portable
from trainmover_executor.state.packing.portable import pack_tree, unpack_tree
from trainmover_executor.worker.to_standbys.place import packed

CALLS = 1000


@pytest.fixture(scope="module")
def place() -> Place:
    """Behind 1,000 calls, each of them about a rollout, and a list that grows with them."""
    course = Course(PACKING)
    generator = torch.Generator().manual_seed(1)
    scores: list[float] = []
    for call in range(CALLS):
        rollout = torch.full((16384,), float(call))
        course.work(Returned(2 * call + 1, told_of(rollout)))
        course.work(Returned(2 * call + 2, call / 3))
        level = course.begin()
        course.draw(level)
        scores.append(call / 7)
        variables = {"main.scores": list(scores), "main.generator": portable(generator)}
        course.end(level, committed=call + 1, variables=variables)
    return course.place(committed=CALLS, between=False)


def joiner(calls: int, works: int) -> Course:
    """One whose program has passed so many calls, and so much work behind them."""
    course = Course(PACKING)
    for _ in range(calls):
        course.end(course.begin(), committed=0, variables={})
    course.results.extend(range(works))
    return course


def test_each_place_is_small_and_what_it_refers_to_as_well(place: Place) -> None:
    tree = place.to_tree()
    assert len(packed({"place": tree})) < 128 * 1024
    large = sum(blob.nbytes for blob in place.returned.large.values())
    assert large <= 16 * 1024 * 1024
    assert sum(nbytes for nbytes, _ in tree["blobs"].values()) - large < 1024 * 1024


@pytest.mark.parametrize("call", [0, 15, 16, 300, CALLS - 2, CALLS - 1])
def test_a_program_that_comes_late_is_told_of_every_call(place: Place, call: int) -> None:
    told = Place.from_tree(unpack_tree(pack_tree(place.to_tree())))
    course = joiner(call, 0)
    course.begin()
    way = way_to(told, course, between=False)
    assert isinstance(way, EndCall)
    assert way.ended.committed == call + 1
    assert way.ended.variables["main.scores"] == [each / 7 for each in range(call + 1)]
    assert ("main.generator" in way.ended.variables) == (call == CALLS - 1)


@pytest.mark.parametrize("call", [1, 500, CALLS - 1])
def test_it_is_told_of_every_result_or_of_a_newer_large_one(place: Place, call: int) -> None:
    rollout = way_to(place, joiner(call, 0), between=True)
    assert isinstance(rollout, Stay)
    assert rollout.returned is not None
    assert rollout.returned.ordinal == 2 * call + 1
    is_kept = 2 * call + 1 in place.returned.large
    assert result_of(rollout.returned)[0].item() == (call if is_kept else CALLS - 1)
    score = way_to(place, joiner(call, 1), between=True)
    assert score == Stay(Returned(2 * call + 2, call / 3))


def test_a_few_results_are_kept_however_large_they_are() -> None:
    results, size = Results(), 10 * 1024 * 1024
    for ordinal in range(1, 12):
        blob = Blob(str(ordinal), size, None)
        results.add(Returned(ordinal, blob), packing=PACKING)
    assert list(results.large) == [*range(4, 12)]


def test_other_ranks_results_take_the_place_of_these() -> None:
    results = Results()
    for ordinal in range(1, 301):
        results.add(Returned(ordinal, f"mine {ordinal}"), packing=PACKING)
    theirs = {n: Returned(n, f"theirs {n}") for n in (2, 299, 999)}
    replaced = results.replaced(theirs, packing=PACKING)
    assert [replaced.of(n, packing=PACKING) for n in (1, 2, 299, 300, 999)] == [
        *(Returned(1, "mine 1"), theirs[2], theirs[299], Returned(300, "mine 300")),
        None,
    ]


@pytest.mark.parametrize("count", [0, 1, 15, 16, 17, 255, 256, 257, 1000])
def test_a_packed_list_is_a_list(count: int) -> None:
    packed_list = PackedList()
    for item in range(count):
        packed_list.append([item], packing=PACKING)
    assert len(packed_list) == count
    assert [packed_list.nth(n, packing=PACKING) for n in range(count)] == [
        [n] for n in range(count)
    ]
    assert len(packed_list.groups) <= 14 + count // 256
    assert len(packed_list.recent) < 4


def test_metrics_behind_each_step_are_forgotten_but_for_those_of_the_last() -> None:
    course = Course(PACKING)
    level = course.begin()
    for step in range(2000):
        course.draw(level)
        for each in range(3):
            course.work(Returned(3 * step + each + 1, told_of([torch.rand(2)])))
    place = course.place(committed=2000, between=False)
    there = Place.from_tree(unpack_tree(pack_tree(place.to_tree())))
    groups = there.returned.small.groups
    assert len(groups) < 20
    assert sum(group.blob.nbytes for group in groups if group.blob is not None) < 8 * 1024
    for ordinal in range(5995, 6001):
        returned = there.returned.of(ordinal, packing=PACKING)
        assert returned is not None
        assert torch.equal(
            result_of(returned)[0], course.returned.of(ordinal, packing=PACKING).value[0]
        )
    course.end(level, committed=2000, variables={})
    late = joiner(0, 0)
    mine = late.begin()
    mine.drawn = 2000
    way = way_to(course.place(committed=2000, between=False), late, between=True)
    assert isinstance(way, Stay)
    assert way.returned is not None
    assert way.returned.ordinal == 5998


def test_a_packed_list_holds_all_that_is_not_forgotten() -> None:
    held = PackedList()
    for at in range(1500):
        held.append([at], packing=PACKING)
        if at >= 10 and (at % 3 or 300 < at < 900):
            held.forget(at - 10, packing=PACKING)
    forgotten = {at - 10 for at in range(10, 1500) if at % 3 or 300 < at < 900}
    assert len(held) == 1500
    for at in range(1500):
        assert held.nth(at, packing=PACKING) in ([[at], []] if at in forgotten else [[at]])
    assert sum(bool(held.nth(at, packing=PACKING)) for at in forgotten) < 64
    assert next(group.count for group in held.groups if group.blob is None) >= 500
