"""Truncated back-propagation: a hidden state of some size goes from batch to batch."""

import torch
import torch.distributed as dist
from helper import finish
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from trainmover import Session

dist.init_process_group("trainmover")
rank, world = dist.get_rank(), dist.get_world_size()
torch.manual_seed(23)
text = torch.randint(0, 50, (32, 4000), generator=torch.Generator().manual_seed(rank))
order = torch.randperm(4000, generator=torch.Generator().manual_seed(rank))


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(50, 16)
        self.rnn = nn.LSTM(16, 160, batch_first=True)
        self.head = nn.Linear(160, 50)

    def forward(self, tokens, state):
        out, state = self.rnn(self.embed(tokens), state)
        return self.head(out), state


def windows(length=5):
    for start in range(0, 3000, length):
        yield text[:, start : start + length], text[:, start + 1 : start + length + 1]


def detach(state):
    return tuple(each.detach() for each in state)


model = DistributedDataParallel(Model())
optimizer = torch.optim.SGD(model.parameters(), 0.5)
session = Session(model=model, optimizer=optimizer)
state = (torch.zeros(1, 32, 160), torch.zeros(1, 32, 160))
seen = torch.zeros(4000, dtype=torch.long)
for epoch in range(2):
    for step in session.steps(list(windows()), max_steps=50 * (epoch + 1)):
        with step as (x, y):
            optimizer.zero_grad()
            out, state = model(x, detach(state))
            loss = nn.functional.cross_entropy(out.flatten(0, 1), y.flatten())
            loss.backward()
            nn.utils.clip_grad_norm_(model.parameters(), 0.5)
            optimizer.step()
            session.log(loss=loss)
        seen[order[step.index * 10 : step.index * 10 + 10]] += 1
    order = order.roll(epoch + 1)
finish(rank, model, state=state[0].double().sum().item(), seen=(seen * order).sum().item())
