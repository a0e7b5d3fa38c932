"""Times what the session adds to every step: the exchange of private state and the vote."""

from __future__ import annotations

import argparse
import json
import time
from pathlib import Path

import torch
import torch.distributed as dist
from torch.nn import functional
from torch.nn.parallel import DistributedDataParallel

from trainmover import Session
from trainmover_executor.programs.gpt import VOCABULARY, Gpt, SourceText
from trainmover_executor.state.packing.portable import pack_tree


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=60)
    parser.add_argument("--out", type=Path, required=True)
    options = parser.parse_args()
    torch.set_num_threads(1)
    Session.init()
    torch.manual_seed(0)
    model = DistributedDataParallel(Gpt(width=128, layers=4, heads=4, context=64, dropout=0.1))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    session = Session(model=model, optimizer=optimizer)
    data = SourceText(rank=dist.get_rank(), batch=4, context=64, seed=0)
    steps_s, added_s = [], []
    started = time.perf_counter()
    for step in session.steps(data, max_steps=options.steps):
        with step as (tokens, targets):
            logits = model(tokens).view(-1, VOCABULARY)
            functional.cross_entropy(logits, targets.reshape(-1)).backward()
            # Wait for the slowest rank first: what follows is the exchange alone.
            dist.barrier()
            before = time.perf_counter()
            step.cast_vote()
            added_s.append(time.perf_counter() - before)
            optimizer.step()
            optimizer.zero_grad()
        steps_s.append(time.perf_counter() - started)
        started = time.perf_counter()
    if dist.get_rank() == 0:
        private_state = pack_tree({"step": 0, "content": session._loop.here().to_tree()})
        result = {
            "steps_s": steps_s[3:],
            "added_s": added_s[3:],
            "private_state_bytes": len(private_state),
        }
        options.out.write_text(json.dumps(result))


if __name__ == "__main__":
    main()
