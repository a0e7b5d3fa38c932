"""torchdata's StatefulDataLoader over a sampler without a state, which the loop makes harder."""

import numpy as np
import torch
import torch.distributed as dist
from helper import Data, finish
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torchdata.stateful_dataloader import StatefulDataLoader

from trainmover import Session


class Staged:
    def __init__(self, rank):
        self.stage, self.generator = 0, torch.Generator().manual_seed(rank)

    def __iter__(self):
        order = torch.randperm(1000, generator=self.generator)[:240] // (1 + self.stage)
        return iter((order + np.random.randint(3)).tolist())

    def __len__(self):
        return 240


dist.init_process_group("trainmover")
rank = dist.get_rank()
torch.manual_seed(61)
np.random.seed(61 + rank)
model = DistributedDataParallel(nn.Sequential(nn.Linear(16, 32), nn.Dropout(0.1), nn.ReLU()))
head = DistributedDataParallel(nn.Linear(32, 16))
optimizer = torch.optim.AdamW([*model.parameters(), *head.parameters()], lr=3e-3)
sampler = Staged(rank)
loader = StatefulDataLoader(Data(1003), batch_size=8, sampler=sampler)
session = Session(model=[model, head], optimizer=optimizer)
for step in session.steps(loader, epochs=3):
    with step as (x, y):
        x = x + 0.1 * np.random.randn()
        optimizer.zero_grad()
        loss = nn.functional.mse_loss(head(model(x)), y)
        loss.backward()
        optimizer.step()
        session.log(loss=loss)
    if step.index % 30 == 29:
        sampler.stage += 1
finish(rank, model, head, stage=sampler.stage)
