"""Fine-tuning: the backbone is thawed in the middle, with a learning rate of its own."""

import torch
import torch.distributed as dist
from helper import Data, finish
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler

from trainmover import Session


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.backbone = nn.Sequential(nn.Linear(16, 24), nn.ReLU())
        self.head = nn.Linear(24, 16)

    def forward(self, x):
        return self.head(self.backbone(x))


dist.init_process_group("trainmover")
rank = dist.get_rank()
torch.manual_seed(66)
net = Net()
model = DistributedDataParallel(net, find_unused_parameters=True)
net.backbone.requires_grad_(False)
optimizer = torch.optim.AdamW(net.head.parameters(), 3e-3)
data = Data(960)
loader = DataLoader(data, batch_size=8, sampler=DistributedSampler(data, seed=3))
session = Session(model=model, optimizer=optimizer)
thawed_at = None

for step in session.steps(loader, epochs=3, max_steps=90):
    with step as (x, y):
        optimizer.zero_grad()
        loss = (model(x) - y).pow(2).mean()
        loss.backward()
        optimizer.step()
        session.log(loss=loss)
    if step.index == 11:
        net.backbone.requires_grad_(True)
        optimizer.add_param_group({"params": list(net.backbone.parameters()), "lr": 1e-3})
        thawed_at = step.index
finish(rank, model, thawed_at=thawed_at, groups=len(optimizer.param_groups))
