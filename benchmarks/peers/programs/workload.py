"""What every program here trains, and how it says that a step is complete."""

import json
import os
import time
from pathlib import Path

import torch
from torch import nn
from torch.nn import functional

WORDS, LENGTH = 2048, 32
WIDTH = int(os.environ.get("PEERS_WIDTH", "256"))
LAYERS = int(os.environ.get("PEERS_LAYERS", "6"))
OUT = Path(os.environ["PEERS_OUT"])
CHECKPOINT = OUT / "checkpoint.pt"
EVERY = 10
"""Steps between two checkpoints, where a program needs them."""

torch.set_num_threads(1)


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.before, self.behind = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.qkv, self.out = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        self.mlp = nn.Sequential(
            nn.Linear(WIDTH, 4 * WIDTH), nn.GELU(), nn.Linear(4 * WIDTH, WIDTH)
        )

    def forward(self, x):
        rows, length, _ = x.shape
        q, k, v = self.qkv(self.before(x)).view(rows, length, 3, 4, -1).permute(2, 0, 3, 1, 4)
        mixed = functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(mixed.transpose(1, 2).reshape(x.shape))
        return x + self.mlp(self.behind(x))


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.words, self.places = nn.Embedding(WORDS, WIDTH), nn.Embedding(LENGTH, WIDTH)
        self.blocks = nn.Sequential(*[Block() for _ in range(LAYERS)])
        self.head = nn.Linear(WIDTH, WORDS, bias=False)

    def forward(self, x, y):
        x = self.blocks(self.words(x) + self.places(torch.arange(x.size(1))))
        return functional.cross_entropy(self.head(x).flatten(0, 1), y.flatten())


def optimizer_of(model):
    return torch.optim.AdamW(model.parameters(), lr=3e-4, fused=True)


class Batches:
    def __init__(self, rank):
        self.rank = rank

    def __len__(self):
        return 1_000_000

    def __getitem__(self, step):
        generator = torch.Generator().manual_seed(step * 1000 + self.rank)
        words = torch.randint(0, WORDS, (1, LENGTH + 1), generator=generator)
        return words[:, :-1], words[:, 1:]


def say(rank, step, world):
    """This rank has completed so many steps, the last one in a world of this size."""
    line = {"t": time.time(), "pid": os.getpid(), "rank": rank, "step": step, "world": world}
    with (OUT / f"steps-{os.getpid()}.jsonl").open("a") as file:
        file.write(json.dumps(line) + "\n")


def save(model, optimizer, step):
    state = {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "step": step}
    torch.save(state, CHECKPOINT.with_suffix(".tmp"))
    CHECKPOINT.with_suffix(".tmp").replace(CHECKPOINT)


def load(model, optimizer):
    if not CHECKPOINT.exists():
        return 0
    state = torch.load(CHECKPOINT)
    model.load_state_dict(state["model"])
    optimizer.load_state_dict(state["optimizer"])
    return state["step"]
