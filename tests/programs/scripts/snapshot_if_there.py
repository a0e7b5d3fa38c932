"""It resumes if there is a snapshot, as scripts for torchrun do, and ends after some steps."""

import os

import torch
import torch.distributed as dist
from helper import OUT, Data, finish
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler

from trainmover import Session

dist.init_process_group("trainmover")
rank = dist.get_rank()
torch.manual_seed(79)
snapshot = os.path.join(OUT, "snapshot.pt")
net = nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 16))
first = 0
if os.path.exists(snapshot):
    loaded = torch.load(snapshot)
    net.load_state_dict(loaded["model"])
    first = loaded["epoch"]
model = DistributedDataParallel(net)
optimizer = torch.optim.SGD(model.parameters(), 0.05, momentum=0.9)
sampler = DistributedSampler(Data(96), seed=9)
loader = DataLoader(Data(96), batch_size=4, sampler=sampler)
session = Session(model=model, optimizer=optimizer)
epochs = []
taken = 0

for epoch in range(first, 100):
    sampler.set_epoch(epoch)
    epochs.append(epoch)
    for step in session.steps(loader):
        with step as (x, y):
            loss = (model(x) - y).square().mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            session.log(loss=loss)
        taken += 1
    if rank == 0:
        torch.save({"model": net.state_dict(), "epoch": epoch + 1}, snapshot)
    if taken >= 72:
        break
finish(rank, model, epochs=epochs)
