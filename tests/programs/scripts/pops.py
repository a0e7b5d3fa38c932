"""A body that takes labels out of its batch, and normalizes what is left in place."""

import collections

import torch
import torch.distributed as dist
from helper import Data, finish
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler

from trainmover import Session


class Encoding(collections.UserDict):
    """What tokenizers give: a dictionary that is none."""


class Encoded(Data):
    def __getitem__(self, index):
        x, _ = super().__getitem__(index)
        return {"inputs": x, "labels": index % 5, "name": f"sample {index}"}


def collate(samples):
    return Encoding(
        inputs=torch.stack([sample["inputs"] for sample in samples]),
        labels=torch.tensor([sample["labels"] for sample in samples]),
        names=[sample["name"] for sample in samples],
    )


def run():
    dist.init_process_group("trainmover")
    torch.manual_seed(31)
    net = nn.Sequential(nn.Linear(16, 32), nn.GELU(), nn.Dropout(0.1), nn.Linear(32, 5))
    model = DistributedDataParallel(net)
    optimizer = torch.optim.AdamW(net.parameters(), lr=1e-2)
    data = Encoded(1600)
    sampler = DistributedSampler(data, seed=4)
    loader = DataLoader(data, batch_size=4, sampler=sampler, collate_fn=collate)
    session = Session(model=model, optimizer=optimizer)
    for step in session.steps(loader):
        with step as batch:
            labels = batch.pop("labels")
            while batch["names"]:
                batch["names"].pop()
            inputs = batch["inputs"]
            inputs.sub_(0.1).div_(1.5)
            optimizer.zero_grad()
            loss = nn.functional.cross_entropy(model(inputs), labels)
            loss.backward()
            optimizer.step()
            session.log(loss=loss)
    finish(dist.get_rank(), model, last=sorted(batch))


if __name__ == "__main__":
    run()
