"""Values of variables: each kind travels as a portable tree, and is overwritten in its place."""

from __future__ import annotations

import collections
import dataclasses
import enum
import random
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pytest
import torch

from trainmover_executor.program.values.compare import equal
from trainmover_executor.program.values.plain import is_plain
from trainmover_executor.program.values.restored import restored
from trainmover_executor.program.values.trees import portable
from trainmover_executor.state.packing.memory import on_devices_of
from trainmover_executor.state.packing.portable import pack_tree, unpack_tree

NAN = float("nan")


class Stage(enum.Enum):
    WARMUP = "warmup"
    MAIN = "main"


class Best(NamedTuple):
    loss: float
    at: int


@dataclasses.dataclass(frozen=True)
class Frozen:
    step: int
    rest: tuple[object, ...]


KINDS = {
    "none": None,
    "bool": True,
    "int": 2**70,
    "float": 0.1,
    "negative zero": -0.0,
    "nan": NAN,
    "complex": 1 - 2j,
    "str": "ü",
    "bytes": b"\0x",
    "list": [1, [2.5, None]],
    "tuple": (1, (2, "a")),
    "set": {1, 2},
    "frozenset": frozenset({"a"}),
    "dict": {"a": [1], 2: {"b": (3,)}},
    "tag of ours": {"is": "set", "items": [1]},
    "tensor": torch.tensor([[1.0, NAN], [-0.0, 4.0]]),
    "scalar tensor": torch.tensor(3),
    "bfloat16": torch.ones(3, dtype=torch.bfloat16),
    "array": np.arange(6, dtype=np.float32).reshape(2, 3),
    "unsigned array": np.arange(3, dtype=np.uint32),
    "scalar": np.float64(0.1),
    "unsigned scalar": np.uint64(2**63 + 1),
    "windows by name": {"loss": collections.deque([1.0], maxlen=3)},
    "counts": [collections.Counter("aab"), collections.OrderedDict(b=1, a=2)],
    "rows by name": {"a": collections.defaultdict(list, x=[1])},
    "pairs": {(1, 2): 3.0, (Stage.MAIN, "a"): 4.0},
    "member": Stage.MAIN,
    "named tuple": Best(0.5, 3),
    "frozen": [Frozen(1, (2.5, Stage.WARMUP))],
    "type of tensors": torch.bfloat16,
    "device": torch.device("cpu"),
    "path": Path("run/late"),
}


def elsewhere(value):
    """The portable tree of ``value`` after its way to another process."""
    return unpack_tree(pack_tree({"value": portable(value)}))["value"]


@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_comes_back_as_it_was(kind):
    value = KINDS[kind]
    assert is_plain(value)
    tree = elsewhere(value)
    assert equal(tree, portable(value))
    back = restored(tree, None)
    assert type(back) is type(value)
    assert equal(portable(back), portable(value))


def test_containers_within_containers_come_back_with_all_they_are():
    value = {"loss": collections.deque([1.0], maxlen=3), "a": collections.defaultdict(int, x=1)}
    back = restored(elsewhere(value), {})
    assert back["loss"].maxlen == 3
    back["a"]["new"] += 1
    assert [type(each) for each in back.values()] == [collections.deque, collections.defaultdict]


def test_functions_and_classes_are_known_by_their_names():
    for value in (torch.relu, torch.nn.functional.gelu, torch.nn.functional.smooth_l1_loss, Best):
        assert restored(elsewhere(value), None) is value


@pytest.mark.parametrize(
    "name",
    [
        "code os:system",
        "code torch:os.system",
        "member os:environ PATH",
        "code x",
        "dtype x",
    ],
)
def test_a_peer_can_name_nothing_but_the_program_and_torch(name):
    with pytest.raises(ValueError, match="this program has no"):
        restored({"is": "named", "name": name}, None)


@pytest.mark.parametrize("made", [list, tuple, lambda pair: {"a": pair[0], "b": pair[1]}])
def test_what_it_was_restored_from_does_not_change_with_it(made):
    """A step may be done again twice, and a vote's variables are compared behind its code."""
    tree = portable(made([torch.zeros(3), np.zeros(3)]))
    value = restored(tree, None)
    for each in value.values() if isinstance(value, dict) else value:
        each[:] = 1
    assert equal(tree, portable(made([torch.zeros(3), np.zeros(3)])))


def test_a_copy_does_not_change_with_the_value():
    value = {"a": [torch.zeros(2), np.zeros(2)]}
    tree = portable(value)
    value["a"][0].add_(1)
    value["a"][1] += 1
    assert not equal(tree, portable(value))


