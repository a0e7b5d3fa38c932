"""Times the same step with and without a session, in alternating blocks, on a GPU or a processor.

Each rank trains a model by itself, on the same data, so that all are replicas: no collective is
part of a step, only what the session adds to it (looks at the program, clock, private state, vote).
The model without a session belongs to a thread: a session takes what the program's own variables
hold for part of the job.
"""

from __future__ import annotations

import argparse
import json
import queue
import threading
import time
from pathlib import Path

import torch
import torch.distributed as dist
from torch.nn import functional

from trainmover import Session
from trainmover_executor.programs.gpt import VOCABULARY, Gpt, SourceText


def build(options: argparse.Namespace):
    torch.manual_seed(0)
    shape = {"width": options.width, "layers": options.layers, "context": options.context}
    model = Gpt(**shape, heads=4, dropout=0.1).to(options.device)
    return model, torch.optim.AdamW(model.parameters(), lr=1e-3)


def train(model, optimizer, batch, device: str) -> None:
    tokens, targets = (each.to(device) for each in batch)
    loss = functional.cross_entropy(model(tokens).view(-1, VOCABULARY), targets.reshape(-1))
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()


def main() -> None:  # noqa: C901 - what is timed has to be in one function
    parser = argparse.ArgumentParser()
    parser.add_argument("--blocks", type=int, default=12)
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--width", type=int, default=768)
    parser.add_argument("--layers", type=int, default=12)
    parser.add_argument("--batch", type=int, default=8)
    parser.add_argument("--context", type=int, default=512)
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--out", type=Path, required=True)
    options = parser.parse_args()
    torch.set_num_threads(1)
    torch.use_deterministic_algorithms(True, warn_only=True)
    Session.init()
    size = {"batch": options.batch, "context": options.context}
    data = SourceText(rank=0, **size, seed=0)
    moved, moved_optimizer = build(options)
    session = Session(model=moved, optimizer=moved_optimizer)
    times: dict[str, list[float]] = {"plain": [], "trainmover": []}
    orders: queue.SimpleQueue[int] = queue.SimpleQueue()
    done_all: queue.SimpleQueue[None] = queue.SimpleQueue()

    def train_plain() -> None:
        plain, plain_optimizer = build(options)
        batches = iter(SourceText(rank=0, **size, seed=0))
        while count := orders.get():
            for _ in range(count):
                train(plain, plain_optimizer, next(batches), options.device)
            done_all.put(None)

    def plain_steps(count: int) -> None:
        orders.put(count)
        done_all.get()

    threading.Thread(target=train_plain, daemon=True).start()
    plain_steps(3)

    def now() -> float:
        if options.device != "cpu":
            torch.cuda.synchronize()
        dist.barrier()
        return time.perf_counter()

    started = now()
    for step in session.steps(data, max_steps=3 + options.blocks * options.steps):
        with step as batch:
            train(moved, moved_optimizer, batch, options.device)
        done = step.index - 2
        if done < 0 or done % options.steps:
            continue
        if done:
            times["trainmover"].append((now() - started) / options.steps)
            started = now()
            plain_steps(options.steps)
            times["plain"].append((now() - started) / options.steps)
        started = now()
    if dist.get_rank() == 0:
        parameters = sum(p.numel() for p in moved.parameters())
        options.out.write_text(json.dumps({"parameters": parameters, **times}))


if __name__ == "__main__":
    main()
