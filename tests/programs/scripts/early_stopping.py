"""Early stopping on a validation score; the best checkpoint is loaded at the end."""

import torch
import torch.distributed as dist
from helper import OUT, Data, finish
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, Subset

from trainmover import Session


def evaluate(model, loader):
    model.eval()
    total = torch.zeros(2)
    with torch.no_grad():
        for x, y in loader:
            total += torch.tensor([float((model(x) - y).abs().mean()), 1.0])
    dist.all_reduce(total)
    model.train()
    return float(total[0] / total[1])


def train(session, model, optimizer, loader, validation_loader, *, patience=3):
    best, bad = float("inf"), 0
    for epoch in range(100):
        loader.sampler.set_epoch(epoch)
        for step in session.steps(loader):
            with step as (x, y):
                optimizer.zero_grad()
                loss = (model(x) - y).abs().mean()
                loss.backward()
                optimizer.step()
                session.log(loss=loss)
            if (step.index + 1) % 8 != 0:
                continue
            score = session.between_steps(lambda: evaluate(model, validation_loader))
            if session.is_shadow:
                continue
            if score < best - 0.02:
                best, bad = score, 0
                torch.save(model.state_dict(), OUT / f"best-{dist.get_rank()}.pt")
            elif (bad := bad + 1) >= patience:
                return best, epoch, step.index
    return best, epoch, step.index


dist.init_process_group("trainmover")
torch.manual_seed(16)
model = DistributedDataParallel(nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 16)))
optimizer = torch.optim.Adam(model.parameters(), 1e-2)
training, validation = Subset(Data(), range(480)), Subset(Data(), range(3000, 3048))
loader = DataLoader(training, batch_size=8, sampler=DistributedSampler(training))
held_out = DataLoader(validation, 8, sampler=DistributedSampler(validation, shuffle=False))
session = Session(model=model, optimizer=optimizer)
best, epoch, last = train(session, model, optimizer, loader, held_out)
model.load_state_dict(torch.load(OUT / f"best-{dist.get_rank()}.pt"))
finish(dist.get_rank(), model, best=best, epoch=epoch, last=last)
