"""A curriculum: each stage has longer sequences, and a mask that is made in front of its loop."""

import torch
import torch.distributed as dist
from helper import finish
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, Dataset, DistributedSampler

from trainmover import Session


class Text(Dataset):
    length = 8

    def __len__(self):
        return 360

    def __getitem__(self, index):
        chance = torch.Generator().manual_seed(index)
        return torch.randint(0, 32, (self.length,), generator=chance)


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed, self.out = nn.Embedding(32, 16), nn.Linear(16, 32)
        self.layer = nn.TransformerEncoderLayer(16, 2, 32, 0.0, batch_first=True)

    def forward(self, x, mask):
        return self.out(self.layer(self.embed(x), src_mask=mask))


dist.init_process_group("gloo")
rank = dist.get_rank()
torch.manual_seed(0)
model = DistributedDataParallel(Net())
optimizer = torch.optim.AdamW(model.parameters(), 1e-3)
data = Text()
session = Session(model=model, optimizer=optimizer)

total, tokens = 0.0, 0
for stage, length in enumerate([8, 12, 16]):
    data.length = length
    loader = DataLoader(data, batch_size=4, sampler=DistributedSampler(data, seed=stage))
    mask = nn.Transformer.generate_square_subsequent_mask(length - 1)
    for i, step in enumerate(session.steps(loader)):
        with step as x:
            tokens += x.numel()
            logits = model(x[:, :-1], mask).flatten(0, 1)
            loss = nn.functional.cross_entropy(logits, x[:, 1:].flatten())
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            session.log(loss=loss)
        total += loss.item()
        if stage == 0 and i == 4:
            break
finish(rank, model, total=total, tokens=tokens)
