"""A target network by name, in training mode: its BatchNorm's statistics are each rank's own."""

import copy
import math

import numpy as np
import torch
import torch.distributed as dist
from helper import Data, finish
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, Dataset, DistributedSampler

from trainmover import Session


class Views(Dataset):
    """Two views of each row; random numbers of numpy and torch in the workers."""

    def __init__(self, data):
        self.data = data

    def __len__(self):
        return len(self.data)

    def __getitem__(self, index):
        x, _ = self.data[index]
        scale = torch.from_numpy(np.random.rand(16).astype(np.float32))
        return x + torch.randn(16) * 0.1, x * scale, index


def seed_worker(worker):
    np.random.seed(1000 * rank + worker)


dist.init_process_group("trainmover")
rank = dist.get_rank()
torch.manual_seed(82)
online = nn.Sequential(nn.Linear(16, 32), nn.BatchNorm1d(32), nn.ReLU(), nn.Linear(32, 8))
target = copy.deepcopy(online).requires_grad_(False)
model = DistributedDataParallel(nn.Sequential(online, nn.Linear(8, 8)))
optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
session = Session(model=model, optimizer=optimizer, target=target)
views = Views(Data(720))
sampler = DistributedSampler(views, seed=3)
loader = DataLoader(views, batch_size=8, sampler=sampler, num_workers=2, worker_init_fn=seed_worker)
torch.manual_seed(83 + rank)
seen, k = np.zeros(len(views), dtype=np.int64), 0
for epoch in range(3):
    sampler.set_epoch(epoch)
    for step in session.steps(loader):
        with step as (one, other, indices):
            goal = nn.functional.normalize(target(other), dim=-1)
            guess = nn.functional.normalize(model(one), dim=-1)
            loss = 2 - 2 * (guess * goal).sum(-1).mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            momentum = 1 - 0.05 * (math.cos(math.pi * k / 90) + 1) / 2
            with torch.no_grad():
                for mine, its in zip(target.parameters(), online.parameters()):
                    mine.lerp_(its, 1 - momentum)
            session.log(loss=loss)
        k += 1
        seen[indices.numpy()] += 1
finish(rank, model, target, k=k, seen=seen.tolist())
