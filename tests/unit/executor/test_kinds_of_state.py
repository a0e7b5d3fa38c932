"""All that a program may keep its state in: it comes to a joiner, or people are told that it stays.

Each case is something in a variable, a change to it, and what shows the change. Nobody may lose one
of them without a word.
"""

from __future__ import annotations

import array
import collections
import contextvars
import dataclasses
import datetime as dt
import decimal
import enum
import fractions
import functools
import heapq
import io
import itertools
import multiprocessing
import queue
import random
import sys
import threading
import types
import uuid
from collections.abc import Callable
from concurrent.futures import Future
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pydantic
import pytest
import structlog
import torch
from torch import nn

from trainmover_executor.checks.left_behind import LeftBehind
from trainmover_executor.program.variables import LoopVariables
from trainmover_executor.state.packing.portable import pack_tree, unpack_tree


class Count:
    total = 0
    seen: list[int] = []  # noqa: RUF012 - as people write


class Model(pydantic.BaseModel):
    n: int = 0
    more: list[float] = []


@dataclasses.dataclass
class Data:
    n: int = 0
    more: list[int] = dataclasses.field(default_factory=list)


@dataclasses.dataclass(slots=True)
class Slots:
    n: int = 0
    inner: Data = dataclasses.field(default_factory=Data)


class Pair(NamedTuple):
    n: int
    x: float


class Phase(enum.Enum):
    WARM = 1
    MAIN = 2


class Parts(enum.Flag):
    HEAD = 1
    BODY = 2
    TAIL = 4


class Money(float):
    pass


class Name(str):
    pass


class Path2(tuple[int, ...]):
    pass


class Node:
    def __init__(self, value: int) -> None:
        self.value, self.next = value, None


def step(history: list[int] = []) -> list[int]:  # noqa: B006
    return history


def counter() -> tuple[Callable[[], int], Callable[[], int]]:
    n = 0

    def add() -> int:
        nonlocal n
        n += 1
        return n

    return add, lambda: n


def put(at: Any, value: Any) -> Callable[[Any], None]:
    return lambda held: held.__setitem__(at, value)


def every(*values: Any) -> Callable[[Any], None]:
    return put(slice(None), [*values])


def grown(held: Any) -> None:
    held.n += 3
    held.more.append(1)


class Case(NamedTuple):
    make: Callable[[], Any]
    change: Callable[[Any], object]
    show: Callable[[Any], Any] = repr


def powers():
    for base in (2, 3):
        value = 1
        while value < 9:
            yield value
            value *= base


