"""In front of the body a rate decays, and from step 40 on modules observe their inputs no more."""

import torch
import torch.distributed as dist
from helper import Data, finish
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler

from trainmover import Session


class Observer(nn.Module):
    """Rounds its input to 256 levels of the range that it has seen."""

    def __init__(self):
        super().__init__()
        self.register_buffer("low", torch.tensor(0.0))
        self.register_buffer("high", torch.tensor(1.0))
        self.observing = True

    def forward(self, x):
        if self.observing:
            self.low = torch.minimum(self.low, x.min().detach())
            self.high = torch.maximum(self.high, x.max().detach())
        scale = (self.high - self.low).item() / 255
        zero = round(-self.low.item() / scale)
        return torch.fake_quantize_per_tensor_affine(x, scale, zero, 0, 255)


dist.init_process_group("trainmover")
rank = dist.get_rank()
torch.manual_seed(37)
net = nn.Sequential(nn.Linear(16, 32), Observer(), nn.ReLU(), nn.Linear(32, 16), Observer())
model = DistributedDataParallel(net, broadcast_buffers=False)
optimizer = torch.optim.SGD(model.parameters(), 0.05, momentum=0.9)
loader = DataLoader(Data(), batch_size=8, sampler=DistributedSampler(Data(), seed=12))
session = Session(model=model, optimizer=optimizer)

for i, step in enumerate(session.steps(loader, max_steps=80)):
    optimizer.param_groups[0]["lr"] *= 0.98
    if i == 40:
        for module in net:
            if isinstance(module, Observer):
                module.observing = False
    with step as (x, y):
        optimizer.zero_grad()
        loss = nn.functional.mse_loss(model(x), y)
        loss.backward()
        optimizer.step()
        session.log(loss=loss)
finish(rank, model, rate=optimizer.param_groups[0]["lr"], observing=net[1].observing)
