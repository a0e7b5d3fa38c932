"""Optimizers of libraries keep things everywhere: MADGRAD's count, Ranger's rate, Lookahead."""

import torch
import torch.distributed as dist
from helper import Data, finish
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler

from trainmover import Session


class Counting(torch.optim.Optimizer):
    """Keeps a count that belongs to no parameter, a rate in an attribute, an object for each."""

    class Mean:
        def __init__(self, like):
            self.value, self.seen = torch.zeros_like(like), 0

    def __init__(self, params):
        super().__init__(params, {"lr": 0.05, "dtype": torch.float32})
        self.rate = 1.0

    @torch.no_grad()
    def step(self, closure=None):
        if "k" not in self.state:
            self.state["k"] = torch.zeros(1)
        self.state["k"] += 1
        self.rate = 1.0 / (1.0 + 0.1 * float(self.state["k"]))
        for group in self.param_groups:
            for p in group["params"]:
                mean = self.state[p].setdefault("mean", self.Mean(p))
                mean.seen += 1
                mean.value = mean.value + (p.grad - mean.value) / mean.seen
                p.sub_(mean.value, alpha=group["lr"] * self.rate)


class Lookahead(torch.optim.Optimizer):
    """Wraps an optimizer, and keeps slow weights of its own."""

    def __init__(self, optimizer, k=5):
        self.optimizer = optimizer
        super().__init__(optimizer.param_groups, {})
        self.param_groups = optimizer.param_groups
        self.k, self.count = k, 0

    def zero_grad(self, set_to_none=True):
        self.optimizer.zero_grad(set_to_none)

    @torch.no_grad()
    def step(self, closure=None):
        self.optimizer.step()
        self.count += 1
        for group in self.param_groups:
            for p in group["params"]:
                slow = self.state[p].setdefault("slow", p.clone())
                if self.count % self.k == 0:
                    p.copy_(slow.lerp_(p, 0.5))


dist.init_process_group("trainmover")
rank = dist.get_rank()
torch.manual_seed(92)
net = nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 16))
model = DistributedDataParallel(net)
body = Counting(net[0].parameters())
head = Lookahead(torch.optim.AdamW(net[2].parameters(), lr=0.01))
data = Data(2400)
loader = DataLoader(data, batch_size=8, sampler=DistributedSampler(data, seed=4))
session = Session(model=model, optimizer=[body, head])

for step in session.steps(loader, max_steps=90):
    with step as (x, y):
        loss = (model(x) - y).pow(2).mean()
        loss.backward()
        for optimizer in (body, head):
            optimizer.step()
            optimizer.zero_grad()
        session.log(loss=loss.detach())

finish(rank, model, rate=body.rate, count=head.count)
