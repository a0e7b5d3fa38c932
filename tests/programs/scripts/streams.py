"""A trainer that draws from two streams of its own inside of the body, one of them with workers."""

import torch
import torch.distributed as dist
from helper import Data, finish
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, IterableDataset

from trainmover import Session


class Stream(IterableDataset):
    def __init__(self, seed):
        self.seed = seed

    def __iter__(self):
        generator = torch.Generator().manual_seed(self.seed)
        for _ in range(33):
            yield torch.randn(16, generator=generator) * torch.rand(())


class Trainer:
    def __init__(self, session, model, optimizer, *loaders):
        self.session, self.model, self.optimizer = session, model, optimizer
        self.streams = [session.cycle(loader) for loader in loaders]
        self.total = 0.0

    def run(self, steps):
        for step in self.session.steps(range(steps)):
            with step as number:
                real, noise, (x, y) = (next(each) for each in self.streams)
                self.optimizer.zero_grad()
                loss = (self.model(x) - y).pow(2).mean() + (number % 3) * 0.1 * (
                    self.model(real) - self.model(noise[: len(real)])
                ).abs().mean()
                loss.backward()
                self.optimizer.step()
                self.session.log(loss=loss)
            self.total += real.sum().item()


dist.init_process_group("trainmover")
rank = dist.get_rank()
torch.manual_seed(3)
model = DistributedDataParallel(nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 16)))
optimizer = torch.optim.Adam(model.parameters(), 1e-3)
data = DataLoader(Data(120), batch_size=4, sampler=DistributedSampler(Data(120)), num_workers=1)
trainer = Trainer(
    Session(model=model, optimizer=optimizer),
    model,
    optimizer,
    DataLoader(Stream(100 + rank), batch_size=4),
    [torch.randn(4, 16, generator=torch.Generator().manual_seed(rank + k)) for k in range(5)],
    data,
)
trainer.run(100)
finish(rank, model, total=trainer.total)
