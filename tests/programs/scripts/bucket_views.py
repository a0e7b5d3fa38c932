"""Gradients are views of DDP's buckets and are set to zero in place; lazy layers, a checkpoint."""

import torch
import torch.distributed as dist
from helper import Data, finish
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.checkpoint import checkpoint
from torch.utils.data import DataLoader, DistributedSampler

from trainmover import Session


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.bag = nn.EmbeddingBag(50, 16)
        self.body, self.norm, self.head = nn.LazyLinear(32), nn.BatchNorm1d(32), nn.LazyLinear(16)

    def forward(self, x):
        h = self.bag((x.abs() * 10).long() % 50) + x
        h = checkpoint(lambda h: torch.relu(self.body(h)), h, use_reentrant=False)
        return self.head(self.norm(h))


dist.init_process_group("trainmover")
rank = dist.get_rank()
torch.manual_seed(92)
net = Net()
net(torch.zeros(2, 16))
model = DistributedDataParallel(net, gradient_as_bucket_view=True)
optimizer = torch.optim.RMSprop(model.parameters(), lr=1e-3)
scheduler = torch.optim.lr_scheduler.OneCycleLR(optimizer, 1e-2, total_steps=200)
session = Session(model=model, optimizer=optimizer, scheduler=scheduler)
data = Data(720)
sampler = DistributedSampler(data, seed=2)
loader = DataLoader(data, batch_size=8, sampler=sampler, drop_last=True)
for epoch in range(3):
    sampler.set_epoch(epoch)
    for step in session.steps(loader):
        with step as (x, y):
            loss = (model(x) - y).pow(2).mean()
            optimizer.zero_grad(set_to_none=False)
            loss.backward()
            optimizer.step()
            session.log(loss=loss)
        if step.committed:
            scheduler.step()
finish(rank, model, lr=scheduler.get_last_lr())
