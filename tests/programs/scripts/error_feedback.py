"""Gradients rounded by a communication hook, which adds what it cut off to the next ones."""

import torch
import torch.distributed as dist
from helper import Data, finish
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler

from trainmover import Session


class Residuals:
    """What each bucket still owes."""

    def __init__(self):
        self.owed = {}


def rounded(residuals, bucket):
    gradients = bucket.buffer()
    owed = residuals.owed.get(bucket.index())
    if owed is not None and owed.shape == gradients.shape:
        gradients.add_(owed)
    sent = gradients.to(torch.bfloat16).to(gradients.dtype)
    residuals.owed[bucket.index()] = gradients - sent
    sent.div_(dist.get_world_size())
    future = dist.all_reduce(sent, async_op=True).get_future()
    return future.then(lambda done: done.value()[0])


def run():
    dist.init_process_group("trainmover")
    torch.manual_seed(44)
    net = nn.Sequential(nn.Linear(16, 64), nn.Tanh(), nn.Linear(64, 16))
    model = DistributedDataParallel(net)
    model.register_comm_hook(Residuals(), rounded)
    optimizer = torch.optim.SGD(net.parameters(), lr=5e-2, momentum=0.9)
    data = Data(1440)
    sampler = DistributedSampler(data, seed=3)
    loader = DataLoader(data, batch_size=4, sampler=sampler)
    session = Session(model=model, optimizer=optimizer)
    for step in session.steps(loader):
        with step as (x, y):
            optimizer.zero_grad()
            loss = nn.functional.mse_loss(model(x), y)
            loss.backward()
            optimizer.step()
            session.log(loss=loss)
    finish(dist.get_rank(), model)


if __name__ == "__main__":
    run()
