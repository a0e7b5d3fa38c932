"""The same step with and without the instrumentation, in alternating blocks of one job.

Both in seconds and in processor time of the whole process, which other work on the host leaves
alone.
"""

from __future__ import annotations

import argparse
import json
import time
from pathlib import Path

import torch
import torch.distributed as dist
from torch.nn import functional
from torch.nn.parallel import DistributedDataParallel

from trainmover_executor import Session, clock, engine, vitals
from trainmover_executor.programs.gpt import VOCABULARY, Gpt, SourceText

STEPS = 6
WARM_UP = 4


class Switch:
    """Turns the clock of operations, of steps, and the look at gradients on and off."""

    def __init__(self) -> None:
        self._kept = [
            (clock.CollectiveClock, "enter", lambda *_, **__: -1),
            (clock.CollectiveClock, "committed", lambda *_, **__: None),
            (clock.CollectiveClock, "enter_phase", lambda *_: None),
            (vitals._BlockSums, "of", lambda *_: None),
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
    times: dict[bool, list[tuple[float, float]]] = {True: [], False: []}
    started = (0.0, 0.0)
    for step in session.steps(data, max_steps=WARM_UP + 2 * options.blocks * STEPS + 1):
        with step as (tokens, targets):
            logits = model(tokens)
            loss = functional.cross_entropy(logits.view(-1, VOCABULARY), targets.reshape(-1))
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            session.log(loss=loss)
        done = step.index + 1 - WARM_UP
        if session.is_shadow or done < 0 or done % STEPS:
            continue
        now = (time.perf_counter(), time.process_time())
        if done:
            times[on].append((now[0] - started[0], now[1] - started[1]))
            # ABBA: what drifts during the run hits both alike.
            on = _turn(times)
        switch.set(on=on)
        dist.barrier()
        started = (time.perf_counter(), time.process_time())
    if dist.get_rank() == 0:
        pairs = list(zip(times[True], times[False], strict=False))
        figures = {
            "seconds": [on[0] / off[0] for on, off in pairs],
            "processor": [on[1] / off[1] for on, off in pairs],
        }
        options.out.write_text(json.dumps(figures))


def _turn(times: dict[bool, list[tuple[float, float]]]) -> bool:
    """On, off, off, on, and so forth."""
    return (len(times[True]) + len(times[False])) % 4 in {0, 3}


if __name__ == "__main__":
    main()
