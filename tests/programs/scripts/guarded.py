"""A loop that forgives: out of memory skips a batch, a loss that is not finite is left out."""

import logging

import torch
import torch.distributed as dist
from helper import Data, finish
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler

from trainmover import Session

log = logging.getLogger("train")
dist.init_process_group("trainmover")
rank = dist.get_rank()
torch.manual_seed(80)
model = DistributedDataParallel(nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 16)))
optimizer = torch.optim.SGD(model.parameters(), 0.05, momentum=0.9)
loader = DataLoader(Data(), batch_size=8, sampler=DistributedSampler(Data(), seed=11))
session = Session(model=model, optimizer=optimizer)
skipped, good, losses = 0, 0, []
for step in session.steps(loader, max_steps=90):
    with step as (x, y):
        try:
            optimizer.zero_grad()
            loss = (model(x) - y).pow(2).mean()
            if step.index % 17 == 16:
                loss = loss * float("inf")
            flag = torch.tensor([float(torch.isfinite(loss))])
            dist.all_reduce(flag, op=dist.ReduceOp.MIN)
            loss.backward()
            session.log(loss=loss)
            if flag.item() < 1:
                skipped += 1
                optimizer.zero_grad()
                continue
            optimizer.step()
        except torch.OutOfMemoryError:
            log.exception("out of memory")
            optimizer.zero_grad()
            skipped += 1
        except RuntimeError as error:
            if "out of memory" not in str(error):
                raise
            skipped += 1
        finally:
            good += 1
    losses.append(loss.item())
finish(rank, model, skipped=skipped, good=good, losses=losses)
