"""A small job whose batches take their time, over one of many kinds of loader, begun anywhere.

Batches before the beginning take no time, where they are loaded at all: they stand for those that
a warm standby has followed while training ran.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Iterator
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, Dataset, DistributedSampler, IterableDataset, Sampler

from trainmover import Session

BATCH = 4
WIDTH = 32
SIZE = 2_000_000


def item(index: int) -> torch.Tensor:
    return torch.sin(torch.arange(WIDTH) * float(index % 1000 + 1))


class Items(Dataset[torch.Tensor]):
    """Every item takes a part of a batch's time, and is augmented at random."""

    def __init__(self, cost_s: float) -> None:
        self.cost_s = cost_s

    def __len__(self) -> int:
        return SIZE

    def __getitem__(self, index: int) -> torch.Tensor:
        if self.cost_s:
            time.sleep(self.cost_s)
        return item(index) + 0.01 * torch.randn(WIDTH)


class Forever(Sampler[int]):
    def __init__(self, rank: int) -> None:
        self.rank = rank

    def __iter__(self) -> Iterator[int]:
        generator = torch.Generator().manual_seed(self.rank)
        while True:
            yield from torch.randint(SIZE, (1024,), generator=generator).tolist()


class Lines(IterableDataset[torch.Tensor]):
    """Can only be read in order; takes time from number ``free`` on."""

    def __init__(self, cost_s: float, *, free: int, rank: int) -> None:
        self.cost_s, self.free, self.rank = cost_s, free, rank

    def __iter__(self) -> Iterator[torch.Tensor]:
        info = torch.utils.data.get_worker_info()
        first, stride = (0, 1) if info is None else (info.id, info.num_workers)
        nothing = torch.zeros(WIDTH)
        for index in range(first, SIZE, stride):
            if index < self.free:
                yield nothing
                continue
            time.sleep(self.cost_s)
            yield item(2 * index + self.rank) + 0.01 * torch.randn(WIDTH)


class Batches:
    """A list of batches that is too long to be kept."""

    def __init__(self, cost_s: float, rank: int) -> None:
        self.cost_s, self.rank = cost_s, rank

    def __len__(self) -> int:
        return SIZE // BATCH

    def __getitem__(self, index: int) -> torch.Tensor:
        if self.cost_s:
            time.sleep(self.cost_s)
        return torch.stack([item(index * BATCH + each + self.rank) for each in range(BATCH)])


def stateful(dataset: Items, *, start: int, **options: Any) -> Any:
    """A StatefulDataLoader after ``start`` batches, as from a checkpoint.

    Drawing 100,000 batches from workers takes minutes: the state is that of one which has drawn a
    few, with all that counts brought forward.
    """
    from torchdata.stateful_dataloader import StatefulDataLoader  # noqa: PLC0415 - one kind of many

    loader = StatefulDataLoader(dataset, BATCH, **options)
    if start:
        cost_s, dataset.cost_s = dataset.cost_s, 0.0
        torch.manual_seed(5)  # workers are seeded by it, which the state holds
        one, two = (_after(StatefulDataLoader(dataset, BATCH, **options), at) for at in (2, 4))
        dataset.cost_s = cost_s
        loader.load_state_dict(_extended(one, two, (start - 2) / 2))
    return loader


def _after(loader: Any, batches: int) -> dict[str, Any]:
    drawing = iter(loader)
    for _ in range(batches):
        next(drawing)
    state: dict[str, Any] = loader.state_dict()
    return state


def _extended(one: Any, two: Any, times: float) -> Any:
    """What grows from ``one`` to ``two``, grown that many times."""
    if isinstance(one, dict):
        return {key: _extended(one[key], two[key], times) for key in one}
    grows = type(one) is int and one < two < 2**32  # others are seeds
    return round(one + times * (two - one)) if grows else one


def loaders(
    *, cost_s: float, start: int, workers: int, rank: int, world: int
) -> dict[str, Callable[[], Any]]:
    """Kinds of loaders, by name."""
    items = Items(cost_s / BATCH)
    both: dict[str, Any] = {"num_workers": workers, "persistent_workers": workers > 0}

    def distributed() -> DistributedSampler[torch.Tensor]:
        return DistributedSampler(items, num_replicas=world, rank=rank, seed=3)

    def generator() -> torch.Generator:
        return torch.Generator().manual_seed(rank)

    lines = Lines(cost_s / BATCH, free=start * BATCH, rank=rank)
    return {
        "distributed": lambda: DataLoader(items, BATCH, sampler=distributed(), **both),
        "shuffle": lambda: DataLoader(items, BATCH, shuffle=True, generator=generator(), **both),
        "infinite": lambda: DataLoader(items, BATCH, sampler=Forever(rank), **both),
        "stateful": lambda: stateful(items, start=start, sampler=distributed(), **both),
        "iterable": lambda: DataLoader(lines, BATCH, num_workers=workers),
        "sequence": lambda: Batches(cost_s, rank),
    }


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--loader", required=True)
    parser.add_argument("--workers", type=int, default=0)
    parser.add_argument("--start", type=int, default=0, help="the job's first step")
    parser.add_argument("--steps", type=int, default=1_000_000, help="steps from there on")
    parser.add_argument("--cost-s", type=float, default=0.02, help="of loading a batch")
    options = parser.parse_args()
    torch.set_num_threads(1)
    Session.init()
    rank = dist.get_rank()
    torch.manual_seed(5)
    model = DistributedDataParallel(
        nn.Sequential(nn.Linear(WIDTH, 64), nn.GELU(), nn.Dropout(0.1), nn.Linear(64, WIDTH))
    )
    torch.manual_seed(100 + rank)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    loader = loaders(
        cost_s=options.cost_s,
        start=options.start,
        workers=options.workers,
        rank=rank,
        world=dist.get_world_size(),
    )[options.loader]()
    session = Session(model=model, optimizer=optimizer)
    steps = session.steps(loader, start_step=options.start, max_steps=options.start + options.steps)
    for step in steps:
        with step as batch:
            optimizer.zero_grad()
            loss = (model(batch) - batch.roll(1, dims=-1)).pow(2).mean()
            loss.backward()
            optimizer.step()
            session.log(loss=loss)


if __name__ == "__main__":
    main()
