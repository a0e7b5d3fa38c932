"""The same training under torchrun: plain DDP on Gloo, checkpoints, and the time of each step."""

from __future__ import annotations

import argparse
import os
import time
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist
from torch.nn import functional
from torch.nn.parallel import DistributedDataParallel

from trainmover_executor.programs.gpt import VOCABULARY, Gpt, SourceText


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--width", type=int, required=True)
    parser.add_argument("--layers", type=int, required=True)
    parser.add_argument("--batch", type=int, required=True)
    parser.add_argument("--context", type=int, required=True)
    parser.add_argument("--steps", type=int, required=True)
    parser.add_argument("--checkpoint-every", type=int, default=5)
    parser.add_argument("--folder", type=Path, required=True)
    options = parser.parse_args()
    torch.set_num_threads(1)
    dist.init_process_group("gloo", timeout=timedelta(seconds=30))
    rank = dist.get_rank()
    (options.folder / f"pid-{rank}").write_text(str(os.getpid()))
    torch.manual_seed(0)
    model = DistributedDataParallel(
        Gpt(
            width=options.width,
            layers=options.layers,
            heads=4,
            context=options.context,
            dropout=0.1,
        )
    )
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    data = SourceText(rank=rank, batch=options.batch, context=options.context, seed=0)
    checkpoint = options.folder / "checkpoint.pt"
    start = 0
    if checkpoint.exists():
        saved = torch.load(checkpoint)
        model.load_state_dict(saved["model"])
        optimizer.load_state_dict(saved["optimizer"])
        start = saved["step"]
    batches = iter(data)
    for step in range(start, options.steps):
        tokens, targets = next(batches)
        loss = functional.cross_entropy(model(tokens).view(-1, VOCABULARY), targets.reshape(-1))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if rank == 0:
            print(f"step {step} {time.time()}", flush=True)
            if (step + 1) % options.checkpoint_every == 0:
                state = {"model": model.state_dict(), "optimizer": optimizer.state_dict()}
                torch.save({**state, "step": step + 1}, checkpoint.with_suffix(".new"))
                checkpoint.with_suffix(".new").replace(checkpoint)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
