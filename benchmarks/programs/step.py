"""Times the same step on Gloo alone and under TrainMover, in alternating blocks.

Both models live in the same processes, so that whatever else the host does hits both alike.
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

from benchmarks.programs.gloo import gloo_group
from trainmover import Session
from trainmover_executor.programs.gpt import VOCABULARY, Gpt, SourceText


def build(group: dist.ProcessGroup | None, options: argparse.Namespace):
    torch.manual_seed(0)
    shape = {"width": options.width, "layers": options.layers, "context": options.context}
    model = Gpt(**shape, heads=4, dropout=0.0)
    wrapped = DistributedDataParallel(model, process_group=group)
    return wrapped, torch.optim.AdamW(wrapped.parameters(), lr=1e-3, fused=True)


def train(model, optimizer, batch) -> None:
    tokens, targets = batch
    loss = functional.cross_entropy(model(tokens).view(-1, VOCABULARY), targets.reshape(-1))
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--blocks", type=int, default=12)
    parser.add_argument("--steps", type=int, default=6)
    parser.add_argument("--width", type=int, default=256)
    parser.add_argument("--layers", type=int, default=6)
    parser.add_argument("--batch", type=int, default=1)
    parser.add_argument("--context", type=int, default=32)
    parser.add_argument("--out", type=Path, required=True)
    options = parser.parse_args()
    torch.set_num_threads(1)
    Session.init()
    size = {"batch": options.batch, "context": options.context}
    data = SourceText(rank=dist.get_rank(), **size, seed=0)
    plain, plain_optimizer = build(gloo_group(), options)
    moved, moved_optimizer = build(None, options)
    batches = iter(SourceText(rank=dist.get_rank(), **size, seed=0))
    session = Session(model=moved, optimizer=moved_optimizer)
    times: dict[str, list[float]] = {"gloo": [], "trainmover": []}
    processor: dict[str, list[float]] = {"gloo": [], "trainmover": []}
    for _ in range(3):
        train(plain, plain_optimizer, next(batches))

    def begin() -> tuple[float, float]:
        dist.barrier()
        return time.perf_counter(), time.process_time()

    def end(kind: str, started: tuple[float, float]) -> None:
        times[kind].append((time.perf_counter() - started[0]) / options.steps)
        processor[kind].append((time.process_time() - started[1]) / options.steps)

    started = begin()
    for step in session.steps(data, max_steps=3 + options.blocks * options.steps):
        with step as batch:
            train(moved, moved_optimizer, batch)
        done = step.index - 2
        if done < 0 or done % options.steps:
            continue
        if done:
            end("trainmover", started)
            started = begin()
            for _ in range(options.steps):
                train(plain, plain_optimizer, next(batches))
            end("gloo", started)
        started = begin()
    if dist.get_rank() == 0:
        parameters = sum(p.numel() for p in moved.parameters())
        options.out.write_text(
            json.dumps({"parameters": parameters, "processor": processor, **times})
        )


if __name__ == "__main__":
    main()
