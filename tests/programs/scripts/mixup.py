"""Mixup with numpy's beta, label smoothing, a one-cycle schedule, clipping by past norms."""

import collections

import numpy as np
import torch
import torch.distributed as dist
from helper import Data, finish
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler

from trainmover import Session


class Labelled(Data):
    def __getitem__(self, index):
        x, _ = super().__getitem__(index)
        return x, index % 5


def mixup_data(x, y, alpha=0.4):
    lam = np.random.beta(alpha, alpha)
    index = torch.randperm(x.size(0))
    return lam * x + (1 - lam) * x[index], y, y[index], lam


def train_one_epoch(session, loader, model, optimizer, scheduler, criterion, state):
    for step in session.steps(loader):
        with step as (x, y):
            mixed, y_a, y_b, lam = mixup_data(x, y)
            with torch.autocast("cpu", dtype=torch.bfloat16):
                logits = model(mixed)
                loss = lam * criterion(logits, y_a) + (1 - lam) * criterion(logits, y_b)
            optimizer.zero_grad(set_to_none=True)
            loss.backward()
            norm = nn.utils.clip_grad_norm_(model.parameters(), np.median(state["norms"]) * 2)
            optimizer.step()
            session.log(loss=loss)
        scheduler.step()
        state["norms"].append(norm.item())
        state["updates"] += 1
        state["lams"][f"{lam:.1f}"] += 1
    return loss.item()


def run():
    dist.init_process_group("trainmover")
    rank = dist.get_rank()
    torch.manual_seed(76)
    np.random.seed(76 + rank)
    net = nn.Sequential(nn.Linear(16, 32), nn.GELU(), nn.Dropout(0.2), nn.Linear(32, 5))
    model = DistributedDataParallel(net)
    decay = [p for p in net.parameters() if p.ndim > 1]
    plain = [p for p in net.parameters() if p.ndim <= 1]
    optimizer = torch.optim.AdamW(
        [{"params": decay, "weight_decay": 0.1}, {"params": plain, "weight_decay": 0.0}], lr=1e-3
    )
    scheduler = torch.optim.lr_scheduler.OneCycleLR(optimizer, 3e-2, total_steps=96)
    criterion = nn.CrossEntropyLoss(label_smoothing=0.1)
    data = Labelled(768)
    loader = DataLoader(data, batch_size=8, sampler=DistributedSampler(data, seed=9))
    session = Session(model=model, optimizer=optimizer, scheduler=scheduler)
    state = {"norms": collections.deque([1.0], maxlen=16), "updates": 0}
    state["lams"] = collections.defaultdict(int)
    best, patience = float("inf"), 0
    for epoch in range(3):
        loader.sampler.set_epoch(epoch)
        last = train_one_epoch(session, loader, model, optimizer, scheduler, criterion, state)
        mean = session.between_steps(lambda last=last: mean_of(last))
        if mean < best:
            best, patience = mean, 0
        else:
            patience += 1
    finish(rank, model, best=best, patience=patience, **{**state, "lams": dict(state["lams"])})


def mean_of(value):
    total = torch.tensor(value)
    dist.all_reduce(total)
    return total.item() / dist.get_world_size()


if __name__ == "__main__":
    run()
