"""A model in bfloat16 whose weights are rounded from others, which the optimizer trains."""

import torch
import torch.distributed as dist
from helper import Data, finish
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler

from trainmover import Session

dist.init_process_group("trainmover")
rank = dist.get_rank()
torch.manual_seed(95)
data = Data(720)
sampler = DistributedSampler(data, seed=5)
loader = DataLoader(data, batch_size=8, sampler=sampler)
net = nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 16)).to(torch.bfloat16)
model = DistributedDataParallel(net)
master = [each.detach().clone().float().requires_grad_() for each in net.parameters()]
optimizer = torch.optim.AdamW(master, lr=1e-2)
session = Session(model=model, optimizer=optimizer)
for epoch in range(2):
    sampler.set_epoch(epoch)
    for step in session.steps(loader):
        with step as (x, y):
            loss = (model(x.bfloat16()).float() - y).pow(2).mean()
            model.zero_grad()
            loss.backward()
            for weight, rounded in zip(master, net.parameters()):
                weight.grad = rounded.grad.float()
            optimizer.step()
            with torch.no_grad():
                for weight, rounded in zip(master, net.parameters()):
                    rounded.copy_(weight)
            session.log(loss=loss)
finish(
    rank,
    weights=[each.sum().item() for each in master],
    rounded=[each.float().sum().item() for each in net.parameters()],
)
