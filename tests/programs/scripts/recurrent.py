"""Truncated backpropagation through time: the hidden state goes from step to step."""

import torch
import torch.distributed as dist
from helper import Data, finish
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler

from trainmover import Session


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.cell = nn.GRU(16, 24, batch_first=True)
        self.head = nn.Linear(24, 16)

    def forward(self, x, hidden):
        out, hidden = self.cell(x, hidden)
        return self.head(out), hidden


def main():
    dist.init_process_group("trainmover")
    rank = dist.get_rank()
    torch.manual_seed(36)
    model = DistributedDataParallel(Model())
    optimizer = torch.optim.Adam(model.parameters(), 3e-3)
    loader = DataLoader(Data(), batch_size=16, sampler=DistributedSampler(Data(), shuffle=False))
    session = Session(model=model, optimizer=optimizer)
    hidden = torch.zeros(1, 4, 24)
    for step in session.steps(loader, max_steps=80):
        with step as (x, y):
            x, y = x.view(4, 4, 16), y.view(4, 4, 16)
            out, new_hidden = model(x, hidden)
            loss = (out - y).pow(2).mean()
            optimizer.zero_grad()
            loss.backward()
            nn.utils.clip_grad_norm_(model.parameters(), 0.5)
            optimizer.step()
            session.log(loss=loss)
        hidden = new_hidden.detach()
        if step.index % 20 == 19:
            hidden = torch.zeros_like(hidden)
    finish(rank, model, hidden=hidden.sum().item())


main()
