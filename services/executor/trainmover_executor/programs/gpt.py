"""A byte-level GPT trained with DistributedDataParallel on the Python standard library's sources.

Real text on every machine, without a download. ``examples/train_gpt.py`` is this program as a
user would write it.
"""

from __future__ import annotations

import argparse
import os
import sysconfig
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.nn import functional
from torch.nn.parallel import DistributedDataParallel

from trainmover import Session

VOCABULARY = 256


class Block(nn.Module):
    """One transformer block."""

    def __init__(self, width: int, heads: int, dropout: float) -> None:
        super().__init__()
        self.heads = heads
        self.norm_attention, self.norm_mlp = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.project = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.mlp = nn.Sequential(
            nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width), nn.Dropout(dropout)
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Shape (batch, time, width) in and out."""
        batch, time, width = x.shape
        shape = (batch, time, 3, self.heads, width // self.heads)
        q, k, v = self.qkv(self.norm_attention(x)).view(shape).permute(2, 0, 3, 1, 4)
        attended = functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.project(attended.transpose(1, 2).reshape(batch, time, width))
        mixed: torch.Tensor = x + self.mlp(self.norm_mlp(x))
        return mixed


class Gpt(nn.Module):
    """A small GPT over bytes."""

    def __init__(
        self, *, width: int, layers: int, heads: int, context: int, dropout: float
    ) -> None:
        super().__init__()
        self.token, self.place = nn.Embedding(VOCABULARY, width), nn.Embedding(context, width)
        self.blocks = nn.Sequential(*(Block(width, heads, dropout) for _ in range(layers)))
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, VOCABULARY, bias=False)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        """Tokens (batch, time) to logits (batch, time, 256)."""
        x = self.token(tokens) + self.place(torch.arange(tokens.shape[1], device=tokens.device))
        logits: torch.Tensor = self.head(self.norm(self.blocks(x)))
        return logits


class SourceText:
    """Batches of windows into the standard library's sources; knows where it is.

    Args:
        rank: This rank; each draws its own windows.
        batch: Windows in a batch.
        context: Bytes in a window.
        seed: Seed of the windows.
    """

    def __init__(self, *, rank: int, batch: int, context: int, seed: int) -> None:
        folder = Path(sysconfig.get_paths()["stdlib"])
        raw = b"".join(path.read_bytes() for path in sorted(folder.glob("*.py")))
        self._text = torch.frombuffer(bytearray(raw), dtype=torch.uint8).long()
        self._batch, self._context = batch, context
        self._generator = torch.Generator().manual_seed(seed * 10_007 + rank)

    def __iter__(self) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
        offsets = torch.arange(self._context + 1)
        while True:
            last = len(self._text) - self._context - 1
            starts = torch.randint(last, (self._batch, 1), generator=self._generator)
            windows = self._text[starts + offsets]
            yield windows[:, :-1], windows[:, 1:]

    def state_dict(self) -> dict[str, Any]:
        """The position: the generator's state."""
        return {"generator": self._generator.get_state()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go back to a position."""
        self._generator.set_state(state["generator"])


def main() -> None:
    """Train."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=100)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--batch", type=int, default=4)
    parser.add_argument("--context", type=int, default=64)
    parser.add_argument("--width", type=int, default=128)
    parser.add_argument("--layers", type=int, default=4)
    parser.add_argument("--dropout", type=float, default=0.1)
    parser.add_argument("--pace", type=float, default=0.0, help="shortest time of a step, seconds")
    parser.add_argument("--device", default="cpu", help="cpu, or cuda (ranks may share a GPU)")
    parser.add_argument("--dtype", default="float32", help="of parameters: float32, bfloat16")
    options = parser.parse_args()
    torch.set_num_threads(1)
    if options.device != "cpu":
        os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
        torch.use_deterministic_algorithms(True)  # or no two runs have the same bits

    Session.init()
    rank = dist.get_rank()
    torch.manual_seed(options.seed)
    model = DistributedDataParallel(
        Gpt(
            width=options.width,
            layers=options.layers,
            heads=4,
            context=options.context,
            dropout=options.dropout,
        ).to(options.device, getattr(torch, options.dtype))
    )
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=options.steps)
    torch.manual_seed(options.seed * 1_000_003 + rank)  # dropout differs by rank
    data = SourceText(rank=rank, batch=options.batch, context=options.context, seed=options.seed)

    session = Session(model=model, optimizer=optimizer, scheduler=scheduler)
    for step in session.steps(data, max_steps=options.steps):
        due_s = time.monotonic() + options.pace
        with step as batch:
            tokens, targets = (each.to(options.device) for each in batch)
            logits = model(tokens)
            loss = functional.cross_entropy(logits.view(-1, VOCABULARY), targets.reshape(-1))
            optimizer.zero_grad()
            loss.backward()  # type: ignore[no-untyped-call]
            optimizer.step()
            scheduler.step()
            session.log(loss=loss)
        if rank == 0 and not session.is_shadow and step.committed and step.index % 10 == 0:
            print(f"step {step.index:4d}  loss {loss.item():.4f}", flush=True)  # noqa: T201
        time.sleep(max(0.0, due_s - time.monotonic()))  # for --pace: others need processors, too


if __name__ == "__main__":
    main()
