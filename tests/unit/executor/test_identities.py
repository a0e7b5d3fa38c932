"""Which object a name stands for: a joiner's stands for its own of the same name."""

from __future__ import annotations

import gc
import random
import sys
from collections.abc import Callable
from typing import Any

import pytest
import torch

from trainmover_executor.program.holders.identities import Identities
from trainmover_executor.program.variables import LoopVariables
from trainmover_executor.state.packing.portable import pack_tree, unpack_tree


class Task:
    def __init__(self, uid: int) -> None:
        self.uid = uid
        self.used = 0
        self.host = object()
        self.parent: Task | None = None

    def __repr__(self) -> str:
        return f"{self.uid}:{self.used}"


class Point:
    def __init__(self, x: int) -> None:
        self.x = x


def shuffled(tasks: list[Task], names: dict[str, Any]) -> None:
    names["order"] = [tasks[at] for at in (3, 0, 2, 1)]


def taken_from(tasks: list[Task], names: dict[str, Any]) -> None:
    names["stack"] = tasks.copy()
    for at in (2, 0):
        names["stack"].pop(at).used += 1


def best_of(tasks: list[Task], names: dict[str, Any]) -> None:
    names["current"] = tasks[2]
    names["best"] = names["current"]
    names["best"].used = 7


def swapped(tasks: list[Task], names: dict[str, Any]) -> None:
    tasks[0], tasks[3] = tasks[3], tasks[0]
    tasks[0].used = 3


def gone(tasks: list[Task], names: dict[str, Any]) -> None:
    del tasks[1]
    names["best"] = tasks[1]


def in_a_tree(tasks: list[Task], names: dict[str, Any]) -> None:
    for one, other in ((0, 3), (3, 2), (2, 0)):
        tasks[one].parent = tasks[other]


def by_key(tasks: list[Task], names: dict[str, Any]) -> None:
    names["table"] = {"best": tasks[1], 4: tasks[2]}


def nobody(tasks: list[Task], names: dict[str, Any]) -> None:
    names["current"] = None


def seen_of(tasks: list[Task], names: dict[str, Any]) -> Any:
    """What is what, and which is which."""
    everything = {**names, "tasks": tasks}
    known: dict[int, int] = {}

    def told(value: Any) -> Any:
        if isinstance(value, Task):
            number = known.setdefault(id(value), len(known))
            held = value.parent and known.setdefault(id(value.parent), len(known))
            return value.uid, value.used, number, held
        if isinstance(value, list):
            return [told(each) for each in value]
        if isinstance(value, dict):
            return {key: told(each) for key, each in value.items()}
        return value

    return told(everything)


CHANGES = [shuffled, taken_from, best_of, swapped, gone, in_a_tree, by_key, nobody]


def program(
    changes: list[Callable[..., None]],
    *,
    take: Any = None,
    before: list[Callable[..., None]] | None = None,
) -> tuple[Any, Any, list[Task]]:
    """A process: it looks, its training changes names, it looks again."""
    variables, frame = LoopVariables([]), sys._getframe()
    tasks = [Task(uid) for uid in range(4)]
    originals = [*tasks]
    names: dict[str, Any] = {"current": tasks[0], "best": None, "order": [*tasks], "stack": None}
    names["table"] = {}
    variables.changed(frame)
    variables.keep(frame, whole=True)
    kept = variables.kept
    for change in before or []:
        change(tasks, names)
        variables.changed(frame)
    variables.put(kept, frame)
    if take is not None:
        missing = variables.load(unpack_tree(pack_tree(take)), frame)
        assert not missing
    for change in changes:
        change(tasks, names)
        variables.changed(frame)
    return variables.changed(frame), seen_of(tasks, names), originals


@pytest.mark.parametrize("change", CHANGES)
@pytest.mark.parametrize("before", [[], [taken_from, best_of]], ids=["calm", "after shadows"])
def test_a_joiners_names_stand_for_its_own_objects(
    change: Callable[..., None], before: list[Callable[..., None]]
) -> None:
    told, theirs, _ = program([change])
    _, mine, originals = program([], take=told, before=before)
    assert mine == theirs
    assert len({id(each.host) for each in originals}) == 4, "nobody's own was overwritten"


@pytest.mark.parametrize("seed", range(30))
def test_any_order_of_changes_ends_alike(seed: int) -> None:
    chance = random.Random(seed)
    changes = chance.choices(CHANGES[:3] + CHANGES[5:], k=4)
    told, theirs, _ = program(changes)
    assert program([], take=told)[1] == theirs, changes


