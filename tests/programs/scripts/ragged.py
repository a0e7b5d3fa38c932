"""A batch that is padded, with a list of lengths, which the code behind the body reads: speech."""

import torch
import torch.distributed as dist
from helper import finish
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.nn.utils.rnn import pad_sequence
from torch.utils.data import DataLoader

from trainmover import Session


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.rnn, self.out = nn.GRU(4, 8, batch_first=True), nn.Linear(8, 5)

    def forward(self, x):
        return self.out(self.rnn(x)[0]).log_softmax(-1)


def collate(indices):
    chance = torch.Generator().manual_seed(indices[0])
    lengths = [int(torch.randint(8, 60, (1,), generator=chance)) for _ in indices]
    x = pad_sequence([torch.randn(n, 4, generator=chance) for n in lengths], batch_first=True)
    return x, lengths, torch.tensor([[1 + n % 4, 2] for n in lengths])


dist.init_process_group("gloo")
rank = dist.get_rank()
torch.manual_seed(7)
model = DistributedDataParallel(Net())
optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
loader = DataLoader(range(rank * 1000, rank * 1000 + 180), batch_size=3, collate_fn=collate)
session = Session(model=model, optimizer=optimizer)

frames = 0
for step in session.steps(loader, epochs=2, max_steps=90):
    with step as (x, lengths, y):
        assert max(lengths) == x.shape[1]
        loss = nn.functional.ctc_loss(model(x).transpose(0, 1), y, lengths, [2] * len(y))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        session.log(loss=loss)
    frames += sum(lengths)
finish(rank, model, frames=frames)