COMES = {
    "a pydantic model": Case(Model, grown),
    "a dataclass": Case(Data, grown),
    "a dataclass with slots": Case(Slots, lambda held: grown(held.inner)),
    "an object with another": Case(
        lambda: Node(1),
        lambda held: setattr(held, "next", Node(2)),
        lambda held: held.next and held.next.value,
    ),
    "a named tuple": Case(lambda: [Pair(0, 0.0)], every(Pair(1, 2.0))),
    "members of enumerations": Case(
        lambda: [Phase.WARM, Parts.HEAD, Parts.HEAD],
        every(Phase.MAIN, Parts.BODY | Parts.TAIL, Parts(0)),
    ),
    "a heap": Case(list, lambda held: heapq.heappush(held, (1.0, "a", (2, 3)))),
    "a bounded queue": Case(
        lambda: collections.deque([[1]], maxlen=2),
        lambda held: (held[0].append(5), held.append([2])),
    ),
    "a tuple of lists and objects": Case(
        lambda: ([], {}, [Data()]),
        lambda held: (held[0].append(1), held[1].update(a=2), grown(held[2][0])),
    ),
    "a tuple with a generator": Case(
        lambda: (random.Random(1), Data()), lambda held: held[0].random(), lambda h: h[0].random()
    ),
    "objects in dictionaries": Case(
        lambda: {"a": {"b": [Data()]}}, lambda held: held["a"]["b"].append(Data(7))
    ),
    "tuples for keys": Case(dict, lambda held: held.update({(1, "a"): 2, 3: [4]})),
    "sets": Case(
        lambda: [frozenset([1]), {1}], lambda held: (put(0, frozenset([2]))(held), held[1].add(5))
    ),
    "small arrays": Case(
        lambda: [np.zeros(2, bool), np.zeros(2, np.float16), np.float32(1)],
        lambda held: (put(0, True)(held[0]), put(1, 2)(held[1]), put(2, np.float32(3))(held)),
    ),
    "small tensors": Case(
        lambda: [torch.zeros(2, dtype=torch.bfloat16), torch.zeros(2, dtype=torch.complex64)],
        lambda held: (held[0].add_(1), held[1].add_(1j)),
    ),
    "numbers, dates and paths": Case(
        lambda: [fractions.Fraction(1, 2), decimal.Decimal("1.5"), 1j, Path("a"), uuid.UUID(int=1)],
        every(fractions.Fraction(1, 3), decimal.Decimal("2.5"), 2j, Path("b"), uuid.UUID(int=2)),
    ),
    "times": Case(
        lambda: [dt.date(2020, 1, 1), dt.datetime(2020, 1, 1, tzinfo=dt.UTC), dt.timedelta(1)],
        every(dt.date(2021, 1, 1), dt.datetime(2021, 1, 1, tzinfo=dt.UTC), dt.timedelta(2)),
    ),
    "a dtype and a shape": Case(
        lambda: [torch.float32, torch.Size([1])], every(torch.float64, torch.Size([2]))
    ),
    "a count": Case(itertools.count, lambda held: (next(held), next(held))),
    "a generator of numpy's": Case(
        lambda: np.random.default_rng(1), lambda held: held.random(), lambda held: held.random()
    ),
    "a generator of torch's": Case(
        lambda: torch.Generator().manual_seed(1),
        lambda held: torch.rand(1, generator=held),
        lambda held: torch.rand(1, generator=held),
    ),
    "what a function closes over": Case(counter, lambda held: held[0](), lambda held: held[1]()),
    "what a function is given": Case(
        lambda: functools.partial(print, [1], sep=[2]),
        lambda held: (held.args[0].append(3), held.keywords["sep"].append(4)),
        lambda held: (held.args, held.keywords),
    ),
    "a default of a function": Case(
        lambda: types.FunctionType(step.__code__, globals(), "step", ([],)),
        lambda held: held().append(1),
        lambda held: held(),
    ),
    "a list behind its method": Case(
        lambda: [Data().more.append], lambda held: held[0](3), lambda held: held[0].__self__
    ),
    "a view of a dictionary": Case(
        lambda: (types.MappingProxyType(held := {}), held),
        lambda held: held[1].update(a=1),
        lambda held: dict(held[0]),
    ),
    "a dictionary in an object": Case(collections.UserDict, put("a", 1)),
    "a list in an object": Case(collections.UserList, lambda held: held.append(1)),
    "dictionaries behind each other": Case(
        lambda: collections.ChainMap({}, {"a": 1}), put("a", 2), dict
    ),
    "a generator's expression": Case(lambda: (2 * each for each in range(9)), next, next),
    "a generator": Case(powers, next, next),
}


class Asked:
    """State of the program in a process of its own, as ``AsyncVectorEnv`` keeps environments."""

    def __init__(self) -> None:
        context = multiprocessing.get_context("fork")
        self.pipe, there = context.Pipe()
        self.process = context.Process(target=count, args=(there,), daemon=True)
        self.process.start()

    def ask(self) -> None:
        for _ in range(50):
            self.pipe.send(None)
            self.pipe.recv()


def count(pipe) -> None:
    for number in itertools.count():
        pipe.recv()
        pipe.send(number)


IS_SAID = {
    "a process": Case(Asked, Asked.ask),
    "an iterator of a list": Case(lambda: iter([1, 2, 3]), next, next),
    "an iterator of a range": Case(lambda: iter(range(9)), next, next),
    "an iterator backwards": Case(lambda: reversed([1, 2, 3]), next, next),
    "an iterator that counts": Case(lambda: enumerate([1, 2, 3]), next, next),
    "an iterator without an end": Case(lambda: itertools.cycle([1, 2, 3]), next, next),
    "an iterator of a program's own": Case(
        lambda: (str(each) for each in map(int, "1234")), next, next
    ),
    "an array of Python's": Case(lambda: array.array("d", [0]), lambda held: held.append(2.0)),
    "bytes that change": Case(lambda: bytearray(b"a"), lambda held: held.extend(b"b")),
    "a file in memory": Case(io.StringIO, lambda held: held.write("a")),
    "a queue": Case(queue.Queue, lambda held: held.put(1)),
    "a queue that a thread fills again": Case(
        queue.Queue, lambda held: (held.put(1), held.get()), lambda held: held.unfinished_tasks
    ),
    "a variable of a context": Case(
        lambda: contextvars.ContextVar("n"), lambda held: held.set([1]), lambda held: held.get()
    ),
    "a variable of a thread": Case(threading.local, lambda held: setattr(held, "n", 1), vars),
    "an array with fields": Case(lambda: np.zeros(2, [("a", "i4"), ("b", "f8")]), put("a", 3)),
    "an array of strings": Case(lambda: np.array(["a", "b"]), put(0, "c")),
    "an array of objects": Case(lambda: np.array([1, "x"], object), put(0, "c")),
    "a masked array": Case(lambda: np.ma.array([1, 2], mask=[0, 1]), put(0, 5)),
    "a sparse tensor": Case(lambda: [torch.eye(2).to_sparse()], put(0, torch.eye(3).to_sparse())),
    "numbers of a class": Case(lambda: [Money(1), object()], put(0, Money(2))),
    "names of a class": Case(lambda: [Name("a"), object()], put(0, Name("b"))),
    "tuples of a class": Case(lambda: [Path2((1,)), object()], put(0, Path2((2,)))),
}


