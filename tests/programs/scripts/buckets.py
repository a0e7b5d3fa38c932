"""Sentences of like length in a batch: a batch sampler of its own, a padding collate function."""

import random

import torch
import torch.distributed as dist
from helper import finish
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.nn.utils.rnn import pack_padded_sequence, pad_sequence
from torch.utils.data import DataLoader, Dataset, Sampler

from trainmover import Session


class Sentences(Dataset):
    def __init__(self):
        chance = random.Random(3)
        self.lengths = [chance.randrange(3, 20) for _ in range(720)]

    def __len__(self):
        return len(self.lengths)

    def __getitem__(self, index):
        generator = torch.Generator().manual_seed(index)
        words = torch.randint(1, 50, (self.lengths[index],), generator=generator)
        return {"words": words, "length": self.lengths[index], "id": f"s{index}"}


class BucketSampler(Sampler):
    def __init__(self, lengths, batch_size, rank, world):
        self.lengths, self.batch_size = lengths, batch_size
        self.rank, self.world = rank, world
        self.epoch = 0

    def set_epoch(self, epoch):
        self.epoch = epoch

    def __iter__(self):
        chance = random.Random(self.epoch)
        order = list(range(len(self.lengths)))
        chance.shuffle(order)
        pools = [order[i : i + 120] for i in range(0, len(order), 120)]
        batches = []
        for pool in pools:
            pool.sort(key=lambda index: self.lengths[index])
            batches += [pool[i : i + self.batch_size] for i in range(0, len(pool), self.batch_size)]
        chance.shuffle(batches)
        yield from batches[self.rank :: self.world]

    def __len__(self):
        return len(self.lengths) // self.batch_size // self.world


def collate(items):
    words = pad_sequence([item["words"] for item in items], batch_first=True)
    return {
        "words": words,
        "lengths": torch.tensor([item["length"] for item in items]),
        "ids": [item["id"] for item in items],
    }


class Tagger(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(50, 12, padding_idx=0)
        self.rnn = nn.LSTM(12, 16, batch_first=True)
        self.out = nn.Linear(16, 2)

    def forward(self, batch):
        packed = pack_padded_sequence(
            self.embed(batch["words"]), batch["lengths"], batch_first=True, enforce_sorted=False
        )
        _, (hidden, _) = self.rnn(packed)
        return self.out(hidden[-1])


def main():
    dist.init_process_group("trainmover")
    rank, world = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(71)
    data = Sentences()
    sampler = BucketSampler(data.lengths, 8, rank, world)
    loader = DataLoader(data, batch_sampler=sampler, collate_fn=collate, num_workers=2)
    model = DistributedDataParallel(Tagger())
    optimizer = torch.optim.Adam(model.parameters(), 1e-2)
    session = Session(model=model, optimizer=optimizer)
    seen = 0
    tokens = {}
    for epoch in range(3):
        sampler.set_epoch(epoch)
        for step in session.steps(loader):
            with step as batch:
                target = batch["words"][:, 0] % 2
                loss = nn.functional.cross_entropy(model(batch), target)
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
                session.log(loss=loss)
            seen += int(batch["lengths"].sum())
            tokens[epoch] = tokens.get(epoch, 0) + len(batch["ids"])
    finish(rank, model, seen=seen, tokens=tokens)


if __name__ == "__main__":
    main()
