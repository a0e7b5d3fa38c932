"""Containers of objects that a program makes while it trains: as many, and of the same kinds."""

from __future__ import annotations

import collections
import sys
from typing import Any

import pytest

from trainmover_executor.program.variables import LoopVariables
from trainmover_executor.state.packing.portable import pack_tree, unpack_tree


class Meter:
    __slots__ = ("count", "seen")

    def __init__(self, count: int) -> None:
        self.count, self.seen = count, [count]


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


def shown(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: shown(each) for key, each in value.items()}
    if isinstance(value, list | collections.deque):
        return [shown(each) for each in value]
    if isinstance(value, Meter):
        return value.count, value.seen
    return vars(value) if isinstance(value, Record) else value


@pytest.mark.parametrize("make", [keyed, listed, queued, nested])
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
        meters, _ = make()
        variables, same = LoopVariables([]), meters
        variables.changed(sys._getframe())
        missing = variables.load(tree, sys._getframe())
        assert meters is same
        return [path for path in missing if ".meters" in path], shown(meters)

    expected: list[Any] = []
    tree = {path.replace("there@", "here@"): value for path, value in there().items()}
    tree = {path.replace(".there@", ".here@"): value for path, value in tree.items()}
    renamed = {path.replace("<locals>:there", "<locals>:here"): v for path, v in tree.items()}
    assert here(renamed) == ([], expected[0])


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