class Metric(nn.Module):
    """As torchmetrics has them: what it counts is in no ``state_dict``."""

    def __init__(self) -> None:
        super().__init__()
        self.total, self.seen = 0, torch.zeros(1)
        self.parts: list[torch.Tensor] = []

    def update(self, value: int) -> None:
        self.total += value
        self.seen += 1
        self.parts.append(torch.tensor(value))


class Environment:
    """As gymnasium has them: wrapped in as many others as somebody likes."""

    def __init__(self) -> None:
        self.state = np.zeros(2)

    def step(self) -> None:
        self.state = self.state + 1


class Wrapper(Environment):
    def __init__(self, inside: Environment) -> None:
        self.inside, self.steps = inside, 0

    def step(self) -> None:
        self.steps += 1
        self.inside.step()

    def shown(self) -> list[Any]:
        inside = self.inside
        rest = inside.shown() if isinstance(inside, Wrapper) else [inside.state]
        return [self.steps, *rest]


def wrapped(times: int) -> Environment:
    return Wrapper(wrapped(times - 1)) if times else Environment()


COMES["an environment in a dozen wrappers"] = Case(
    lambda: [wrapped(12)], lambda all_: all_[0].step(), show=lambda all_: all_[0].shown()
)
COMES["a metric"] = Case(
    Metric, lambda metric: metric.update(3), show=lambda one: (one.total, one.seen, one.parts)
)


class Outcome(NamedTuple):
    told: dict[str, Any]
    shown: str
    missing: list[str]
    said: list[str]


def run(case: Case, told: dict[str, Any] | None) -> Outcome:
    held = case.make()
    frame = sys._getframe()
    variables, left, missing = LoopVariables([]), LeftBehind(), list[str]()
    variables.changed(frame, asks=True)
    left.look(variables.passed_over(frame), frame, memory=())
    if told is None:
        case.change(held)
    else:
        missing = [path for path in variables.load(told, frame) if ".held" in path]
    told = unpack_tree(pack_tree(variables.changed(frame, asks=True)))
    with structlog.testing.capture_logs() as logs:
        left.look(variables.passed_over(frame), frame, memory=(), was_plain=variables.was_plain)
    said = [line["variable"] for line in logs if ".held" in line["variable"]]
    return Outcome(told, repr(case.show(held)), missing, said)


@pytest.mark.parametrize("name", COMES)
def test_it_comes_to_a_joiner(name: str) -> None:
    there = run(COMES[name], None)
    here = run(COMES[name], there.told)
    assert (here.shown, here.missing) == (there.shown, [])
    assert there.said == []


@pytest.mark.parametrize("name", IS_SAID)
def test_people_are_told_that_it_stays(name: str) -> None:
    there = run(IS_SAID[name], None)
    assert len(there.said) == 1


def test_people_are_told_of_a_name_for_one_object_of_a_library_and_then_another() -> None:
    variables, left, frame = LoopVariables([]), LeftBehind(), sys._getframe()
    batch, same = Future[int](), Future[int]()
    left.look(variables.passed_over(frame), frame, memory=())
    batch.set_result(1)
    batch = Future[int]()
    with structlog.testing.capture_logs() as logs:
        left.look(variables.passed_over(frame), frame, memory=())
    assert [line["variable"].rpartition(".")[2] for line in logs] == ["batch"]
    assert not batch.done()
    assert not same.done()


def test_attributes_of_a_class_come() -> None:
    def attempt(told: dict[str, Any] | None) -> dict[str, Any]:
        Count.total, Count.seen = 0, []
        kind, variables = Count, LoopVariables([])
        variables.changed(sys._getframe())
        if told is None:
            kind.total, kind.seen = 3, [1]
            told = unpack_tree(pack_tree(variables.changed(sys._getframe())))
        else:
            variables.load(told, sys._getframe())
        return told if kind is Count else {}

    told = attempt(None)
    attempt(told)
    assert (Count.total, Count.seen) == (3, [1])
