"""Accuracy counted behind the optimizer's step, from logits of a thousand classes.

The last batch of an epoch is smaller.
"""

import torch
import torch.distributed as dist
from helper import Data, finish
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler

from trainmover import Session

dist.init_process_group("trainmover")
rank, world = dist.get_rank(), dist.get_world_size()
torch.manual_seed(83)
model = DistributedDataParallel(nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 1000)))
data = Data(200)
loader = DataLoader(data, batch_size=16, sampler=DistributedSampler(data, seed=12))
optimizer = torch.optim.SGD(model.parameters(), 1e-1, momentum=0.9)
criterion = nn.CrossEntropyLoss()
session = Session(model=model, optimizer=optimizer)


def train(epoch):
    model.train()
    correct = total = 0
    confidence = running = 0.0
    for step in session.steps(loader):
        with step as (inputs, seen):
            images = inputs.repeat(1, 512)
            targets = seen.abs().sum(1).mul(1000).long() % 1000
            optimizer.zero_grad()
            outputs = model(images[:, :16])
            loss = criterion(outputs, targets)
            loss.backward()
            optimizer.step()
            session.log(loss=loss)
            _, predicted = outputs.max(1)
            total += targets.size(0)
            running += loss.item() * images.size(0) / len(images) * images.shape[0]
            correct += predicted.eq(targets).sum().item()
            confidence += outputs.softmax(1).max().item()
    return correct / total, confidence, running


accuracies = [train(epoch) for epoch in range(12)]
finish(rank, model, accuracies=accuracies)
