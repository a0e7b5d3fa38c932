"""What libraries keep deep inside of their objects is found by looking far, once."""

from __future__ import annotations

import multiprocessing
import sys
from types import ModuleType

import pytest
import torch
from torch import nn

from trainmover_executor.checks.lookout import Lookout
from trainmover_executor.program.variables import LoopVariables
from trainmover_executor.state.packing.portable import pack_tree, unpack_tree
from trainmover_executor.state.training import TrainingState

SOURCE = """
class Engine:
    def __init__(self, **held):
        vars(self).update(held)

class Handler:
    def __init__(self, **held):
        vars(self).update(held)
"""


@pytest.fixture
def library(monkeypatch):
    """A package that is installed, as far as its path says."""
    there = ModuleType("engine_of_others")
    there.__file__ = "/opt/env/site-packages/engine_of_others/__init__.py"
    monkeypatch.setitem(sys.modules, there.__name__, there)
    exec(compile(SOURCE, there.__file__, "exec"), vars(there))
    return there.Engine, there.Handler


def deep(library, **held):
    """Objects of two classes in each other, which do not wrap each other."""
    engine, handler = library
    inside = engine(**held)
    for _ in range(3):
        inside = engine(inside=handler(inside=inside))
    return inside


def leaf(engine):
    """What is innermost; a variable for it would be looked at."""
    while hasattr(engine, "inside"):
        engine = engine.inside
    return engine


def change(engine, **values):
    vars(leaf(engine)).update(values)


def look(variables, frame):
    return variables.changed(frame, asks=True)


def names(tree):
    return {path.rpartition(".")[2] for path in tree if "@py" not in path}


def test_what_changes_there_is_carried(library):
    engine = deep(library, count=0, mean=torch.zeros(5000), still=3)
    here, frame = LoopVariables([]), sys._getframe()
    look(here, frame)
    here.explore(frame, ends=False)
    change(engine, count=1, mean=torch.ones(5000))
    assert not {"count", "mean"} & names(look(here, frame))
    here.explore(frame, ends=True)
    tree = look(here, frame)
    assert {"count", "mean"} <= names(tree)
    contents = here.contents
    change(engine, count=7, mean=torch.ones(5000) * 9)

    there = LoopVariables([])
    look(there, frame)
    assert there.load(unpack_tree(pack_tree(tree)), frame, contents=contents) == []
    assert (leaf(engine).count, leaf(engine).still) == (1, 3)
    assert torch.equal(leaf(engine).mean, torch.ones(5000))
    assert "count" in names(look(there, frame)), "a joiner tells it from then on"
    change(engine, count=2)  # what is not needed on is not looked at


def test_what_does_not_change_costs_nothing(library):
    engine = deep(library, count=0)
    variables, frame = LoopVariables([]), sys._getframe()
    look(variables, frame)
    variables.explore(frame, ends=False)
    variables.explore(frame, ends=True)
    change(engine, count=5)
    assert "count" not in names(look(variables, frame))
    change(engine, count=6)


def test_a_step_that_is_done_again_has_it_too(library):
    engine = deep(library, count=0)
    variables, frame = LoopVariables([]), sys._getframe()
    look(variables, frame)
    variables.explore(frame, ends=False)
    change(engine, count=1)
    variables.explore(frame, ends=True)
    variables.keep(frame)
    change(engine, count=2)
    variables.put_back(frame)
    assert leaf(engine).count == 1


def test_it_is_carried_from_the_second_step_on(library):
    """A machine that died in the second step took it along: it was known after the third only."""
    engine = deep(library, count=0)
    variables, frame = LoopVariables([]), sys._getframe()
    state = TrainingState(models=[nn.Linear(1, 1)], optimizers=[], others={})
    lookout = Lookout(state, variables)
    for step in range(2):
        look(variables, frame)
        lookout.look(frame, committed=step)
        change(engine, count=step + 1)
    assert "count" in names(look(variables, frame))
    change(engine, count=6)


def test_numbers_in_shared_memory_are_carried():
    counter = multiprocessing.get_context("spawn").Value("i", 0, lock=multiprocessing.Lock())
    counter.get_lock().acquire()  # by a process that has died, say
    variables, frame = LoopVariables([]), sys._getframe()
    look(variables, frame)
    counter.get_obj().value = 4
    tree = look(variables, frame)
    counter.get_obj().value = 9
    variables.load(unpack_tree(pack_tree(tree)), frame)
    assert counter.get_obj().value == 4
