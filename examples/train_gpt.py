"""Train a small GPT on real text with DistributedDataParallel, movable by TrainMover.

    trainmover run --slots 4 --standbys 1 examples/train_gpt.py --steps 300

The lines marked with (*) are all that TrainMover asks of a training script.
"""

import argparse
import sysconfig
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.nn import functional as F
from torch.nn.parallel import DistributedDataParallel

from trainmover import Session  # (*)


class Block(nn.Module):
    def __init__(self, width, heads=4):
        super().__init__()
        self.attention = nn.MultiheadAttention(width, heads, batch_first=True)
        self.mlp = nn.Sequential(
            nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width)
        )
        self.norms = nn.ModuleList([nn.LayerNorm(width), nn.LayerNorm(width)])

    def forward(self, x, mask):
        y = self.norms[0](x)
        x = x + self.attention(y, y, y, attn_mask=mask, need_weights=False)[0]
        return x + self.mlp(self.norms[1](x))


class GPT(nn.Module):
    def __init__(self, width=128, layers=4, context=64):
        super().__init__()
        self.tokens, self.places = nn.Embedding(256, width), nn.Embedding(context, width)
        self.blocks = nn.ModuleList(Block(width) for _ in range(layers))
        self.head = nn.Linear(width, 256)
        mask = torch.full((context, context), float("-inf")).triu(1)
        self.register_buffer("mask", mask, persistent=False)

    def forward(self, tokens):
        x = self.tokens(tokens) + self.places.weight
        for block in self.blocks:
            x = block(x, self.mask)
        return self.head(x)


class Windows(torch.utils.data.Dataset):
    """Windows of 64 bytes into the Python standard library's sources."""

    def __init__(self, context=64):
        folder = Path(sysconfig.get_paths()["stdlib"])
        text = b"".join(path.read_bytes() for path in sorted(folder.glob("*.py")))
        self.text = torch.frombuffer(bytearray(text), dtype=torch.uint8)
        self.context = context

    def __len__(self):
        return (len(self.text) - 1) // self.context

    def __getitem__(self, index):
        window = self.text[index * self.context :][: self.context + 1].long()
        return window[:-1], window[1:]


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=300)
    options = parser.parse_args()

    dist.init_process_group("gloo")
    torch.manual_seed(0)
    torch.set_num_threads(1)
    model = DistributedDataParallel(GPT())
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    dataset = Windows()
    sampler = torch.utils.data.DistributedSampler(dataset)
    loader = torch.utils.data.DataLoader(dataset, batch_size=4, sampler=sampler)

    session = Session(model=model, optimizer=optimizer)  # (*)
    for step in session.steps(loader, epochs=100, max_steps=options.steps):  # (*)
        with step as (x, y):  # (*)
            loss = F.cross_entropy(model(x).flatten(0, 1), y.flatten())
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            session.log(loss=loss)
        if dist.get_rank() == 0 and not session.is_shadow:
            print(f"step {step.index:4d}  loss {loss.item():.4f}", flush=True)


if __name__ == "__main__":
    main()
