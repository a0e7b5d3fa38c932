"""Cross-validation: the same model begins anew for each fold, with its optimizer."""

import copy

import torch
import torch.distributed as dist
from helper import Data, finish
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler

from trainmover import Session

dist.init_process_group("trainmover")
rank = dist.get_rank()
torch.manual_seed(77)
model = DistributedDataParallel(
    nn.Sequential(nn.Linear(16, 32), nn.BatchNorm1d(32), nn.ReLU(), nn.Linear(32, 16))
)
optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
initial = copy.deepcopy(model.state_dict())
data = Data(900)
session = Session(model=model, optimizer=optimizer)
scores = {}
for fold in range(3):
    model.load_state_dict(initial)
    optimizer.state.clear()
    train = [i for i in range(len(data)) if i % 3 != fold]
    held = [i for i in range(len(data)) if i % 3 == fold][:64]
    part = torch.utils.data.Subset(data, train)
    sampler = DistributedSampler(part, seed=fold)
    loader = DataLoader(part, batch_size=8, sampler=sampler, drop_last=True)
    for step in session.steps(loader):
        with step as (x, y):
            optimizer.zero_grad()
            loss = nn.functional.mse_loss(model(x), y)
            loss.backward()
            optimizer.step()
            session.log(loss=loss)

    def score():
        model.eval()
        with torch.no_grad():
            xs, ys = map(torch.stack, zip(*[data[i] for i in held[rank::3]]))
            total = nn.functional.mse_loss(model(xs), ys)
        model.train()
        dist.all_reduce(total)
        return total.item()

    scores[f"fold-{fold}"] = session.between_steps(score)
finish(rank, model, scores=scores)
