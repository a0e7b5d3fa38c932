"""Contrastive learning as in MoCo: a momentum encoder, keys in a buffer, gathered features."""

import copy

import torch
import torch.distributed as dist
from helper import Data, finish
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler

from trainmover import Session

QUEUE = 48


class MoCo(nn.Module):
    def __init__(self):
        super().__init__()
        self.encoder = nn.Sequential(nn.Linear(16, 32), nn.BatchNorm1d(32), nn.ReLU())
        self.momentum_encoder = copy.deepcopy(self.encoder).requires_grad_(False)
        self.register_buffer("queue", nn.functional.normalize(torch.randn(32, QUEUE), dim=0))
        self.register_buffer("pointer", torch.zeros(1, dtype=torch.long))

    @torch.no_grad()
    def follow(self):
        pairs = zip(self.encoder.parameters(), self.momentum_encoder.parameters(), strict=True)
        for mine, slow in pairs:
            slow.mul_(0.98).add_(mine, alpha=0.02)

    @torch.no_grad()
    def enqueue(self, keys):
        gathered = [torch.zeros_like(keys) for _ in range(dist.get_world_size())]
        dist.all_gather(gathered, keys.contiguous())
        keys = torch.cat(gathered)
        at = int(self.pointer)
        self.queue[:, at : at + len(keys)] = keys.T
        self.pointer[0] = (at + len(keys)) % QUEUE

    def forward(self, x):
        query = nn.functional.normalize(self.encoder(x + 0.1 * torch.randn_like(x)), dim=1)
        with torch.no_grad():
            self.follow()
            keys = self.momentum_encoder(x + 0.1 * torch.randn_like(x))
            keys = nn.functional.normalize(keys, dim=1)
        positive = (query * keys).sum(1, keepdim=True)
        logits = torch.cat([positive, query @ self.queue.clone()], dim=1) / 0.2
        self.enqueue(keys)
        return nn.functional.cross_entropy(logits, torch.zeros(len(x), dtype=torch.long))


dist.init_process_group("trainmover")
rank = dist.get_rank()
torch.manual_seed(61)
model = DistributedDataParallel(MoCo(), broadcast_buffers=False)
torch.manual_seed(100 + rank)
optimizer = torch.optim.SGD(model.parameters(), 0.05, momentum=0.9, weight_decay=1e-4)
sampler = DistributedSampler(Data(), seed=7)
loader = DataLoader(Data(), batch_size=8, sampler=sampler, drop_last=True)
session = Session(model=model, optimizer=optimizer)
running = 0.0

for step in session.steps(loader, max_steps=90):
    with step as (x, _):
        loss = model(x)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        session.log(loss=loss)
    running = 0.9 * running + 0.1 * loss.item()
finish(rank, model, running=running)
