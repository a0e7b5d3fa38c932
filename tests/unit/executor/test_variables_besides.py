"""What an adapter holds is looked at although no frame of the program shows it."""

from __future__ import annotations

import types
from collections.abc import Iterator
from functools import partial
from typing import Any

from torch.utils.data import DataLoader, IterableDataset

from trainmover_executor.program.looking.finding import Root
from trainmover_executor.program.variables import LoopVariables
from trainmover_executor.state.packing.portable import pack_tree, unpack_tree


class Stream(IterableDataset):
    def __iter__(self) -> Iterator[int]:
        return iter(range(3))


def looking_at(holder: Any, *, known: Any = ()) -> LoopVariables:
    def roots() -> list[Root]:
        return [("holder", vars(holder), partial(setattr, holder))]

    variables = LoopVariables([])
    variables.look_besides(roots, known=known)
    return variables


def test_what_changes_is_carried_and_what_is_known_is_not() -> None:
    known = types.SimpleNamespace(count=0)
    mine = types.SimpleNamespace(steps=0, name="m0", log=[], known=known)
    variables = looking_at(mine, known=[known])
    assert variables.changed(None) == {}
    mine.steps, known.count = 4, 4
    mine.log.append(1.5)
    told = unpack_tree(pack_tree(variables.changed(None)))
    assert told.keys() == {"holder.steps", "holder.log"}
    theirs = types.SimpleNamespace(steps=1, name="m1", log=[], known=types.SimpleNamespace())
    log = theirs.log
    assert looking_at(theirs).load(told, None) == []
    assert (theirs.steps, theirs.name, theirs.log) == (4, "m1", [1.5])
    assert theirs.log is log


def test_an_aborted_step_is_taken_back() -> None:
    mine = types.SimpleNamespace(steps=3)
    variables = looking_at(mine)
    variables.changed(None)
    variables.keep(None)
    mine.steps = 4
    variables.put_back(None)
    assert mine.steps == 3


def test_a_loader_without_a_length_is_no_obstacle() -> None:
    mine = types.SimpleNamespace(loader=DataLoader(Stream(), batch_size=2))
    assert looking_at(mine).changed(None) == {}
