"""Points are cloned and pruned while a scene is fitted: other parameters, Adam's state by hand."""

import torch
import torch.distributed as dist
from helper import finish
from torch import nn
from torch.utils.data import DataLoader, Dataset, DistributedSampler

from trainmover import Session


class Rays(Dataset):
    def __len__(self):
        return 3 * 16 * 90

    def __getitem__(self, index):
        ray = torch.rand(2, generator=torch.Generator().manual_seed(index))
        return ray, torch.stack([ray[0], ray[1], ray.prod()])


class Points(nn.Module):
    def __init__(self):
        super().__init__()
        self.xyz = nn.Parameter(torch.rand(40, 2))
        self.color = nn.Parameter(torch.rand(40, 3))

    def forward(self, rays):
        near = torch.softmax(-20 * (rays[:, None] - self.xyz).pow(2).sum(-1), -1)
        return near @ self.color


def replace(name, change):
    """What 3D Gaussian splatting does to densify and prune."""
    for group in optimizer.param_groups:
        if group["name"] == name:
            (old,) = group["params"]
            state = optimizer.state.pop(old)
            new = nn.Parameter(change(old.detach(), old.detach()[:4] + 0.01))
            for key in ("exp_avg", "exp_avg_sq"):
                state[key] = change(state[key], torch.zeros_like(old[:4]))
            optimizer.state[new] = state
            group["params"] = [new]
            setattr(model, name, new)


dist.init_process_group("trainmover")
rank, world = dist.get_rank(), dist.get_world_size()
torch.manual_seed(91)
model = Points()
groups = [{"params": [each], "name": name} for name, each in model.named_parameters()]
optimizer = torch.optim.Adam(groups, lr=0.01)
session = Session(model=model, optimizer=optimizer)
data = Rays()
counts = []
for step in session.steps(DataLoader(data, batch_size=16, sampler=DistributedSampler(data))):
    with step as (rays, colors):
        loss = (model(rays) - colors).pow(2).mean()
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        for parameter in model.parameters():
            dist.all_reduce(parameter.grad)
            parameter.grad /= world
        optimizer.step()
        session.log(loss=loss)
    if step.committed and step.index % 30 == 4:
        near = (model.xyz.detach() - 0.5).norm(dim=1) < 0.7
        for name in ("xyz", "color"):
            replace(name, lambda kept, more: torch.cat([kept[near], more]))
    counts.append(len(model.xyz))
finish(rank, model, counts=counts)