def later(*, take: Any = None, own: int = 3, steps: int = 9) -> tuple[Any, Any]:
    """Objects that are made in each step, and kept."""
    variables, frame = LoopVariables([]), sys._getframe()
    history: list[Point] = []
    current = best = Point(-1)
    variables.changed(frame)
    for x in range(own if take is not None else steps):
        current = Point(x)
        history.append(current)
        if x in {2, 5}:
            best = current
        variables.changed(frame)
    if take is not None:
        assert variables.load(unpack_tree(pack_tree(take)), frame) == []
    same = (
        [at for at, each in enumerate(history) if each is current],
        [at for at, each in enumerate(history) if each is best],
    )
    return variables.changed(frame), ([each.x for each in history], current.x, best.x, same)


@pytest.mark.parametrize("own", [0, 1, 3])
def test_objects_that_were_made_in_training_are_told_apart(own: int) -> None:
    told, theirs = later()
    assert theirs == ([*range(9)], 8, 5, ([8], [5]))
    assert later(take=told, own=own)[1] == theirs


def test_an_object_that_is_made_anew_for_each_epoch_is_told_with_all_it_holds() -> None:
    """The joiner's own holds other numbers, and a lock that cannot be carried."""

    def run(*, take: Any = None, epochs: int = 5) -> tuple[Any, Any]:
        variables, frame = LoopVariables([]), sys._getframe()
        meter = Task(0)
        first = meter
        variables.changed(frame)
        for epoch in range(2 if take is not None else epochs):
            meter = Task(epoch)
            meter.used = 1  # as in each epoch
            variables.changed(frame)
        if take is not None:
            variables.load(unpack_tree(pack_tree(take)), frame)
        return variables.changed(frame), ((meter.uid, meter.used), first.uid, meter is first)

    told, theirs = run()
    assert theirs == ((4, 1), 0, False)
    assert run(take=told)[1] == theirs


def test_a_body_that_is_done_again_has_the_names_that_it_had() -> None:
    variables, frame = LoopVariables([]), sys._getframe()
    tasks = [Task(uid) for uid in range(3)]
    current, order = tasks[0], [*tasks]
    variables.changed(frame)
    current = tasks[1]
    variables.keep(frame)
    if len(tasks) == 3:  # else nobody needs the name
        current = tasks[2]
    order.reverse()
    tasks[2].used = 5
    variables.put_back(frame)
    assert current is tasks[1]
    assert order == tasks
    assert tasks[2].used == 0


def test_a_tensor_in_an_object_is_told_by_the_same_path_by_any_name() -> None:
    def run(*, take: Any = None) -> tuple[Any, Any]:
        variables, frame = LoopVariables([]), sys._getframe()
        tasks = [Task(uid) for uid in range(3)]
        for each in tasks:
            each.weights = torch.zeros(3)  # type: ignore[attr-defined]
        current = tasks[0]
        variables.changed(frame)
        if take is None:
            current = tasks[2]
            current.weights += 2  # type: ignore[attr-defined]
        else:
            assert variables.load(unpack_tree(pack_tree(take)), frame) == []
        weights = [each.weights.tolist() for each in tasks]  # type: ignore[attr-defined]
        return variables.changed(frame), (weights, current.uid)

    told, theirs = run()
    assert run(take=told)[1] == theirs


def test_objects_that_are_gone_are_forgotten() -> None:
    identities = Identities()
    identities.let_go()
    first = Point(0)
    assert identities.name_of(first, "main.first") == "main.first"
    identities.end_first_look()
    for _ in range(100):
        identities.name_of(Point(1), "main.current")
    gc.collect()
    assert len(identities._names) <= 2
    assert identities.of("main.first") is first
    del first
    gc.collect()
    assert identities.of("main.first") is None


def test_a_standby_keeps_what_its_shadow_iterations_dropped() -> None:
    """A queue of tasks: the job is at the second one, and each is gone once it is done."""

    def run(*, steps: int, take: Any = None) -> tuple[Any, Any]:
        variables, frame = LoopVariables([]), sys._getframe()
        queue = [Task(uid) for uid in range(9)]
        current = None
        variables.keep(frame, whole=True)
        first = variables.kept
        told = variables.changed(frame)
        for _ in range(steps):
            current = queue.pop(0)
            told = variables.changed(frame)
        if take is not None:
            gc.collect()
            variables.put(first, frame)
            variables.load(unpack_tree(pack_tree(take)), frame)
        return told, (current and current.uid, [each.uid for each in queue])

    told, theirs = run(steps=2)
    assert theirs == (1, [2, 3, 4, 5, 6, 7, 8])
    assert run(steps=4, take=told)[1] == theirs


def test_what_has_no_reference_has_no_name() -> None:
    class Bare:
        __slots__ = ("x",)

    assert Identities().name_of(Bare(), "main.bare") == ""
