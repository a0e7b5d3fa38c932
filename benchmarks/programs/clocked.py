"""What the instrumentation of a step costs: it is timed in place, and a step with it against one
without, in alternating blocks of one job, in seconds and in processor time.

Timed in place: each call that notes something is clocked where it happens, in whatever thread, and
so is what the control thread tells the agent. A median over steps leaves out those in which other
work on the host took the processor away in the middle of a call.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch.nn import functional
from torch.nn.parallel import DistributedDataParallel

from trainmover import Session
from trainmover_executor.clock import writer as clock
from trainmover_executor.collectives import engine
from trainmover_executor.programs.gpt import VOCABULARY, Gpt, SourceText
from trainmover_executor.report import step_timing as timing
from trainmover_executor.worker import control_thread
from trainmover_executor.worker.runtime import current_runtime

STEPS = 6
WARM_UP = 4


TIMED_STEPS = 120
TIMED = (
    (clock.CollectiveClock, "enter"),
    (clock.CollectiveClock, "leave"),
    (clock.CollectiveClock, "committed"),
    (clock.CollectiveClock, "enter_phase"),
    (timing._BlockChecksums, "of"),
    (engine, "nonfinite_in"),
    (clock.CollectiveClock, "beat"),
    (control_thread.ControlThread, "_report_links"),
)


class Meter:
    """What was spent in the instrumentation since the last reading.

    Made before anything that it times, which may keep a method of itself.

    Attributes:
        on: Whether calls are timed.
        processor: Nanoseconds of processor time of each call since the beginning, by its name.
    """

    def __init__(self) -> None:
        self.on = False
        self._spent: list[int] = []
        self.processor: dict[str, list[int]] = {}
        for owner, name in TIMED:
            self.time(owner, name)

    def time(self, owner: object, name: str) -> None:
        """Have ``owner.name`` timed."""
        setattr(owner, name, self._timed(getattr(owner, name)))

    def _timed(self, call: Callable[..., Any]) -> Callable[..., Any]:
        spent, processor = self._spent, self.processor.setdefault(call.__qualname__, [])

        def timed(*args: Any, **kwargs: Any) -> Any:
            if not self.on:
                return call(*args, **kwargs)
            began_processor, began = time.thread_time_ns(), time.perf_counter_ns()
            try:
                return call(*args, **kwargs)
            finally:
                spent.append(time.perf_counter_ns() - began)
                processor.append(time.thread_time_ns() - began_processor)

        return timed

    def read(self) -> int:
        """Nanoseconds since the last reading, by the clock on the wall."""
        total = sum(self._spent)
        self._spent.clear()
        return total


class Switch:
    """Turns the clock of operations, of steps, and the look at gradients on and off."""

    def __init__(self) -> None:
        self._kept = [
            (clock.CollectiveClock, "enter", lambda *_, **__: -1),
            (clock.CollectiveClock, "committed", lambda *_, **__: None),
            (clock.CollectiveClock, "enter_phase", lambda *_: None),
            (timing._BlockChecksums, "of", lambda *_: None),
            (engine, "nonfinite_in", lambda *_: 0),
        ]
        self._real = [getattr(owner, name) for owner, name, _ in self._kept]

    def set(self, *, on: bool) -> None:
        for (owner, name, nothing), real in zip(self._kept, self._real, strict=True):
            setattr(owner, name, real if on else nothing)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--blocks", type=int, default=60)
    parser.add_argument("--width", type=int, default=192)
    parser.add_argument("--out", type=Path, required=True)
    options = parser.parse_args()
    torch.set_num_threads(1)
    meter = Meter()
    meter.time(current_runtime()._vote_clock, "leave")
    Session.init()
    torch.manual_seed(0)
    context = 64
    model = DistributedDataParallel(
        Gpt(width=options.width, layers=4, heads=4, context=context, dropout=0.0)
    )
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    session = Session(model=model, optimizer=optimizer)
    data = SourceText(rank=dist.get_rank(), batch=4, context=context, seed=0)
    switch, on = Switch(), True
    compared = WARM_UP + 2 * options.blocks * STEPS + 1
    costs: list[tuple[int, int]] = []
    began_ns = 0
    times: dict[bool, list[tuple[float, float]]] = {True: [], False: []}
    started = (0.0, 0.0)
    for step in session.steps(data, max_steps=compared + TIMED_STEPS):
        with step as (tokens, targets):
            logits = model(tokens)
            loss = functional.cross_entropy(logits.view(-1, VOCABULARY), targets.reshape(-1))
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            session.log(loss=loss)
        if step.index >= compared and not session.is_shadow:
            meter.on, last_ns, began_ns = True, began_ns, time.perf_counter_ns()
            costs.append((meter.read(), began_ns - last_ns))
            continue
        done = step.index + 1 - WARM_UP
        if session.is_shadow or done < 0 or done % STEPS:
            continue
        now = (time.perf_counter(), time.process_time())
        if done:
            times[on].append((now[0] - started[0], now[1] - started[1]))
            # ABBA: what drifts during the run hits both alike.
            on = _is_on(times)
        switch.set(on=on)
        dist.barrier()
        started = (time.perf_counter(), time.process_time())
    if dist.get_rank() == 0:
        pairs = list(zip(times[True], times[False], strict=False))
        spent, took = (statistics.median(each) for each in zip(*costs[2:], strict=True))
        figures = {
            "in_place": 1 + spent / took,
            "in_place_us": spent / 1e3,
            "step_ms": took / 1e6,
            "calls": {
                name: {
                    "a_step": round(len(each) / len(costs), 1),
                    "processor_us": round(statistics.mean(each) / 1e3, 1),
                }
                for name, each in meter.processor.items()
            },
            "seconds": [on[0] / off[0] for on, off in pairs],
            "processor": [on[1] / off[1] for on, off in pairs],
        }
        options.out.write_text(json.dumps(figures))


def _is_on(times: dict[bool, list[tuple[float, float]]]) -> bool:
    """On, off, off, on, and so forth."""
    return (len(times[True]) + len(times[False])) % 4 in {0, 3}


if __name__ == "__main__":
    main()
