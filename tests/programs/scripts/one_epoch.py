"""Helper functions train_one_epoch and evaluate that return averages."""

import torch
import torch.distributed as dist
from helper import Data, finish
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler

from trainmover import Session


def train_one_epoch(session, model, loader, optimizer, scheduler):
    model.train()
    total_loss, total_correct, count = 0.0, 0, 0
    for step in session.steps(loader):
        with step as (x, y):
            logits = model(x)
            labels = y.argmax(1)
            loss = nn.functional.cross_entropy(logits, labels)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            session.log(loss=loss)
        scheduler.step()
        total_loss += loss.item() * len(x)
        total_correct += (logits.argmax(1) == labels).sum().item()
        count += len(x)
    return total_loss / count, total_correct / count


def evaluate(model, loader):
    model.eval()
    correct = torch.zeros(1)
    with torch.no_grad():
        for x, y in loader:
            correct += (model(x).argmax(1) == y.argmax(1)).sum()
    dist.all_reduce(correct)
    return correct.item()


dist.init_process_group("trainmover")
rank = dist.get_rank()
torch.manual_seed(43)
model = DistributedDataParallel(nn.Sequential(nn.Linear(16, 64), nn.ReLU(), nn.Linear(64, 16)))
optimizer = torch.optim.AdamW(model.parameters(), 1e-3)
scheduler = torch.optim.lr_scheduler.OneCycleLR(optimizer, 1e-2, total_steps=120)
data = Data(960)
loader = DataLoader(data, batch_size=8, sampler=DistributedSampler(data, seed=30))
test_loader = DataLoader(data, batch_size=32, sampler=DistributedSampler(data, shuffle=False))
session = Session(model=model, optimizer=optimizer, scheduler=scheduler)
rows = []
for epoch in range(3):
    loader.sampler.set_epoch(epoch)
    loss, accuracy = train_one_epoch(session, model, loader, optimizer, scheduler)
    correct = session.between_steps(lambda: evaluate(model, test_loader))
    rows.append((epoch, loss, accuracy, correct))
finish(rank, model, rows=rows)
