"""A language model without an optimizer: its parameters are changed by hand, as in the example."""

import torch
import torch.distributed as dist
from helper import Data, finish
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler

from trainmover import Session

dist.init_process_group("trainmover")
rank = dist.get_rank()
torch.manual_seed(71)
recurrent, head = nn.GRU(16, 16, batch_first=True), nn.Linear(16, 16)


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.recurrent, self.head = recurrent, head

    def forward(self, x, hidden):
        out, hidden = self.recurrent(x, hidden)
        return self.head(out), hidden


model = DistributedDataParallel(Model())
loader = DataLoader(Data(2400), batch_size=8, sampler=DistributedSampler(Data(2400), seed=12))
session = Session(model=model)
hidden = torch.zeros(1, 8, 16)

for step in session.steps(loader, max_steps=60):
    with step as (x, y):
        model.zero_grad()
        hidden = hidden.detach()
        out, hidden = model(x[:, None], hidden)
        loss = (out[:, 0] - y).square().mean()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 0.25)
        for p in model.parameters():
            p.data.add_(p.grad, alpha=-0.5)
        session.log(loss=loss)
finish(rank, model, hidden=hidden.sum().item())
