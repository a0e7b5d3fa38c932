"""Clears its output, saves under a temporary name, keeps the newest three, links the latest."""

import glob
import json
import os
import shutil

import torch
import torch.distributed as dist
from helper import OUT, Data, finish
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler

from trainmover import Session

dist.init_process_group("trainmover")
rank = dist.get_rank()
home = str(OUT / f"checkpoints-{rank}")
shutil.rmtree(home, ignore_errors=True)
os.makedirs(home)
torch.manual_seed(41)
model = DistributedDataParallel(nn.Sequential(nn.Linear(16, 24), nn.ReLU(), nn.Linear(24, 16)))
optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
sampler = DistributedSampler(Data(360), seed=6)
loader = DataLoader(Data(360), batch_size=8, sampler=sampler)
session = Session(model=model, optimizer=optimizer)


def save_checkpoint(step, loss, is_best):
    path = f"{home}/step-{step:05d}.pt"
    state = {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "step": step}
    torch.save(state, path + ".tmp")
    os.replace(path + ".tmp", path)
    with open(f"{home}/meta.json.tmp", "w") as file:
        json.dump({"step": step, "loss": loss}, file)
    os.rename(f"{home}/meta.json.tmp", f"{home}/meta.json")
    if os.path.islink(f"{home}/latest"):
        os.unlink(f"{home}/latest")
    os.symlink(os.path.basename(path), f"{home}/latest")
    if is_best:
        shutil.copyfile(path, f"{home}/best.pt")
    for old in sorted(glob.glob(f"{home}/step-*.pt"))[:-3]:
        os.remove(old)


best = float("inf")
for epoch in range(6):
    sampler.set_epoch(epoch)
    for step in session.steps(loader):
        with step as (x, y):
            optimizer.zero_grad()
            loss = nn.functional.l1_loss(model(x), y)
            loss.backward()
            optimizer.step()
            session.log(loss=loss)
    save_checkpoint(step.index, loss.item(), loss.item() < best)
    best = min(best, loss.item())
latest = torch.load(f"{home}/latest")
finish(
    rank,
    model,
    names=sorted(os.listdir(home)),
    latest=latest["step"],
    best=torch.load(f"{home}/best.pt")["step"],
    meta=json.load(open(f"{home}/meta.json")),
    same=all(torch.equal(latest["model"][k], v) for k, v in model.state_dict().items()),
)
