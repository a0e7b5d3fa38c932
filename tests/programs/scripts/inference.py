"""An evaluation under inference_mode that gathers and reduces, and means by all_reduce."""

import torch
import torch.distributed as dist
from helper import Data, finish
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler

from trainmover import Session

dist.init_process_group("trainmover")
rank, world = dist.get_rank(), dist.get_world_size()
torch.manual_seed(91)
net = nn.Sequential(nn.Linear(16, 32), nn.BatchNorm1d(32), nn.ReLU(), nn.Linear(32, 16))
model = DistributedDataParallel(net)
optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
data = Data(720)
sampler = DistributedSampler(data, seed=4)
loader = DataLoader(data, batch_size=8, sampler=sampler)
session = Session(model=model, optimizer=optimizer)
scores, mean = [], torch.zeros(())


@torch.inference_mode()
def evaluate():
    net.eval()
    xs, ys = map(torch.stack, zip(*[data[i] for i in range(rank, 60, world)]))
    errors = (net(xs) - ys).square().mean(1)
    total = errors.sum()
    dist.all_reduce(total)
    parts = [torch.empty_like(errors) for _ in range(world)]
    dist.all_gather(parts, errors)
    worst = torch.cat(parts).max()
    dist.broadcast(worst, src=0)
    net.train()
    return total.item(), worst.item()


for epoch in range(3):
    sampler.set_epoch(epoch)
    for step in session.steps(loader):
        with step as (x, y):
            optimizer.zero_grad()
            loss = nn.functional.mse_loss(model(x), y)
            loss.backward()
            with torch.inference_mode():
                mean = loss.detach().clone()
                dist.all_reduce(mean, op=dist.ReduceOp.AVG)
            optimizer.step()
            session.log(loss=loss)
    scores.append((*session.between_steps(evaluate), mean.item()))
finish(rank, model, scores=scores)
