"""Collectives between steps: in front of a body, asynchronous, of objects, of weights."""

import torch
import torch.distributed as dist
from helper import Data, finish
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler

from trainmover import Session

dist.init_process_group("trainmover")
rank, world = dist.get_rank(), dist.get_world_size()
pair = dist.new_group([0, 1])
torch.manual_seed(3)
model = DistributedDataParallel(nn.Sequential(nn.Linear(16, 40), nn.Tanh(), nn.Linear(40, 16)))
optimizer = torch.optim.SGD(model.parameters(), lr=0.2)
sampler = DistributedSampler(Data(720), seed=4)
loader = DataLoader(Data(720), batch_size=8, sampler=sampler)
session = Session(model=model, optimizer=optimizer)
seen = []


class Evaluation:
    """On a few batches of its own, with all ranks' results in one tensor."""

    def __init__(self):
        self.results = []

    @torch.inference_mode()
    def run(self):
        mine = model.module(torch.ones(2, 16) * (rank + 1)).mean(dim=1)
        every = torch.zeros(2 * world)
        dist.all_gather_into_tensor(every, mine)
        self.results.append(every.sum().item())


def scaled():
    for step in session.steps(loader, epochs=3):
        factor = torch.tensor([1.0 / (1 + step.index), float(rank)])
        work = dist.all_reduce(factor, op=dist.ReduceOp.MAX, async_op=True)
        work.wait()
        yield step, factor[0].item()


def average(value):
    mean = torch.tensor([value, 1.0])
    dist.all_reduce(mean)
    return (mean[0] / mean[1]).item()


def train(step, factor=1.0):
    with step as (x, y):
        optimizer.zero_grad()
        loss = (model(x) - y).pow(2).mean()
        (loss * (0.5 + factor)).backward()
        optimizer.step()
        session.log(loss=loss)
    return loss


for step in session.steps(loader, max_steps=2):
    first = train(step)
mean = session.between_steps(lambda: average(first.item()))
dist.barrier()
total = average(first.item() + rank)
evaluation = Evaluation()
for step, factor in scaled():
    loss = train(step, factor)
    sums = torch.tensor([loss.item(), rank, 1.0], dtype=torch.float64)
    dist.reduce(sums, dst=0)
    if rank == 0:
        seen.append(sums[0].item())
    if step.index % 7 == 0:
        chosen = [{"from": rank, "seen": len(seen)}]
        dist.broadcast_object_list(chosen, src=step.index % world)
        for group in optimizer.param_groups:
            group["lr"] = 0.2 / (1 + chosen[0]["from"])
    if step.index % 5 == 2:
        evaluation.run()
    if step.index % 11 == 10:
        for parameter in model.parameters():
            dist.all_reduce(parameter.data)
            parameter.data /= world
rate = optimizer.param_groups[0]["lr"]
finish(rank, model, seen=seen[-5:], results=evaluation.results, rate=rate, first=[mean, total])
