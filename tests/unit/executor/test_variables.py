"""The program's variables: which are found, which are needed, and how they are set elsewhere."""

from __future__ import annotations

import functools
import gc
import random
import sys
import threading
import types
import weakref
from typing import Any

import pytest
import torch
from torch.nn.parallel import DistributedDataParallel

from trainmover_executor.program.frames import write_locals
from trainmover_executor.program.liveness import deleted_names, live_names
from trainmover_executor.program.looking import modules
from trainmover_executor.program.variables import LoopVariables
from trainmover_executor.state.packing.portable import pack_tree, unpack_tree

SCRIPT = """
import random
class Meter:
    def __init__(self):
        self.sum, self.count = 0.0, 0
meter, meters = Meter(), {"loss": Meter()}
host = "node-0"
order = random.Random(3)
count, unused, fresh = 0, 0, 0
for i in ask():
    fresh = i * 2
    print_(fresh, host)
    count += 1
    unused = 7
    meter.sum += count
    meters["loss"].count += 1
    order.random()
print_(count)
"""


def run(steps: int, *, at_end: Any) -> dict[str, Any]:
    """Run the script as ``__main__`` is; ``at_end(frame)`` is called where it asks once more."""
    names: dict[str, Any] = {"__name__": "program", "print_": lambda *_: None}

    def ask():
        for index in range(steps):
            at_end(sys._getframe(1), last=False)
            yield index
        at_end(sys._getframe(1), last=True)

    names["ask"] = ask
    sys.modules["program"] = types.ModuleType("program")
    try:
        exec(compile(SCRIPT, "/tmp/program.py", "exec"), names)
    finally:
        del sys.modules["program"]
    return names


def found(steps: int) -> dict[str, Any]:
    """What changed in the script's own module."""
    variables, seen = LoopVariables([]), dict[str, Any]()

    def look(frame, *, last: bool) -> None:
        seen.update(variables.changed(frame))

    run(steps, at_end=look)
    return {path: tree for path, tree in seen.items() if path.startswith("program.")}


def test_what_changes_and_is_needed_is_found():
    names = {path.partition(".")[2] for path in found(3)}
    assert {"count", "order"} <= names
    assert not names & {"host", "unused", "fresh"}


def test_another_process_goes_on_with_them():
    tree = unpack_tree(pack_tree(found(5)))
    variables = LoopVariables([])

    def take_over(frame, *, last: bool) -> None:
        if last:
            assert variables.load(tree, frame) == []

    names = run(2, at_end=take_over)
    other = random.Random(3)
    for _ in range(5):
        other.random()
    assert names["count"] == 5
    assert names["order"].random() == other.random()


def test_what_was_kept_is_put_back():
    variables = LoopVariables([])

    def program():
        total, seen, best = 0, [], torch.zeros(2)
        variables.keep(sys._getframe())
        total += 1
        seen.append(1)
        best += 1
        variables.put_back(sys._getframe())
        return total, seen, best.tolist()

    assert program() == (0, [], [0, 0])


def test_what_the_session_knows_is_not_looked_at():
    known = [1, 2]

    class Holder:
        def __init__(self) -> None:
            self.known = known

    known_holder = Holder()
    variables = LoopVariables([known_holder])
    variables.keep(sys._getframe())
    assert not any("known_holder" in path for path in variables.kept)  # other tests have globals


class Normalizer:
    def __init__(self, *, width: int) -> None:
        self.mean = torch.zeros(width)

    def state_dict(self) -> dict[str, Any]:
        return {"mean": self.mean}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.mean = state["mean"]


