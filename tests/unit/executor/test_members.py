"""Containers of objects that a program makes while it trains: as many, and of the same kinds."""

from __future__ import annotations

import collections
import sys
from typing import Any

import pytest
import torch

from trainmover_executor.program.variables import LoopVariables
from trainmover_executor.state.packing.portable import pack_tree, unpack_tree


class Meter:
    __slots__ = ("count", "seen")

    def __init__(self, count: int) -> None:
        self.count, self.seen = count, [count]


class Phase:
    """As a reference's logger: the meters are made when they are first asked for."""

    def __init__(self) -> None:
        self.meters: Any = collections.defaultdict(list)
        self.best: Any = None
        self.last: Any = Record("none")

    def again(self) -> Phase:
        other = Phase()
        other.meters["loss"] = [Meter(4), Meter(5)]
        other.last = None
        return other


class Record:
    def __init__(self, name: str) -> None:
        self.name = name


def keyed() -> tuple[Any, Any]:
    return {"a": Meter(1)}, {"a": Meter(7), "b": Meter(8)}


def listed() -> tuple[Any, Any]:
    return [Meter(1), Meter(2), Meter(3)], [Meter(7)]


def queued() -> tuple[Any, Any]:
    mixed = [Record("x"), Meter(4), 5, "y"]
    return collections.deque([Meter(1)], maxlen=4), collections.deque(mixed, maxlen=4)


def nested() -> tuple[Any, Any]:
    return {"a": [Meter(1)]}, {"a": [Meter(5), Meter(6)]}


def filled() -> tuple[Any, Any]:
    return {}, {"a": Meter(7), "b": Meter(8)}


def filled_by_default() -> tuple[Any, Any]:
    return collections.defaultdict(list), {"a": [Meter(7)]}


def filled_list() -> tuple[Any, Any]:
    return [], [Meter(5), 6]


def of_numbers_before() -> tuple[Any, Any]:
    return [1, 2], [Meter(5)]


def emptied() -> tuple[Any, Any]:
    return {"a": Meter(1)}, {}


def emptied_inside() -> tuple[Any, Any]:
    return {"a": [Meter(1)], "b": Meter(2)}, {"a": [], "b": Meter(3)}


def filled_inside() -> tuple[Any, Any]:
    return {"a": [], "b": Meter(2)}, {"a": [Meter(1)], "b": Meter(3)}


def deep() -> tuple[Any, Any]:
    phase = Phase()
    phase.meters["loss"] = [Meter(3)]
    phase.best = Record("best")
    return {"a": Phase()}, {"a": phase, "b": phase.again()}


CASES = [
    *(keyed, listed, queued, nested),
    *(filled, filled_by_default, filled_list, of_numbers_before),
    *(emptied, emptied_inside, filled_inside, deep),
]


def shown(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: shown(each) for key, each in value.items()}
    if isinstance(value, list | collections.deque):
        return [shown(each) for each in value]
    if isinstance(value, Meter):
        return value.count, value.seen
    if isinstance(value, Phase):
        return type(value.meters), shown(dict(value.meters)), shown(value.best), shown(value.last)
    return vars(value) if isinstance(value, Record) else value


@pytest.mark.parametrize("make", CASES)
def test_another_process_has_as_many_of_the_same_kinds(make: Any) -> None:
    def there() -> dict[str, Any]:
        meters, later = make()
        variables = LoopVariables([])
        variables.changed(sys._getframe())
        meters.clear()
        meters.update(later) if isinstance(meters, dict) else meters.extend(later)
        tree: dict[str, Any] = unpack_tree(pack_tree(variables.changed(sys._getframe())))
        expected.append(shown(meters))
        return tree

    def here(tree: dict[str, Any]) -> Any:
        meters, later = make()
        variables, same = LoopVariables([]), meters
        variables.changed(sys._getframe())
        missing = variables.load(tree, sys._getframe())
        assert meters is same
        assert later is not meters  # it is needed on, as over there
        return [path for path in missing if ".meters" in path], shown(meters)

    expected: list[Any] = []
    assert here(_renamed(there())) == ([], expected[0])


def _renamed(told: Any) -> Any:
    """As of the other function: its name is in paths, and in what objects are known by."""
    if isinstance(told, dict):
        return {_renamed(key): _renamed(value) for key, value in told.items()}
    if isinstance(told, list | tuple):
        return [_renamed(each) for each in told]
    if not isinstance(told, str):
        return told
    return told.replace("there@", "here@").replace("<locals>:there", "<locals>:here")


@pytest.mark.parametrize("make", CASES)
def test_what_an_aborted_step_did_to_a_container_is_taken_back(make: Any) -> None:
    def program() -> Any:
        meters, later = make()
        variables, same, before = LoopVariables([]), meters, shown(meters)
        variables.keep(sys._getframe())
        meters.clear()
        meters.update(later) if isinstance(meters, dict) else meters.extend(later)
        variables.put_back(sys._getframe())
        assert meters is same
        return shown(meters), before

    now, before = program()
    assert now == before


