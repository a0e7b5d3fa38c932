"""Evaluations in front of every tenth step's body, not behind it; noise drawn with batches."""

import torch
import torch.distributed as dist
from helper import Data, finish
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler

from trainmover import Session


class Noisy(Data):
    def __getitem__(self, index):
        x, y = super().__getitem__(index)
        return x + 0.1 * torch.randn(16), y


def main():
    dist.init_process_group("trainmover")
    rank = dist.get_rank()
    torch.manual_seed(83)
    model = DistributedDataParallel(nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 16)))
    optimizer = torch.optim.SGD(model.parameters(), 0.05, momentum=0.9)
    data = Noisy(720)
    sampler = DistributedSampler(data, seed=14)
    loader = DataLoader(data, batch_size=8, sampler=sampler)
    session = Session(model=model, optimizer=optimizer)
    torch.manual_seed(1000 + rank)

    def evaluate():
        x = torch.stack([Data()[index][0] for index in range(rank * 8, rank * 8 + 8)])
        with torch.no_grad():
            error = (model.module(x) - x.roll(1, 1)).pow(2).mean()
        dist.all_reduce(error)
        return error.item()

    iteration, best, seen = 0, float("inf"), []
    for epoch in range(3):
        sampler.set_epoch(epoch)
        for step in session.steps(loader):
            iteration += 1
            if iteration % 10 == 1:
                best = min(best, session.between_steps(evaluate))
                seen.append((step.index, step.epoch))
            with step as (x, y):
                optimizer.zero_grad()
                loss = (model(x) - y).pow(2).mean()
                loss.backward()
                optimizer.step()
                session.log(loss=loss)
    finish(rank, model, iteration=iteration, best=best, seen=seen)


main()
