"""Semi-supervised: labelled batches give the steps, unlabelled ones come from another loader."""

import torch
import torch.distributed as dist
from helper import Data, finish
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, Dataset, DistributedSampler

from trainmover import Session


class Noisy(Dataset):
    def __len__(self):
        return 50

    def __getitem__(self, index):
        x = torch.randn(16, generator=torch.Generator().manual_seed(7000 + index))
        return x + 0.1 * torch.randn(16), index  # of the process-wide generator


dist.init_process_group("trainmover")
rank, world = dist.get_rank(), dist.get_world_size()
torch.manual_seed(31 + rank)
net = nn.Sequential(nn.Linear(16, 32), nn.Dropout(0.2), nn.ReLU(), nn.Linear(32, 16))
model = DistributedDataParallel(net)
optimizer = torch.optim.SGD(model.parameters(), 0.1)
sampler = DistributedSampler(Data(900), seed=8)
labelled = DataLoader(Data(900), batch_size=5, sampler=sampler)
session = Session(model=model, optimizer=optimizer)
unlabelled = session.cycle(DataLoader(Noisy(), batch_size=7, shuffle=True))
held_out = session.cycle(DataLoader(Data(40), batch_size=3, sampler=DistributedSampler(Data(40))))
seen, errors = 0, []

for epoch in range(2):
    sampler.set_epoch(epoch)
    for step in session.steps(labelled):
        with step as (x, y):
            optimizer.zero_grad()
            loss = (model(x) - y).pow(2).mean()
            for _ in range(1 + step.index % 2):
                z, numbers = next(unlabelled)
                a, b = model(z), model(z)
                loss = loss + 0.1 * (a - b).pow(2).mean()
            loss.backward()
            optimizer.step()
            session.log(loss=loss)
        seen += numbers.sum().item()
        if step.index % 10 == 9:
            x, y = next(held_out)
            with torch.no_grad():
                errors.append((model.module(x) - y).abs().sum().item())
finish(rank, model, seen=seen, errors=errors)
