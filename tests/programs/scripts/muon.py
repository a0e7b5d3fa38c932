"""A language model with Muon for matrices and AdamW for the rest, warm-up and decay."""

import torch
import torch.distributed as dist
from helper import Data, finish
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler

from trainmover import Session

dist.init_process_group("trainmover")
rank = dist.get_rank()
torch.manual_seed(54)


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = nn.Linear(16, 32)
        self.mix = nn.Linear(32, 32, bias=False)
        self.norm = nn.RMSNorm(32)
        self.head = nn.Linear(32, 16)

    def forward(self, x):
        x = self.embed(x)
        return self.head(self.norm(x + self.mix(torch.relu(x)).square()))


net = Net()
model = DistributedDataParallel(net)
matrices = [net.mix.weight]
rest = [p for p in net.parameters() if p is not net.mix.weight]
optimizers = [torch.optim.Muon(matrices, lr=0.02), torch.optim.AdamW(rest, lr=3e-3)]
lr = lambda it: min(1.0, (it + 1) / 10) if it < 60 else max(0.1, (90 - it) / 30)  # noqa: E731
schedulers = [torch.optim.lr_scheduler.LambdaLR(opt, lr) for opt in optimizers]
data = Data(2400)
loader = DataLoader(data, batch_size=8, sampler=DistributedSampler(data, seed=4))
session = Session(model=model, optimizer=optimizers, first=schedulers[0], second=schedulers[1])

for step in session.steps(loader, max_steps=90):
    with step as (x, y):
        loss = nn.functional.mse_loss(model(x), y)
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        for opt, sched in zip(optimizers, schedulers):
            opt.step()
            sched.step()
        model.zero_grad(set_to_none=True)
        session.log(loss=loss)
finish(rank, model)
