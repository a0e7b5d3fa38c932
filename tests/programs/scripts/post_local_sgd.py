"""PyTorch's own post-local SGD: a hook for the beginning, an averager behind it."""

import torch
import torch.distributed as dist
from helper import Data, finish
from torch import nn
from torch.distributed.algorithms.ddp_comm_hooks import post_localSGD_hook as post
from torch.distributed.algorithms.model_averaging import averagers
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler

from trainmover import Session

dist.init_process_group("trainmover")
rank = dist.get_rank()
torch.manual_seed(52)
model = DistributedDataParallel(nn.Sequential(nn.Linear(16, 32), nn.Tanh(), nn.Linear(32, 16)))
alone = [dist.new_group([each]) for each in range(dist.get_world_size())][rank]
state = post.PostLocalSGDState(process_group=None, subgroup=alone, start_localSGD_iter=4)
model.register_comm_hook(state, post.post_localSGD_hook)
optimizer = torch.optim.Adam(model.parameters(), lr=0.003)
averager = averagers.PeriodicModelAverager(period=4, warmup_steps=4)
data = Data(2400)
loader = DataLoader(data, batch_size=8, sampler=DistributedSampler(data, seed=4))
session = Session(model=model, optimizer=optimizer)

for step in session.steps(loader, max_steps=90):
    with step as (x, y):
        optimizer.zero_grad()
        loss = nn.functional.mse_loss(model(x), y)
        loss.backward()
        optimizer.step()
        averager.average_parameters(model.parameters())
        session.log(loss=loss)
finish(rank, model)
