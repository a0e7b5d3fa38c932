"""A usual training loop on a GPU: pinned batches, copied ahead on a stream, a fused optimizer."""

import torch
import torch.distributed as dist
from helper import Data, finish
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler

from trainmover import Session


class Ahead:
    """Copies the next batch to the GPU while the current one is worked on."""

    def __init__(self, loader, device):
        self.loader, self.device = loader, device
        self.stream = torch.cuda.Stream(device)

    def __len__(self):
        return len(self.loader)

    def __iter__(self):
        self.batches = iter(self.loader)
        self.fetch()
        return self

    def fetch(self):
        batch = next(self.batches, None)
        if batch is None:
            self.following = None
            return
        with torch.cuda.stream(self.stream):
            self.following = [each.to(self.device, non_blocking=True) for each in batch]

    def __next__(self):
        torch.cuda.current_stream().wait_stream(self.stream)
        batch = self.following
        if batch is None:
            raise StopIteration
        for each in batch:
            each.record_stream(torch.cuda.current_stream())
        self.fetch()
        return batch


dist.init_process_group("trainmover")
rank = dist.get_rank()
device = torch.device("cuda", 0)
torch.cuda.set_device(device)
torch.manual_seed(90)
layers = [nn.Linear(16, 64), nn.LayerNorm(64), nn.GELU(), nn.Dropout(0.2), nn.Linear(64, 16)]
model = DistributedDataParallel(nn.Sequential(*layers).to(device), device_ids=[0])
optimizer = torch.optim.AdamW(model.parameters(), 2e-3, fused=True)
scheduler = torch.optim.lr_scheduler.OneCycleLR(optimizer, 2e-3, total_steps=90)
sampler = DistributedSampler(Data(720), seed=6)
loader = DataLoader(Data(720), batch_size=8, sampler=sampler, num_workers=2, pin_memory=True)
torch.cuda.manual_seed(900 + rank)  # dropout differs by rank
session = Session(model=model, optimizer=optimizer, scheduler=scheduler)
running = torch.zeros((), device=device)

for epoch in range(3):
    sampler.set_epoch(epoch)
    for step in session.steps(Ahead(loader, device)):
        with step as (x, y):
            optimizer.zero_grad()
            loss = nn.functional.mse_loss(model(x), y)
            loss.backward()
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            scheduler.step()
            session.log(loss=loss)
        running = 0.9 * running + 0.1 * loss.detach()
finish(rank, model, running=running.item().hex(), lr=scheduler.get_last_lr())
