"""Each rank keeps the momentum of its share of the parameters, as Muon written by hand."""

import torch
import torch.distributed as dist
from helper import Data, finish
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler

from trainmover import Session

dist.init_process_group("trainmover")
rank, world = dist.get_rank(), dist.get_world_size()
torch.manual_seed(57)


class SharedMomentum(torch.optim.Optimizer):
    def __init__(self, params, lr=0.02, momentum=0.9):
        super().__init__(params, {"lr": lr, "momentum": momentum})

    @torch.no_grad()
    def step(self):
        for group in self.param_groups:
            updates = []
            for i, p in enumerate(group["params"]):
                update = torch.zeros_like(p)
                if i % world == rank:
                    state = self.state[p]
                    if "momentum_buffer" not in state:
                        state["momentum_buffer"] = torch.zeros_like(p)
                    update = state["momentum_buffer"].mul_(group["momentum"]).add_(p.grad)
                updates.append(update.flatten())
            flat = torch.cat(updates)
            dist.all_reduce(flat)
            for p, update in zip(group["params"], flat.split([u.numel() for u in updates])):
                p.add_(update.view_as(p), alpha=-group["lr"])


model = DistributedDataParallel(
    nn.Sequential(nn.Linear(16, 32), nn.Tanh(), nn.Linear(32, 16)),
)
optimizer = SharedMomentum(model.parameters())
loader = DataLoader(Data(2400), batch_size=8, sampler=DistributedSampler(Data(2400), seed=4))
session = Session(model=model, optimizer=optimizer)

for step in session.steps(loader, max_steps=60):
    with step as (x, y):
        loss = nn.functional.mse_loss(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        session.log(loss=loss)
kept = [state["momentum_buffer"].sum().item() for state in optimizer.state.values()]
finish(rank, model, kept=kept)
