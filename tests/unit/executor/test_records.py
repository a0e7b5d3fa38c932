"""Long lists of records are packed record by record, and come back as they were."""

from __future__ import annotations

import collections
import sys
import weakref
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch

from trainmover_executor.program.holders import names
from trainmover_executor.program.values.compare import equal
from trainmover_executor.program.values.kinds.records import (
    one_look,
    records_from,
)
from trainmover_executor.program.values.kinds.records import records_of as records_in_a_look
from trainmover_executor.program.values.plain import is_plain
from trainmover_executor.program.values.restored import restored
from trainmover_executor.program.values.trees import portable as portable_as_it_is
from trainmover_executor.program.variables import LoopVariables
from trainmover_executor.state.packing.portable import pack_tree, unpack_tree

records_of = one_look()(records_in_a_look)
portable = one_look()(portable_as_it_is)


class Transition(NamedTuple):
    state: torch.Tensor
    action: int
    next_state: torch.Tensor | None
    reward: float


def transition(at: int) -> Transition:
    state = torch.full((1, 4), float(at))
    return Transition(state, at, None if at % 3 == 0 else state + 1, at / 7)


def memory(count: int = 2000, *, most: int | None = 10_000) -> collections.deque[Transition]:
    return collections.deque(map(transition, range(count)), maxlen=most)


def elsewhere(tree: Any) -> Any:
    return unpack_tree(pack_tree({"tree": tree}))["tree"]


FIELDS = {
    "numbers": lambda at: (at, at / 3, at % 2 == 0, -(2**63) + at),
    "nothing": lambda at: (None, at),
    "tensors": lambda at: (torch.arange(at % 4), torch.tensor(at, dtype=torch.bfloat16)),
    "numbers of numpy": lambda at: (np.float32(at / 3), np.int64(at), np.bool_(at % 2)),
    "a view": lambda at: (torch.arange(6.0).view(2, 3).T[at % 3],),
    "arrays": lambda at: (np.arange(at % 5) + at, np.full((2, 2), at, np.float32), at),
    "no fields": lambda at: (),
    "a ring": lambda at: (at, at / 2) if at < 150 else None,
}


@pytest.mark.parametrize("kind", FIELDS)
def test_records_come_back_as_they_were(kind):
    values = [FIELDS[kind](at) for at in range(200)]
    back = restored(elsewhere(portable(values)), [])
    assert records_of(values) is not None
    assert [[type(each) for each in record or ()] for record in back] == [
        [type(each) for each in record or ()] for record in values
    ]
    assert all(equal(portable(a), portable(b)) for a, b in zip(values, back, strict=True))


def test_a_replay_memory_of_thousands_is_carried_in_its_place():
    there, here = memory(9000), memory(10, most=5)
    other_name = here
    assert one_look()(is_plain)(there)
    assert not is_plain(there)  # what loaders keep has an order of its own
    tree = elsewhere(portable(there))
    assert restored(tree, here) is other_name
    assert len(pack_tree({"tree": tree})) < 600_000
    kept = memory(0, most=10_000)
    assert restored(tree, kept) is kept
    assert len(kept) == 9000
    assert isinstance(kept[5], Transition)
    assert equal(portable(kept), portable(there))


@pytest.mark.parametrize(
    "values",
    [
        [(1, 2)] * 128,
        [(1, "a")] * 200,
        [(1, 2**63)] * 200,
        [(torch.zeros(2, requires_grad=True),)] * 200,
        [(1, [2])] * 200,
        [[1, 2]] * 200,
        [(torch.zeros(3000),) for _ in range(200)],
    ],
    ids=["few", "a string", "a long number", "a parameter", "a list", "no tuples", "too large"],
)
def test_what_are_no_records(values):
    assert records_of(values) is None


@pytest.mark.parametrize("make", [torch.zeros, np.zeros])
def test_a_list_whose_records_are_written_to_is_none_of_records(make):
    values = [(make(2), at) for at in range(2000)]
    assert records_of(values) is not None
    values[1500][0][0] += 1
    assert not all(records_of(values) for _ in range(8))
    assert records_of(values) is None


@pytest.mark.parametrize("kind", [list, collections.deque])
def test_what_is_too_large_is_asked_for_once_and_not_kept_alive(kind, monkeypatch):
    values = kind((torch.zeros(3000),) for _ in range(200))
    first = weakref.ref(values[0][0])
    assert records_of(values) is None
    module = sys.modules["trainmover_executor.program.values.kinds.records"]
    monkeypatch.setattr(module, "packed_field", lambda _: pytest.fail("a record was packed again"))
    assert records_of(values) is None
    values = None
    assert first() is None


def test_one_look_asks_each_list_once(monkeypatch):
    values, looks = memory(), []
    module = sys.modules["trainmover_executor.program.values.kinds.records"]
    monkeypatch.setattr(module, "_look_at", looks.append)
    with one_look():
        assert records_in_a_look(values) is records_in_a_look(values) is None
    assert len(looks) == 1
    records_of(values)
    assert len(looks) == 2
    assert records_in_a_look(values) is None
    assert len(looks) == 2


def test_a_step_that_is_done_again_has_the_same_records():
    variables, frame = LoopVariables([]), sys._getframe()
    held = memory()
    variables.keep(frame)
    before = list(held)
    held.extend(map(transition, range(5000, 5025)))
    variables.put_back(frame)
    assert len(held) == len(before)
    assert all(a is b for a, b in zip(held, before, strict=True))


def test_no_log_names_a_memory_that_is_carried(monkeypatch):
    monkeypatch.setattr(names, "program_frames", lambda frame: [frame])
    variables, frame = LoopVariables([]), sys._getframe()
    held = memory()
    found = variables.passed_over(frame)
    assert not any(value is held for _, value in found)


def test_two_records_that_are_alike_stay_two():
    held = collections.deque((torch.zeros(1),) for _ in range(200))
    tree = elsewhere(portable(held))
    held.append((torch.ones(1),))
    restored(tree, held)
    assert len({id(each) for each in held}) == 200


def test_what_has_come_is_not_packed_again(monkeypatch):
    tree, here = elsewhere(portable(memory())), memory(0)
    here = restored(tree, here)
    module = sys.modules["trainmover_executor.program.values.kinds.records"]
    monkeypatch.setattr(module, "packed_field", lambda _: pytest.fail("a record was packed again"))
    assert equal(portable(here), tree)


def test_old_records_are_forgotten():
    held = memory(300, most=300)
    first = records_of(held)
    held.extend(map(transition, range(1000, 1300)))
    later = records_of(held)
    assert first is not None
    assert later is not None
    assert later.nbytes < 2 * first.nbytes
    assert held[0].action == 1000


@pytest.mark.parametrize(
    ("layouts", "data"),
    [
        ([], [0, 0]),
        ([["tuple", [["number", "q"]]]], [0, 0, 1]),
        ([["tuple", [["number", "100s"]]]], [0, 0]),
        ([["tuple", [["tensor", "load", [1]]]]], [0, 0]),
        ([["tuple", [["tensor", "float32", [-1]]]]], [0, 0]),
        ([["tuple", [["scalar", "O"]]]], [0, 0]),
        ([["tuple", [["scalar", "no type"]]]], [0, 0]),
        ([["code os:system", []]], [0, 0]),
    ],
)
def test_what_does_not_parse(layouts, data):
    with pytest.raises(ValueError, match=r"record|no 'os"):
        records_from(layouts, torch.tensor(data, dtype=torch.uint8))