def test_members_of_an_aborted_step_are_taken_back() -> None:
    def program() -> tuple[Any, Any, Any]:
        meters, log = {"a": Meter(1)}, [Record("first")]
        first, variables = meters["a"], LoopVariables([])
        variables.keep(sys._getframe())
        meters.clear()
        meters["b"] = Meter(2)
        log.append(Record("second"))
        log.pop(0)
        variables.put_back(sys._getframe())
        return meters["a"] is first, shown(meters), shown(log)

    assert program() == (True, {"a": (1, [1])}, [{"name": "first"}])


def test_objects_where_none_were_before_come_to_another_process() -> None:
    def run(load: dict[str, Any] | None) -> Any:
        best, first, last = None, [], Record("first")
        phase = Phase()
        variables = LoopVariables([])
        variables.changed(sys._getframe())
        if load is not None:
            missing = variables.load(load, sys._getframe())
            assert [path for path in missing if "run@" in path] == []
            return shown(best), first, shown(last), shown(phase), type(phase)
        best, first, last = Record("best"), Record("other"), None
        phase = phase.again()
        phase.best = Meter(9)
        told = unpack_tree(pack_tree(variables.changed(sys._getframe())))
        return told, (shown(best), shown(first), shown(last), shown(phase), type(phase))

    told, expected = run(None)
    best, first, *rest = run(told)
    assert (best, shown(first), *rest) == expected


def test_names_that_a_body_gave_to_other_objects_name_the_first_again() -> None:
    def program(*, lets_go: bool) -> None:
        meters, record, best = {"a": Meter(1)}, Record("first"), None
        same, alike = meters, record
        variables = LoopVariables([])
        variables.keep(sys._getframe())
        if lets_go:
            meters, record = None, None
        elif best is None:
            meters, record, best = {"b": Meter(2)}, Record("second"), Record("best")
        variables.put_back(sys._getframe())
        assert meters is same
        assert shown(meters) == {"a": (1, [1])}
        assert record is alike
        assert record.name == "first"
        assert best is None

    program(lets_go=False)
    program(lets_go=True)


def test_members_by_objects_stay_as_they_are() -> None:
    """As with an optimizer for each parameter: the parameters are this process's."""

    def run(load: dict[str, Any] | None) -> Any:
        first = Record("parameter")
        meters = {first: Meter(1)}
        variables = LoopVariables([])
        variables.changed(sys._getframe())
        if load is None:
            meters[Record("another")] = Meter(2)
            return unpack_tree(pack_tree(variables.changed(sys._getframe())))
        variables.load(load, sys._getframe())
        return meters, first

    meters, first = run(run(None))
    assert list(meters) == [first]
    assert shown(meters[first]) == (1, [1])


def test_an_object_of_a_name_that_is_not_bound_yet_comes() -> None:
    def run(load: dict[str, Any] | None) -> Any:
        variables, told = LoopVariables([]), load
        variables.changed(sys._getframe())
        if load is None:
            record, meters = Record("late"), [Meter(2)]
            told = unpack_tree(pack_tree(variables.changed(sys._getframe())))
        else:
            variables.load(load, sys._getframe())
        return told, shown(record), shown(meters)

    told, *there = run(None)
    _, *here = run({path: each for path, each in told.items() if "run@" in path})
    assert here == there == [{"name": "late"}, [(2, [2])]]


class Best:
    def __init__(self, loss: float, weights: Any) -> None:
        self.loss, self.weights = loss, weights


class Custom(torch.Tensor):
    pass


@pytest.mark.parametrize(
    "make",
    [
        lambda: {"loss": 1.0, "weights": {"line": torch.ones(8000)}},
        lambda: [Meter(1), torch.ones(8000)],
        lambda: Best(1.0, torch.ones(8000)),
        lambda: Best(1.0, [Best(2.0, torch.ones(8000).as_subclass(Custom))]),
    ],
)
def test_what_holds_large_tensors_stays_behind_until_they_come(make: Any) -> None:
    """A standby's program reads its weights where it does not find None."""

    def run(load: dict[str, Any] | None) -> Any:
        best, kept, variables = None, [], LoopVariables([])
        variables.changed(sys._getframe())
        if load is None:
            best = make()
            kept.append(best)
            return variables.changed(sys._getframe()), best
        variables.load(load, sys._getframe())
        return best, kept

    told, _ = run(None)
    best, kept = run(unpack_tree(pack_tree(told)))
    assert (best, kept) == (None, [])


HELD: list[Any] = []


def test_what_is_in_a_container_does_not_become_a_name() -> None:
    def run(load: dict[str, Any] | None) -> dict[str, Any]:
        variables = LoopVariables([])
        variables.changed(sys._getframe())
        if load is None:
            HELD[:] = [Record("first"), {"a": [Record("second")]}]
            return unpack_tree(pack_tree(variables.changed(sys._getframe())))
        HELD.clear()
        load = {path: each for path, each in load.items() if not path.endswith("HELD[]")}
        variables.load(load, sys._getframe())
        return {}

    names = set(globals())
    try:
        run(run(None))
        assert set(globals()) == names
    finally:
        HELD.clear()
        for name in set(globals()) - names:
            del globals()[name]
