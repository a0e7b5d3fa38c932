"""A loader whose passes depend on global variables, on one around its class, and on the loop's."""

import numpy as np
import torch
import torch.distributed as dist
from helper import Data, finish
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from trainmover import Session

RNG = np.random.default_rng(6)
STATE = {"passes": 0}
global_step = 0


def order_of(count):
    STATE["passes"] += 1
    return RNG.permutation(count)


def make_batches(data):
    epoch = 0

    class Batches:
        def __iter__(self):
            nonlocal epoch
            epoch += 1
            order = np.roll(order_of(len(data)), epoch * STATE["passes"])
            for at in range(rank * 8, 30 * 8, world * 8):
                x, y = zip(*[data[index] for index in order[at : at + 8].tolist()])
                yield torch.stack(x) * (1 + global_step / 100), torch.stack(y)

    return Batches()


dist.init_process_group("trainmover")
rank, world = dist.get_rank(), dist.get_world_size()
torch.manual_seed(94)
model = DistributedDataParallel(nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 16)))
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
session = Session(model=model, optimizer=optimizer)
batches = make_batches(Data(1500))
for _ in range(8):
    for step in session.steps(batches):
        with step as (x, y):
            loss = (model(x) - y).pow(2).mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            session.log(loss=loss)
        global_step += 1
finish(rank, model, global_step=global_step, **STATE)
