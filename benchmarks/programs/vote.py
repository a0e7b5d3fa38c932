"""Times what the session adds: to every step the exchange of private state and the vote.

And to a collective that the program calls between two steps what has it done again if it breaks.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from pathlib import Path

import torch
import torch.distributed as dist
from torch.nn import functional
from torch.nn.parallel import DistributedDataParallel

from trainmover import Session
from trainmover_executor.programs.gpt import VOCABULARY, Gpt, SourceText
from trainmover_executor.state.packing.portable import pack_tree
from trainmover_executor.worker.runtime import current_runtime


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=60)
    parser.add_argument("--batch", type=int, default=4)
    parser.add_argument("--ahead-mib", type=float, default=0)
    parser.add_argument("--out", type=Path, required=True)
    options = parser.parse_args()
    torch.set_num_threads(1)
    Session.init()
    torch.manual_seed(0)
    model = DistributedDataParallel(Gpt(width=128, layers=4, heads=4, context=64, dropout=0.1))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    session = Session(model=model, optimizer=optimizer)
    data = SourceText(rank=dist.get_rank(), batch=options.batch, context=64, seed=0)
    words = int(options.ahead_mib * 1024 * 256)
    ahead = torch.full((words,), float(dist.get_rank()))
    steps_s, added_s, bare_s, again_s = [], [], [], []
    latch = current_runtime().latch
    does_again = latch.between
    started = time.perf_counter()
    for step in session.steps(data, max_steps=options.steps):
        with step as (tokens, targets):
            logits = model(tokens).view(-1, VOCABULARY)
            functional.cross_entropy(logits, targets.reshape(-1)).backward()
            used = float(ahead[:1].sum())
            ahead = torch.full((words,), used + 1)
            # Wait for the slowest rank first: what follows is the exchange alone.
            dist.barrier()
            before = time.perf_counter()
            step.cast_vote()
            added_s.append(time.perf_counter() - before)
            optimizer.step()
            optimizer.zero_grad()
        metric = torch.zeros(2)
        for does, took_s in ((None, bare_s), (does_again, again_s)):
            latch.between = None
            dist.barrier()
            latch.between = does
            before = time.perf_counter()
            dist.all_reduce(metric)
            took_s.append(time.perf_counter() - before)
        steps_s.append(time.perf_counter() - started)
        started = time.perf_counter()
    if dist.get_rank() == 0:
        here = session._loop.here(sys._getframe())
        private_state = pack_tree({"step": 0, "content": here.to_tree()})
        result = {
            "steps_s": steps_s[3:],
            "added_s": added_s[3:],
            "bare_s": bare_s[3:],
            "again_s": again_s[3:],
            "private_state_bytes": len(private_state),
            "ahead": float(ahead.sum()),
        }
        options.out.write_text(json.dumps(result))


if __name__ == "__main__":
    main()
