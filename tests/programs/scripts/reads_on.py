"""A data set that reads on in a file, whatever it is asked for; with "seeks" it goes to the item.

The second one ends after 400 steps, the first once there is a file "enough". The third argument is
how many processes load.
"""

import sys
import time

import numpy as np
import torch
import torch.distributed as dist
from helper import OUT, finish
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, Dataset, DistributedSampler

from trainmover import Session

WIDTH = 16
BYTES = 4 * WIDTH


class Records(Dataset):
    def __init__(self, path, seeks):
        self.file, self.seeks = path.open("rb"), seeks

    def __len__(self):
        return 4096

    def __getitem__(self, index):
        time.sleep(0.002)
        if self.seeks:
            self.file.seek(index * BYTES)
        data = self.file.read(BYTES)
        if len(data) < BYTES:
            self.file.seek(0)
            data = self.file.read(BYTES)
        x = torch.frombuffer(bytearray(data), dtype=torch.float32)
        return x, x.roll(1)


dist.init_process_group("trainmover")
rank = dist.get_rank()
torch.manual_seed(5)
path = OUT / f"records-{rank}.bin"
if not path.exists():
    numbers = np.random.default_rng(rank).standard_normal(4096 * WIDTH, dtype=np.float32)
    path.write_bytes(numbers.tobytes())
dataset = Records(path, seeks="seeks" in sys.argv)
model = DistributedDataParallel(nn.Linear(WIDTH, WIDTH))
optimizer = torch.optim.SGD(model.parameters(), 1e-2)
loader = DataLoader(
    dataset,
    batch_size=8,
    sampler=DistributedSampler(dataset, seed=1),
    num_workers=int(sys.argv[-1]),
)
session = Session(model=model, optimizer=optimizer)

for step in session.steps(loader, max_steps=400 if dataset.seeks else None, epochs=1000):
    with step as (x, y):
        optimizer.zero_grad()
        loss = (model(x) - y).pow(2).mean()
        loss.backward()
        optimizer.step()
        session.log(loss=loss)
        enough = torch.tensor(float((OUT / "enough").exists()))
        dist.all_reduce(enough)
    if enough:
        break
finish(rank, model)
