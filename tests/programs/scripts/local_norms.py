"""Batch norms whose statistics each rank keeps by itself, samples by weight, augmentation."""

import random

import torch
import torch.distributed as dist
from helper import Data, finish
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import (
    ConcatDataset,
    DataLoader,
    WeightedRandomSampler,
    random_split,
)

from trainmover import Session


class Augmented(Data):
    def __getitem__(self, index):
        x, y = super().__getitem__(index)
        if random.random() < 0.5:
            x = x.flip(0)
        return x + 0.1 * torch.randn(16), y


def main():
    dist.init_process_group("trainmover")
    rank = dist.get_rank()
    torch.manual_seed(78)
    net = nn.Sequential(nn.Linear(16, 24), nn.BatchNorm1d(24), nn.ReLU(), nn.Linear(24, 16))
    model = DistributedDataParallel(net, broadcast_buffers=False)
    optimizer = torch.optim.RMSprop(model.parameters(), 1e-3)
    data = ConcatDataset([Augmented(600), Augmented(200)])
    train, held_out = random_split(data, [700, 100], torch.Generator().manual_seed(1))
    random.seed(rank)
    torch.manual_seed(1000 + rank)
    weights = [1.0 + index % 3 for index in range(len(train))]
    sampler = WeightedRandomSampler(weights, 240)
    loader = DataLoader(
        train, batch_size=8, sampler=sampler, num_workers=2, pin_memory=False, drop_last=True
    )
    session = Session(model=model, optimizer=optimizer)
    scores = []
    for epoch in range(3):
        model.train()
        for i, step in enumerate(session.steps(loader)):
            with step as (x, y), torch.autograd.set_detect_anomaly(False):
                optimizer.zero_grad()
                loss = nn.functional.mse_loss(model(x), y)
                loss.backward()
                optimizer.step()
                session.log(loss=loss)
        model.eval()
        with torch.no_grad():
            held = [net(x.unsqueeze(0)).mean().item() for x, _ in held_out]
        scores.append((epoch, i, sum(held)))
    finish(rank, model, scores=scores)


main()
