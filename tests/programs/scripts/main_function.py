"""Everything is local to main(); the step is taken in a nested function."""

import argparse

import torch
import torch.distributed as dist
from helper import Data, finish
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler

from trainmover import Session


def parse():
    parser = argparse.ArgumentParser()
    parser.add_argument("out")
    parser.add_argument("--lr", type=float, default=0.05)
    parser.add_argument("--steps", type=int, default=100)
    return parser.parse_args()


def main():
    args = parse()
    dist.init_process_group("trainmover")
    rank = dist.get_rank()
    torch.manual_seed(42)
    model = DistributedDataParallel(nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 16)))
    optimizer = torch.optim.SGD(model.parameters(), args.lr, momentum=0.9)
    loader = DataLoader(Data(), batch_size=8, sampler=DistributedSampler(Data(), seed=29))
    session = Session(model=model, optimizer=optimizer)
    best, since_best, losses, tokens = float("inf"), 0, [], {"seen": 0}

    def learning_rate(done):
        return args.lr * 0.5 ** (done // 20)

    done = 0
    for step in session.steps(loader):
        with step as (x, y):
            for group in optimizer.param_groups:
                group["lr"] = learning_rate(done)
            optimizer.zero_grad()
            loss = (model(x) - y).pow(2).mean()
            loss.backward()
            optimizer.step()
            session.log(loss=loss)
        value = loss.item()
        best, since_best = (value, 0) if value < best else (best, since_best + 1)
        losses.append(value)
        tokens["seen"] += x.numel()
        done += 1
        if done == args.steps:
            break
    finish(rank, model, best=best, since=since_best, losses=losses, tokens=tokens)


if __name__ == "__main__":
    main()
