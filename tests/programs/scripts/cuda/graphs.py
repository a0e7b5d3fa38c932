"""Forward and backward pass are one CUDA graph; gradients are averaged by hand behind it."""

import torch
import torch.distributed as dist
from helper import Data, finish
from torch import nn
from torch.utils.data import DataLoader, DistributedSampler

from trainmover import Session

dist.init_process_group("trainmover")
rank, world = dist.get_rank(), dist.get_world_size()
device = torch.device("cuda", 0)
torch.cuda.set_device(device)
torch.manual_seed(48)
model = nn.Sequential(nn.Linear(16, 64), nn.GELU(), nn.Dropout(0.1), nn.Linear(64, 16)).to(device)
optimizer = torch.optim.AdamW(model.parameters(), 2e-3)
loader = DataLoader(Data(), batch_size=8, sampler=DistributedSampler(Data(), seed=30))
x_in, y_in = torch.zeros(8, 16, device=device), torch.zeros(8, 16, device=device)


def passes():
    loss = (model(x_in) - y_in).pow(2).mean()
    loss.backward()
    return loss


side = torch.cuda.Stream()
side.wait_stream(torch.cuda.current_stream())
with torch.cuda.stream(side):
    for _ in range(3):
        optimizer.zero_grad(set_to_none=True)
        passes()
torch.cuda.current_stream().wait_stream(side)
optimizer.zero_grad(set_to_none=True)
graph = torch.cuda.CUDAGraph()
with torch.cuda.graph(graph):
    loss = passes()
torch.cuda.manual_seed(480 + rank)
session = Session(model=model, optimizer=optimizer)
total = 0.0

for step in session.steps(loader, max_steps=90):
    with step as (x, y):
        x_in.copy_(x)
        y_in.copy_(y)
        graph.replay()
        for parameter in model.parameters():
            dist.all_reduce(parameter.grad)
            parameter.grad /= world
        optimizer.step()
        session.log(loss=loss)
    total += loss.item()
finish(rank, model, total=total)
