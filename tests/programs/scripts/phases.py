"""Two phases with models of their own: an autoencoder first, then a classifier on its codes."""

import torch
import torch.distributed as dist
from helper import Data, finish
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler

from trainmover import Session

dist.init_process_group("trainmover")
rank = dist.get_rank()
torch.manual_seed(11)
encoder = DistributedDataParallel(nn.Sequential(nn.Linear(16, 8), nn.Tanh(), nn.Linear(8, 16)))
classifier = DistributedDataParallel(nn.Sequential(nn.Linear(16, 16), nn.ReLU(), nn.Linear(16, 2)))
warm_up = torch.optim.Adam(encoder.parameters(), 1e-2)
optimizer = torch.optim.SGD(classifier.parameters(), 0.05, momentum=0.9)
sampler = DistributedSampler(Data(), seed=4)
loader = DataLoader(Data(), batch_size=8, sampler=sampler)
session = Session(model=[encoder, classifier], optimizer=[warm_up, optimizer])

for step in session.steps(loader, max_steps=40):
    with step as (x, _):
        warm_up.zero_grad()
        loss = (encoder(x) - x).pow(2).mean()
        loss.backward()
        warm_up.step()
        session.log(loss=loss)

encoder.requires_grad_(False)
sampler.set_epoch(1)
correct = 0
for step in session.steps(loader, max_steps=110):
    with step as (x, y):
        with torch.no_grad():
            codes = encoder(x)
        labels = (y[:, 0] > 0).long()
        scores = classifier(codes)
        loss = nn.functional.cross_entropy(scores, labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        session.log(loss=loss)
    correct += int((scores.argmax(1) == labels).sum())
finish(rank, encoder, classifier, correct=correct, last=step.index)