def test_the_small_state_of_what_the_session_was_given_may_be_each_ranks_own():
    small, large = Normalizer(width=4), Normalizer(width=100_000)
    extras = {"small": small, "large": large}
    variables = LoopVariables([small, large], extras=extras)
    assert variables.changed(None).keys() & {"session.small", "session.large"} == set()
    small.mean = small.mean + 1
    large.mean = large.mean + 1
    told = unpack_tree(pack_tree(variables.changed(None)))
    assert "session.large" not in told
    small.mean.zero_()
    variables.load({"session.small": told["session.small"]}, None)
    assert small.mean.tolist() == [1, 1, 1, 1]


class Gate(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = torch.nn.Linear(2, 2)
        self.width, self.temperature, self.load = 2, 1.0, [0, 0]

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.temperature *= 0.5
        self.load[0] += len(x)
        return self.linear(x) / self.temperature


def test_what_modules_change_of_themselves_is_kept_and_told():
    model = torch.nn.Sequential(Gate(), torch.nn.Dropout())
    variables = LoopVariables([], models=[model])
    variables.changed(None)
    variables.keep(None)
    model(torch.ones(3, 2))
    told = unpack_tree(pack_tree(variables.changed(None)))
    mine = {path: tree for path, tree in told.items() if path.startswith("session.model")}
    assert mine == {"session.model[0].0.temperature": 0.5, "session.model[0].0.load": [3, 0]}
    variables.put_back(None)
    assert (model[0].temperature, model[0].load) == (1.0, [0, 0])
    variables.load(mine, None)
    assert (model[0].temperature, model[0].load) == (0.5, [3, 0])


def test_what_a_program_sets_in_its_modules_is_kept_and_told(monkeypatch):
    monkeypatch.setattr(modules, "program_frames", lambda frame: [frame.f_back.f_back])
    model = torch.nn.Sequential(Gate())
    variables = LoopVariables([], models=[model])
    variables.changed(None)
    variables.keep(None)
    _widen(model)
    told = unpack_tree(pack_tree(variables.changed(None)))
    assert told["session.model[0].0.width"] == 3
    variables.put_back(None)
    assert model[0].width == 2


def _widen(model: Any) -> None:
    model[0].width += 1


class Residuals:
    def __init__(self) -> None:
        self.rounds, self.owed = 0, {0: torch.zeros(3)}


def test_what_communication_hooks_keep_is_found_though_nothing_else_refers_to_it():
    def hook(state: Residuals, bucket: Any) -> None:
        del bucket
        state.rounds += 1
        state.owed[0] = state.owed[0] + 1

    model = DistributedDataParallel.__new__(DistributedDataParallel)  # without a process group
    torch.nn.Module.__init__(model)
    model._comm_hooks = [(hook, Residuals())]
    variables = LoopVariables([], models=[model])
    variables.changed(None)
    variables.keep(None)
    hook(model._comm_hooks[0][1], None)
    told = unpack_tree(pack_tree(variables.changed(None)))
    path = "session.model[0]._comm_hooks[0].state"
    assert told[f"{path}.rounds"] == 1
    variables.put_back(None)
    state = model._comm_hooks[0][1]
    assert (state.rounds, state.owed[0].tolist()) == (0, [0.0, 0.0, 0.0])
    variables.load({key: value for key, value in told.items() if key.startswith(path)}, None)
    assert (state.rounds, state.owed[0].tolist()) == (1, [1.0, 1.0, 1.0])


def test_modules_that_a_program_lets_go_of_are_not_kept():
    best = torch.nn.Sequential(Gate())
    gone = weakref.ref(best[0])
    variables = LoopVariables([])
    variables.keep(sys._getframe())
    assert any(path.endswith("0.temperature") for path in variables.kept)
    best.eval()
    del best
    variables.keep(sys._getframe())
    gc.collect()
    assert gone() is None


class Config:
    scale = 1.0


def test_what_functions_close_over_and_classes_hold_is_found_and_set():
    def counting():
        count = 0

        def step():
            nonlocal count
            count += 1
            step.calls = count
            return count

        step.calls = 0
        return step

    def program(steps, *, take=None):
        step, partly = counting(), functools.partial(counting())
        method = random.Random(3).random
        config = Config
        Config.scale = 1.0
        for _ in range(steps):
            variables.changed(sys._getframe())
            step(), partly(), method()
            config.scale *= 0.5
        if take is not None:
            assert variables.load(take, sys._getframe()) == []
        changed = variables.changed(sys._getframe())
        return changed, (step(), partly(), step.calls, config.scale, method())

    variables = LoopVariables([])
    tree, theirs = program(5)
    assert any(path.endswith("Config.scale") for path in tree)
    assert {path.partition(".")[2] for path in tree} >= {"step.count", "step.calls"}
    variables = LoopVariables([])
    _, ours = program(2, take=unpack_tree(pack_tree(tree)))
    assert ours == theirs


class TestWriteLocals:
    def test_a_function(self):
        one = 1
        write_locals(sys._getframe(), {"one": 2})
        assert one == 2

    def test_a_closure_cell(self):
        one = 1

        def read():
            return one

        write_locals(sys._getframe(), {"one": 2})
        assert (one, read()) == (2, 2)

    def test_a_variable_that_is_not_bound_yet(self):
        write_locals(sys._getframe(), {"later": 2})
        assert later == 2  # noqa: F821 - it is a local: see below
        later = 3  # noqa: F841 - binds the name in this function

    def test_a_module(self):
        names = {"write": lambda: write_locals(sys._getframe(1), {"one": 2})}
        exec("one = 1\nwrite()\nseen = one", names)
        assert names["seen"] == 2


class TestLiveNames:
    def test_only_what_is_read_before_it_is_set(self):
        counter, batch = 0, None
        for index in range(2):
            live = live_names(sys._getframe())
            batch = index
            counter += batch
        assert "counter" in live
        assert "batch" not in live
        assert "index" in live

    def test_what_an_inner_function_reads_is_always_needed(self):
        inner = 1

        def read():
            return inner

        assert "inner" in live_names(sys._getframe())
        assert read() == 1

    def test_what_is_deleted_has_to_stand_for_something(self):
        first, second = 1, 2
        frame = sys._getframe()
        live, deleted = live_names(frame), deleted_names(frame)
        assert first == 1
        del first, second
        assert "first" in live
        assert "second" not in live
        assert deleted & {"first", "second"} == {"second"}

    def test_what_is_deleted_is_bound_where_no_step_has_set_it(self):
        def epoch(steps):
            for loss in steps:
                assert loss
            LoopVariables([]).bind_deleted(sys._getframe())
            del loss
            return "over"

        assert epoch([]) == "over"

    @pytest.mark.parametrize("flag", [True, False])
    def test_one_way_of_two_that_reads_it_is_enough(self, flag):
        value = 1
        live = live_names(sys._getframe())
        if flag:
            value = 2
        assert "value" in live
        assert value == 1 + flag


def test_threads_of_the_program_may_change_variables_and_import_modules_meanwhile() -> None:
    meters, over = {str(at): float(at) for at in range(300)}, threading.Event()

    def change() -> None:
        at = 300
        while not over.wait(0.001):
            meters[str(at)] = 0.0
            sys.modules[f"imported_{at}"] = types.ModuleType(f"imported_{at}")
            for name in list(meters)[:-300]:
                meters.pop(name, None)
            at += 1

    variables, interval = LoopVariables([]), sys.getswitchinterval()
    thread = threading.Thread(target=change)
    sys.setswitchinterval(1e-4)
    thread.start()
    try:
        for _ in range(10):
            found = variables.changed(sys._getframe())
            variables.keep(sys._getframe())
            variables.put_back(sys._getframe())
            variables.passed_over(sys._getframe())
    finally:
        over.set()
        thread.join()
        sys.setswitchinterval(interval)
        for name in [name for name in sys.modules if name.startswith("imported_")]:
            del sys.modules[name]
    assert any(path.endswith(".meters") for path in found)
