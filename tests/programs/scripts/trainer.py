"""A trainer class that keeps its counters and its best score in attributes."""

import torch
import torch.distributed as dist
from helper import Data, finish
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler

from trainmover import Session


class Trainer:
    def __init__(self, model, optimizer, loader, *, epochs):
        self.model, self.optimizer, self.loader = model, optimizer, loader
        self.epochs = epochs
        self.global_step = 0
        self.best = float("inf")
        self.history = []
        self.session = Session(model=model, optimizer=optimizer)

    def training_step(self, batch):
        x, y = batch
        loss = nn.functional.smooth_l1_loss(self.model(x), y)
        self.optimizer.zero_grad()
        loss.backward()
        self.optimizer.step()
        self.session.log(loss=loss)
        return loss.detach()

    def set_learning_rate(self):
        for group in self.optimizer.param_groups:
            group["lr"] = 0.1 / (1 + self.global_step / 30)

    def fit(self):
        for epoch in range(self.epochs):
            self.loader.sampler.set_epoch(epoch)
            losses = []
            for step in self.session.steps(self.loader):
                self.set_learning_rate()
                with step as batch:
                    loss = self.training_step(batch)
                losses.append(loss.item())
                self.global_step += 1
            mean = sum(losses) / len(losses)
            self.best = min(self.best, mean)
            self.history.append(mean)


dist.init_process_group("trainmover")
rank = dist.get_rank()
torch.manual_seed(13)
model = DistributedDataParallel(nn.Sequential(nn.Linear(16, 24), nn.SiLU(), nn.Linear(24, 16)))
data = Data(960)
loader = DataLoader(data, batch_size=8, sampler=DistributedSampler(data, seed=6))
trainer = Trainer(model, torch.optim.SGD(model.parameters(), 0.1), loader, epochs=3)
trainer.fit()
finish(rank, model, step=trainer.global_step, best=trainer.best, history=trainer.history)
