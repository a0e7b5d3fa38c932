"""Embeddings with sparse gradients: SparseAdam beside Adam, negative samples drawn by numpy."""

import numpy as np
import torch
import torch.distributed as dist
from helper import finish
from torch import nn
from torch.utils.data import DataLoader, Dataset, DistributedSampler

from trainmover import Session

USERS, ITEMS = 60, 80


class Clicks(Dataset):
    def __len__(self):
        return 2400

    def __getitem__(self, index):
        return index % USERS, (index * 7 + index // USERS) % ITEMS


class Recommender(nn.Module):
    def __init__(self):
        super().__init__()
        self.user = nn.Embedding(USERS, 8, sparse=True)
        self.item = nn.Embedding(ITEMS, 8, sparse=True)
        self.mlp = nn.Sequential(nn.Linear(16, 16), nn.ReLU(), nn.Linear(16, 1))

    def forward(self, user, item):
        return self.mlp(torch.cat([self.user(user), self.item(item)], dim=1)).squeeze(1)


dist.init_process_group("trainmover")
rank, world = dist.get_rank(), dist.get_world_size()
torch.manual_seed(73)
np.random.seed(73 + rank)
model = Recommender()
embeddings = [model.user.weight, model.item.weight]
sparse = torch.optim.SparseAdam(embeddings, lr=1e-2)
dense = torch.optim.Adam(model.mlp.parameters(), lr=1e-2)
loader = DataLoader(Clicks(), batch_size=8, sampler=DistributedSampler(Clicks(), seed=4))
session = Session(model=model, optimizer=[sparse, dense])

hits = np.zeros(ITEMS, dtype=np.int64)
for step in session.steps(loader, max_steps=90):
    with step as (user, item):
        negative = torch.from_numpy(np.random.randint(0, ITEMS, len(item)))
        loss = nn.functional.softplus(model(user, negative) - model(user, item)).mean()
        sparse.zero_grad()
        dense.zero_grad()
        loss.backward()
        for parameter in model.parameters():
            dist.all_reduce(parameter.grad)
            parameter.grad = parameter.grad / world
        sparse.step()
        dense.step()
        session.log(loss=loss)
    np.add.at(hits, item.numpy(), 1)
finish(rank, model, hits=hits.tolist())
