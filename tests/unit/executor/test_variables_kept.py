"""Variables are put back into the objects that held them."""

from __future__ import annotations

import dataclasses
import sys
from concurrent.futures import Future
from types import SimpleNamespace
from unittest.mock import Mock
from weakref import ref

import torch

from trainmover_executor.program.variables import LoopVariables
from trainmover_executor.state.packing.portable import pack_tree, unpack_tree


def test_the_batch_of_a_step_is_not_overwritten_with_that_of_the_step_before():
    variables = LoopVariables([])
    frame = sys._getframe()
    batch = torch.zeros(3)
    variables.keep(frame)
    earlier, batch = batch, torch.ones(3)
    now = batch
    variables.put_back(frame)
    assert now.tolist() == [1, 1, 1]
    assert batch is earlier


def test_a_list_that_grew_is_put_back_in_place():
    variables = LoopVariables([])
    frame = sys._getframe()
    seen = [1]
    same = seen
    variables.keep(frame)
    seen.append(2)
    variables.put_back(frame)
    assert seen is same
    assert same == [1]


def test_a_name_for_what_cannot_be_carried_stands_for_the_same_again():
    variables, frame = LoopVariables([]), sys._getframe()
    batch = Future()
    variables.keep(frame)
    earlier, batch = batch, Future()
    variables.put_back(frame)
    assert batch is earlier


class Watched(torch.nn.Module):
    def forward(self, x):
        self.activation = x * 2
        return self.activation


def test_what_a_module_holds_of_the_step_before_is_not_kept_alive():
    """It hangs on the graph of that step, which would take as much memory again."""
    net = Watched()
    net(torch.zeros(9000))
    variables, frame, old = LoopVariables([], models=[net]), sys._getframe(), ref(net.activation)
    variables.keep(frame)
    net(torch.zeros(9000))
    assert old() is None


def elsewhere(tree):
    return unpack_tree(pack_tree(tree))


def test_two_names_of_one_list_are_two_names_of_one_list_at_another_process():
    def program(*, take=None):
        variables, frame = LoopVariables([]), sys._getframe()
        history, losses, best = {}, [], []
        variables.changed(frame)
        if take is None:
            history[0] = best = losses = [0.5]
            history[1] = [0.5]
        else:
            variables.load(take, frame)
        told = variables.changed(frame)
        losses.append(0.25)
        return told, history, losses, best

    told, *_ = program()
    _, history, losses, best = program(take=elsewhere(told))
    assert history[0] is losses is best
    assert (history[0], history[1]) == ([0.5, 0.25], [0.5])


def test_one_list_of_two_names_becomes_two():
    def program(*, take=None):
        variables, frame = LoopVariables([]), sys._getframe()
        best = now = [0.0]
        variables.changed(frame)
        if take is None:
            best, now = [1.0], [2.0]
        else:
            variables.load(take, frame)
        return variables.changed(frame), best, now

    told, *_ = program()
    _, best, now = program(take=elsewhere(told))
    assert (best, now) == ([1.0], [2.0])


def test_a_member_that_two_names_share_is_shared_again_when_it_is_put_back():
    variables, frame = LoopVariables([]), sys._getframe()
    losses = [1.0]
    history = {0: losses}
    variables.keep(frame)
    losses.append(2.0)
    history[1] = []
    variables.put_back(frame)
    assert history == {0: [1.0]}
    assert history[0] is losses


@dataclasses.dataclass(slots=True)
class Meter:
    total: float = 0.0


@dataclasses.dataclass(frozen=True)
class Trial:
    """Its model cannot be carried; its score can, where it is."""

    model: object
    score: float


calls = 0


def test_globals_of_the_programs_modules_slots_and_deep_objects_are_found():
    global calls  # noqa: PLW0603 - what is tested
    deep = SimpleNamespace(a=[SimpleNamespace(b={"c": SimpleNamespace(d=[Meter()])})])
    trial = Trial(object(), 0.5)
    variables, frame = LoopVariables([]), sys._getframe()
    variables.keep(frame)
    meter = deep.a[0].b["c"].d[0]
    meter.total = 1.0
    calls += 1
    object.__setattr__(trial, "score", 0.25)
    variables.put_back(frame)
    assert (meter.total, calls, trial.score) == (0.0, 0, 0.5)


def squares(value):
    return value * value


def cubes(value):
    return value**3


def test_a_name_that_stands_for_another_function_is_put_back():
    variables, frame = LoopVariables([]), sys._getframe()
    loss = squares
    variables.keep(frame)
    if loss(2) == 4:
        loss = cubes
    variables.put_back(frame)
    assert loss(2) == 4


def test_lists_of_a_data_set_are_carried():
    class Pool(torch.utils.data.Dataset):
        def __init__(self):
            self.chosen = [1]

    variables, frame = LoopVariables([]), sys._getframe()
    pool = Pool()
    variables.keep(frame)
    pool.chosen.append(2)
    variables.put_back(frame)
    assert pool.chosen == [1]


def test_constants_that_many_names_share_are_let_be():
    variables, frame, put = LoopVariables([]), sys._getframe(), Mock()

    class Watched:
        def __init__(self):
            self.one = self.other = ()

        def __setattr__(self, name, value):
            put(name)
            super().__setattr__(name, value)

    watched = Watched()
    variables.keep(frame)
    put.reset_mock()
    variables.put_back(frame)
    assert not put.called
    assert watched.one == ()


def lazily(steps, *, variables, take=None):
    """A program that makes its generator in the first step, and keeps it in an object."""
    noise = Noise()
    variables.changed(sys._getframe(), asks=True)
    variables.keep(sys._getframe(), whole=True)
    before = variables.kept
    for _ in range(steps):
        noise.draw()
        variables.note_generators(sys._getframe())
    if take is None:
        return variables.changed(sys._getframe(), asks=True), noise.draw()
    variables.put(before, sys._getframe())
    assert noise.generator is None
    return variables.load(take, sys._getframe()), noise.draw()


class Noise:
    generator: torch.Generator | None = None

    def __init__(self) -> None:
        self.generator = None

    def draw(self) -> float:
        if self.generator is None:
            self.generator = torch.Generator().manual_seed(3)
        return torch.rand((), generator=self.generator).item()


def test_a_generator_that_shadow_iterations_made_stands_where_the_job_has_one():
    """It was put back to none behind them, and none can be made of what another process tells."""
    told, drawn = lazily(5, variables=LoopVariables([]))
    assert lazily(2, variables=LoopVariables([]), take=told) == ([], drawn)


def test_a_generator_that_was_never_made_here_is_named():
    told, _ = lazily(5, variables=LoopVariables([]))
    missing, _ = lazily(0, variables=LoopVariables([]), take=told)
    assert [path.rpartition(".")[2] for path in missing] == ["generator"]
