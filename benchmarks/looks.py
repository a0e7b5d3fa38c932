"""How long it takes to look at the variables of a program that brings many modules along.

    python -m benchmarks.looks --json --modules 300
    python -m benchmarks.looks --json --records 900     # a replay memory of so many transitions
    python -m benchmarks.looks --json --layers 1000     # a model of so many layers
    python -m benchmarks.looks --json --objects 2000    # so many objects made in training
    python -m benchmarks.looks --json --batches         # prints of batches

Each module has constants, tables, twenty functions and five classes, as those of a repository do.
``first_ms``: all of them are gone through. ``still_ms``: they are compared with what they held when
the rank began to train; a step takes three such looks. Medians of ``--times`` looks. With
``--records``: ``look_ms`` after a transition of four tensors was added, ``keep_ms`` in front of a
body, ``pack_ms`` for the neighbours, and ``nbytes`` that go to each. With ``--layers``: where no
layer has a hook, where each has one of torch's, and where every tenth has one that counts. With
``--objects``: ``look_ms`` at a rank, and ``load_ms`` once at a joiner that has none of them. With
``--batches``: microseconds for the print of a batch of images, and for one of tokens.
"""

from __future__ import annotations

import argparse
import importlib
import json
import statistics
import sys
import tempfile
import time
from collections import deque
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import nn

from trainmover_executor.feed.batches.prints import print_of_batch
from trainmover_executor.program.variables import LoopVariables
from trainmover_executor.state.packing.portable import pack_tree, unpack_tree

_CLASS = """
class C{at}:
    scale = {at}
    table = {{"a": {at}}}

    def __init__(self):
        self.x = 1
"""


def source(module: int) -> str:
    constants = [f"CONST_{at} = {at * 1.5}" for at in range(10)]
    functions = [f"def f{at}(x, y={at}):\n    return x + y + CONST_3" for at in range(20)]
    classes = [_CLASS.format(at=at) for at in range(5)]
    tables = [f"NAME = 'module {module}'", "DEFAULTS = {'a': 1, 'b': [1, 2], 'c': {'d': 4}}"]
    return "\n".join(["import math", *tables, *constants, *functions, *classes])


def median_ms(work: Callable[[], object], *, times: int) -> float:
    taken = []
    for _ in range(times):
        started = time.perf_counter()
        work()
        taken.append(time.perf_counter() - started)
    return round(statistics.median(taken) * 1e3, 3)


def measure(modules: int, *, times: int) -> dict[str, float]:
    with tempfile.TemporaryDirectory() as name:
        sys.path.insert(0, name)
        for module in range(modules):
            (Path(name) / f"repository_{module}.py").write_text(source(module))
            importlib.import_module(f"repository_{module}")
        variables = LoopVariables([])
        variables.changed(None)
        first = median_ms(lambda: variables.changed(None), times=times)
        variables.settle()
        variables.changed(None)
        still = median_ms(lambda: variables.changed(None), times=times)
        sys.path.remove(name)
    return {"modules": modules, "first_ms": first, "still_ms": still}


class Transition(NamedTuple):
    state: torch.Tensor
    action: torch.Tensor
    next_state: torch.Tensor
    reward: torch.Tensor


def transition() -> Transition:
    return Transition(torch.randn(1, 4), torch.ones(1, 1), torch.randn(1, 4), torch.randn(1))


def measure_records(count: int, *, times: int) -> dict[str, float]:
    memory, variables, frame = deque[Transition](maxlen=count), LoopVariables([]), sys._getframe()
    memory.extend(transition() for _ in range(count))
    variables.changed(frame, asks=True)
    told: dict[str, Any] = {}

    def look() -> None:
        memory.append(transition())
        told.update(variables.changed(frame, asks=True))

    taken = {"look_ms": median_ms(look, times=times)}
    taken["keep_ms"] = median_ms(lambda: variables.keep(frame), times=times)
    taken["pack_ms"] = median_ms(lambda: pack_tree(told), times=times)
    return {"records": len(memory), **taken, "nbytes": len(pack_tree(told))}


class Counts:
    """A hook with a number that nothing else names."""

    def __init__(self) -> None:
        self.calls = 0

    def __call__(self, *_: object) -> None:
        self.calls += 1


def measure_hooks(layers: int, *, times: int) -> dict[str, float]:
    model = nn.Sequential(*(nn.Linear(8, 8) for _ in range(layers)))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    variables = LoopVariables([], models=[model], optimizers=[optimizer])

    def look() -> None:
        variables.changed(None, asks=True)

    look()
    taken = {"bare_ms": median_ms(look, times=times)}
    for each in model:
        each.register_forward_hook(nn.Module.type)
    taken["torch_ms"] = median_ms(look, times=times)
    for each in [*model][::10]:
        each.register_forward_hook(Counts())
    return {"layers": layers, **taken, "counting_ms": median_ms(look, times=times)}


class Note:
    """An object that a program makes while it trains, and keeps."""

    def __init__(self, number: int, parent: Note | None) -> None:
        self.number, self.parent, self.seen = number, parent, [number]


def measure_objects(count: int, *, times: int) -> dict[str, float]:
    def program(take: dict[str, Any] | None) -> tuple[dict[str, Any], float]:
        variables, frame = LoopVariables([]), sys._getframe()
        notes: dict[int, list[Note]] = {}
        last: Note | None = None
        variables.changed(frame)
        if take is None:
            for number in range(count):
                last = Note(number, last)
                notes.setdefault(number // 100, []).append(last)  # a longer list is not looked into
            told = variables.changed(frame)
            taken = median_ms(lambda: variables.changed(frame), times=times)
        else:
            told, taken = take, median_ms(lambda: variables.load(take, frame), times=1)
        if sum(map(len, notes.values())) != count or last is not notes[(count - 1) // 100][-1]:
            raise AssertionError("the objects did not come")
        return told, taken

    told, look_ms = program(None)
    _, load_ms = program(unpack_tree(pack_tree(told)))
    return {"objects": count, "look_ms": look_ms, "load_ms": load_ms}


def measure_prints(*, times: int) -> dict[str, float]:
    images = torch.rand(64, 3, 224, 224), torch.arange(64)
    tokens = {"input_ids": torch.arange(32 * 512).view(32, 512), "lengths": list(range(32))}
    kinds = {"images_us": images, "tokens_us": tokens}
    return {
        name: median_ms(lambda batch=batch: print_of_batch(batch), times=times) * 1e3
        for name, batch in kinds.items()
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--modules", type=int, default=300)
    parser.add_argument("--records", type=int)
    parser.add_argument("--layers", type=int)
    parser.add_argument("--objects", type=int)
    parser.add_argument("--batches", action="store_true")
    parser.add_argument("--times", type=int, default=50)
    parser.add_argument("--json", action="store_true", help="one line instead of a readable form")
    options = parser.parse_args()
    if options.records:
        found = measure_records(options.records, times=options.times)
    elif options.objects:
        found = measure_objects(options.objects, times=options.times)
    elif options.batches:
        found = measure_prints(times=options.times)
    elif options.layers:
        found = measure_hooks(options.layers, times=options.times)
    else:
        found = measure(options.modules, times=options.times)
    print(json.dumps(found, indent=None if options.json else 2))


if __name__ == "__main__":
    main()
