"""The loop everyone writes: epochs, a sampler that is told of them, an evaluation after each."""

import torch
import torch.distributed as dist
from helper import DEVICE, OUT, Data, finish
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, Subset

from trainmover import Session

dist.init_process_group()
rank = dist.get_rank()
torch.manual_seed(3)
model = DistributedDataParallel(
    nn.Sequential(
        nn.Linear(16, 32), nn.BatchNorm1d(32), nn.ReLU(), nn.Dropout(0.1), nn.Linear(32, 16)
    ).to(DEVICE)
)
optimizer = torch.optim.SGD(model.parameters(), 0.05, momentum=0.9)
scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 1, gamma=0.8)
training, validation = Subset(Data(), range(384)), Subset(Data(), range(2000, 2096))
sampler = DistributedSampler(training, seed=1)
loader = DataLoader(training, batch_size=8, sampler=sampler)
validation_loader = DataLoader(
    validation, 16, sampler=DistributedSampler(validation, shuffle=False)
)
session = Session(model=model, optimizer=optimizer, scheduler=scheduler)


def evaluate():
    model.eval()
    total = torch.zeros(2, device=DEVICE)
    with torch.no_grad():
        for x, y in validation_loader:
            total[0] += (model(x.to(DEVICE)) - y.to(DEVICE)).pow(2).mean()
            total[1] += 1
    dist.all_reduce(total)
    model.train()
    return float(total[0] / total[1])


best, history = float("inf"), []
for epoch in range(5):
    sampler.set_epoch(epoch)
    for step in session.steps(loader):
        with step as (x, y):
            optimizer.zero_grad()
            loss = (model(x.to(DEVICE)) - y.to(DEVICE)).pow(2).mean()
            loss.backward()
            optimizer.step()
            session.log(loss=loss)
    scheduler.step()
    score = session.between_steps(evaluate)
    history.append((epoch, score, scheduler.get_last_lr()))
    if score < best:
        best = score
        if rank == 0 and not session.is_shadow:
            torch.save({"model": model.state_dict(), "epoch": epoch}, OUT / "best.pt")
finish(rank, model, best=best, history=history, epoch=epoch)
