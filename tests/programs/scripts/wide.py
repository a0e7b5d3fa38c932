"""Ten times the usual: a parameter group for each of many tensors, hundreds of variables."""

import torch
import torch.distributed as dist
from helper import Data, finish
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler

from trainmover import Session


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm, self.line = nn.LayerNorm(16), nn.Linear(16, 16)

    def forward(self, x):
        return x + torch.tanh(self.line(self.norm(x)))


dist.init_process_group("trainmover")
rank = dist.get_rank()
torch.manual_seed(72)
model = DistributedDataParallel(nn.Sequential(*(Block() for _ in range(60))))
groups = [
    {"params": [p], "lr": 1e-3 * 0.99**at, "name": name, "weight_decay": 0.1 * (p.ndim > 1)}
    for at, (name, p) in enumerate(model.named_parameters())
]
optimizer = torch.optim.AdamW(groups)
warm = [lambda step, at=at: min(1.0, (step + 1) / (5 + at % 7)) for at in range(len(groups))]
schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, warm)
loader = DataLoader(Data(), batch_size=8, sampler=DistributedSampler(Data(), seed=9))
session = Session(model=model, optimizer=optimizer, scheduler=schedule)
norms = {name: 0.0 for name, _ in model.named_parameters()}
history = [[] for _ in range(40)]

for step in session.steps(loader, max_steps=110):
    with step as (x, y):
        optimizer.zero_grad()
        loss = (model(x) - y).pow(2).mean()
        loss.backward()
        optimizer.step()
        schedule.step()
        session.log(loss=loss)
    for name, parameter in model.named_parameters():
        norms[name] += float(parameter.grad.norm())
    history[step.index % 40].append(loss.item())
finish(rank, model, norms=norms, history=history, lr=schedule.get_last_lr()[3])