@pytest.mark.parametrize(
    ("live", "value"),
    [
        ([1], [2, 3]),
        ({1}, {2}),
        ({"a": 1}, {"b": 2}),
        (torch.zeros(2), torch.ones(2)),
        (torch.zeros(2, requires_grad=True) * 1, torch.ones(2)),
        (np.zeros(2), np.ones(2)),
        (collections.deque([1], maxlen=3), collections.deque([2, 3], maxlen=3)),
        (collections.Counter("a"), collections.Counter("bb")),
        (collections.OrderedDict(a=1), collections.OrderedDict(b=2)),
        (collections.defaultdict(int, a=1), collections.defaultdict(int, b=2)),
    ],
    ids=lambda value: type(value).__name__,
)
def test_what_holds_its_place_is_overwritten(live, value):
    other_name, factory = live, getattr(live, "default_factory", None)
    assert restored(elsewhere(value), live) is other_name
    assert equal(portable(other_name), portable(value))
    assert getattr(live, "default_factory", None) is factory
    assert getattr(live, "maxlen", None) == getattr(value, "maxlen", None)


@pytest.mark.parametrize(
    ("live", "value"),
    [
        (torch.zeros(2), torch.ones(3)),
        (np.zeros(2), np.ones(3)),
        (torch.zeros(2, requires_grad=True), torch.ones(2)),
        (torch.zeros(2, requires_grad=True)[:], torch.ones(2)),
        (torch.zeros(1).expand(2), torch.ones(2)),
        ("a", [1]),
        ((1,), (2,)),
        (1, 2),
    ],
)
def test_what_does_not_fit_is_replaced(live, value):
    back = restored(elsewhere(value), live)
    assert back is not live
    assert equal(portable(back), portable(value))


GENERATORS = {
    "torch": (torch.Generator, lambda g: torch.rand(3, generator=g).tolist()),
    "python": (random.Random, lambda g: [g.gauss(0, 1) for _ in range(3)]),
    "numpy": (np.random.default_rng, lambda g: g.standard_normal(3).tolist()),
    "legacy": (np.random.RandomState, lambda g: g.standard_normal(3).tolist()),
}


@pytest.mark.parametrize("kind", GENERATORS)
def test_a_generator_goes_on_with_the_same_numbers(kind):
    make, draw = GENERATORS[kind]
    one, other = make(), make()
    draw(one)
    draw(other)
    draw(other)
    assert is_plain(one)
    assert restored(elsewhere(one), other) is other
    assert draw(other) == draw(one)


@pytest.mark.parametrize(
    "value",
    [
        object(),
        "a" * 20_000,
        list(range(20_000)),
        torch.zeros(10_000),
        torch.zeros(2, requires_grad=True),
        np.array(["a"]),
        [object()],
        [random.Random()],  # it can be set, not made
        {object(): 3},
        {"rows": collections.defaultdict(lambda: 0)},  # nobody else can make its entries
        [[[[[[[[[1]]]]]]]]],
    ],
    ids=lambda value: str(value)[:20],
)
def test_what_is_not_plain(value):
    assert not is_plain(value)


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (1, True),
        (1, 1.0),
        (0.0, -0.0),
        ([1], (1,)),
        ([1], [1, 2]),
        ({"a": 1}, {"a": 2}),
        ({"a": 1}, {"b": 1}),
        (torch.zeros(1), torch.zeros(1, dtype=torch.float64)),
        (torch.zeros(1), torch.zeros(1, 1)),
        (torch.zeros(1), -torch.zeros(1)),
        (np.zeros(1), np.ones(1)),
        (torch.zeros(1), 0.0),
    ],
)
def test_what_differs_is_not_equal(one, other):
    assert equal(one, one)
    assert not equal(one, other)
    assert not equal(other, one)


class TestOnADevice:
    """``meta`` stands for a GPU, as far as tensors without elements can."""

    def test_a_tensor_comes_back_to_the_kind_of_device_that_it_was_on(self):
        tree = portable([torch.zeros(3, device="meta"), torch.ones(2)])
        assert tree[0]["device"] == "meta"
        tree[0]["value"] = torch.zeros(3)  # as it arrives at another rank
        there, here = restored(tree, None)
        assert (there.device.type, here.device.type) == ("meta", "cpu")

    def test_a_tensor_of_the_host_is_no_place_for_it(self):
        live = torch.zeros(3)
        tree = portable(torch.zeros(3, device="meta"))
        assert restored(tree, live).device.type == "meta"
        assert live.device.type == "cpu"

    def test_where_it_is_belongs_to_what_it_is(self):
        assert not equal(portable(torch.zeros(3, device="meta")), portable(torch.zeros(3)))

    def test_state_of_an_object_goes_to_where_its_own_is(self):
        own = {"shadow": [torch.zeros(2, device="meta"), torch.zeros(2)], "decay": 0.9}
        come = {"shadow": [torch.ones(2), torch.ones(2)], "decay": 0.8, "more": torch.ones(1)}
        moved = on_devices_of(own, come)
        assert [each.device.type for each in moved["shadow"]] == ["meta", "cpu"]
        assert (moved["decay"], moved["more"].device.type) == (0.8, "cpu")
        assert on_devices_of({"shadow": [torch.zeros(2)] * 2}, come) is come
