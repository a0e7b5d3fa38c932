"""Work between steps whose results are each rank's own: before, behind and inside of calls."""

import torch
import torch.distributed as dist
from helper import Data, finish
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, TensorDataset

from trainmover import Session

dist.init_process_group("trainmover")
rank = dist.get_rank()
torch.manual_seed(70)
net = nn.Sequential(nn.Linear(16, 16), nn.BatchNorm1d(16), nn.ReLU(), nn.Linear(16, 16))
model = DistributedDataParallel(net)
optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
session = Session(model=model, optimizer=optimizer)
data = Data(512)


class Sampler:
    """Remembers what it has drawn."""

    def __init__(self, seed):
        self.generator = torch.Generator().manual_seed(seed)
        self.drawn = 0

    def pool(self, length):
        rows = torch.randint(0, len(data), (length,), generator=self.generator)
        self.drawn += length
        x, y = zip(*(data[int(row)] for row in rows))
        return torch.stack(x), torch.stack(y)

    def temperature(self):
        self.drawn += 1
        return 0.9 + 0.2 * torch.rand((), generator=self.generator).item()

    def calibrate(self):
        with torch.no_grad():
            net(self.pool(16)[0])  # moves BatchNorm's running statistics
        return self.drawn


sampler = Sampler(seed=200 + rank)
seen, scales = [], []
scale = session.between_steps(sampler.temperature)
for phase in range(8):
    pool = session.between_steps(lambda: sampler.pool(96))
    scales.append(session.between_steps(sampler.temperature))
    loader = DataLoader(TensorDataset(*pool), batch_size=8)
    for step in session.steps(loader):
        if step.index % 5 == 3:
            scale = session.between_steps(sampler.temperature)
            seen.append(round(scale, 6))
        with step as (x, y):
            loss = nn.functional.mse_loss(model(x) * scale, y)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            session.log(loss=loss)
    seen.append(session.between_steps(sampler.calibrate))
finish(rank, model, seen=seen, scales=scales, scale=scale, drawn=sampler.drawn)
