"""Containers of classes of the program's own: dictionaries with attributes, lists with a mean."""

from __future__ import annotations

import collections
import sys
from typing import Any

import pytest
import torch

from trainmover_executor.program.variables import LoopVariables
from trainmover_executor.state.packing.portable import pack_tree, unpack_tree


class AttrDict(dict[str, Any]):
    """As in many a program: keys are attributes."""

    __getattr__ = dict.__getitem__
    __setattr__ = dict.__setitem__  # type: ignore[assignment]


class EasyDict(dict[str, Any]):
    """Holds each member two times: as an attribute, too."""

    def __init__(self, **members: Any) -> None:
        for name, member in members.items():
            setattr(self, name, member)

    def __setattr__(self, name: str, value: Any) -> None:
        super().__setattr__(name, value)
        super().__setitem__(name, value)

    def __setitem__(self, name: str, value: Any) -> None:
        setattr(self, name, value)


class History(list[float]):
    """Counts what it is given, in a method that setting it back must not call."""

    def __init__(self, window: int) -> None:
        super().__init__()
        self.window, self.given = window, 0

    def append(self, value: float) -> None:
        super().append(value)
        self.given += 1

    def extend(self, values: Any) -> None:
        for value in values:
            self.append(value)


class Tally(collections.Counter[str]):
    pass


class Ordered(collections.OrderedDict[str, Any]):
    pass


class Groups(collections.defaultdict[str, Any]):
    pass


class Seen(set[int]):
    pass


class Recent(collections.deque[float]):
    pass


class Record:
    def __init__(self, name: str) -> None:
        self.name = name


def made() -> dict[str, Any]:
    history = History(3)
    history.append(1.0)
    return {
        "attributes": AttrDict(n=0, inner=AttrDict(m=0), record=Record("first")),
        "easy": EasyDict(n=1, inner=EasyDict(m=2)),
        "history": history,
        "tally": Tally("aab"),
        "ordered": Ordered(a=1, b=2),
        "groups": Groups(list, a=[1]),
        "seen": Seen([1, 2]),
        "recent": Recent([1.0, 2.0], maxlen=2),
        "weights": AttrDict(line=torch.zeros(3)),
        "late": None,
    }


def changed(held: dict[str, Any]) -> None:
    held["attributes"].n += 1
    held["attributes"].inner.m += 2
    held["attributes"].record.name = "second"
    held["attributes"].extra = 5
    held["easy"].n = 7
    held["easy"].inner.m = 8
    held["history"].append(4.0)
    held["tally"].update("bcc")
    held["ordered"].move_to_end("a")
    held["ordered"]["c"] = 3
    held["groups"]["b"].append(2)
    held["seen"].add(3)
    held["recent"].append(3.0)
    held["weights"].line += 1
    held["late"] = EasyDict(z=4, by=Record("late"))


def shown(value: Any) -> Any:
    if isinstance(value, Record):
        return value.name
    if isinstance(value, torch.Tensor):
        return value.tolist()
    if isinstance(value, dict):
        of = type(value), [(key, shown(each)) for key, each in value.items()]
    elif isinstance(value, list | collections.deque | set):
        of = type(value), list(value)
    else:
        return value
    return (*of, {name: shown(each) for name, each in getattr(value, "__dict__", {}).items()})


def test_they_come_to_another_process_in_the_same_objects() -> None:
    def run(load: dict[str, Any] | None) -> Any:
        held = made()
        same = {name: each for name, each in held.items() if each is not None}
        attributes, easy, history = held["attributes"], held["easy"], held["history"]
        variables = LoopVariables([])
        variables.changed(sys._getframe())
        if load is None:
            changed(held)
            told = unpack_tree(pack_tree(variables.changed(sys._getframe())))
            return told, {name: shown(each) for name, each in held.items()}
        missing = variables.load(load, sys._getframe())
        assert [path for path in missing if "run@" in path] == []
        assert (attributes, easy, history) == tuple(
            held[each] for each in ("attributes", "easy", "history")
        )
        assert all(held[name] is each for name, each in same.items())
        return {name: shown(each) for name, each in held.items()}

    told, expected = run(None)
    assert run(told) == expected


def test_what_an_aborted_step_did_to_them_is_taken_back() -> None:
    held = made()
    inner, before = held["attributes"].inner, {name: shown(each) for name, each in held.items()}
    variables = LoopVariables([])
    variables.keep(sys._getframe())
    changed(held)
    del held["attributes"]["n"]
    held["easy"].later = 1
    variables.put_back(sys._getframe())
    assert {name: shown(each) for name, each in held.items()} == before
    assert held["attributes"].inner is inner


def test_two_names_of_one_are_two_names_of_one() -> None:
    def run(load: dict[str, Any] | None) -> Any:
        state = AttrDict(n=0)
        holder = Record("holder")
        holder.state = None  # type: ignore[attr-defined]
        variables = LoopVariables([])
        variables.changed(sys._getframe())
        if load is None:
            state.n, holder.state = 3, state  # type: ignore[attr-defined]
            load = unpack_tree(pack_tree(variables.changed(sys._getframe())))
        else:
            variables.load(load, sys._getframe())
        return load, state, holder.state  # type: ignore[attr-defined]

    _, state, same = run(run(None)[0])
    assert state is same
    assert state == {"n": 3}


@pytest.mark.parametrize("most", [500, 16_000, 17_000])
def test_a_long_list_of_numbers_comes(most: int) -> None:
    def run(load: dict[str, Any] | None) -> Any:
        history = History(1)
        variables = LoopVariables([])
        variables.changed(sys._getframe())
        if load is None:
            history.extend(map(float, range(most)))
            load = unpack_tree(pack_tree(variables.changed(sys._getframe())))
        else:
            variables.load(load, sys._getframe())
        return load, history

    assert len(run(run(None)[0])[1]) == (most if most <= 16 * 1024 else 0)


def test_one_of_a_class_without_a_name_is_filled_where_it_is() -> None:
    class Local(dict[str, Any]):
        pass

    held = Local(n=1, more=[Record("first")])
    variables = LoopVariables([])
    variables.keep(sys._getframe())
    held["n"] = 2
    held["more"].append(Record("second"))
    variables.put_back(sys._getframe())
    assert held["n"] == 1
    assert [each.name for each in held["more"]] == ["first"]
    assert type(held) is Local
