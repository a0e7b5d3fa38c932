"""Loaders like the ones that programs have, and what tests of places in the data do with them."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch.utils.data import (
    BatchSampler,
    ConcatDataset,
    DataLoader,
    Dataset,
    DistributedSampler,
    IterableDataset,
    RandomSampler,
    Sampler,
    Subset,
    SubsetRandomSampler,
    WeightedRandomSampler,
    get_worker_info,
)
from torchdata.stateful_dataloader import StatefulDataLoader

from trainmover_executor.feed import Feed
from trainmover_executor.state.packing.portable import pack_tree, unpack_tree
from trainmover_executor.state.rng import capture_rng, restore_rng

SIZE = 22
BATCH = 3


class Numbers(Dataset):
    """(number, random numbers of four kinds); counts what was loaded, in any process."""

    def __init__(self, *, own: bool = True, size: int = SIZE) -> None:
        self.size = size
        self.loaded = torch.zeros(size, dtype=torch.int32).share_memory_()
        if own:
            self.rng = np.random.default_rng(3)
            self.transforms = [Jitter()]

    def __len__(self) -> int:
        return self.size

    def __getitem__(self, index: int) -> torch.Tensor:
        self.loaded[index] += 1
        noise = [float(torch.rand(())), random.random(), float(np.random.rand())]
        if hasattr(self, "rng"):
            noise += [self.rng.random(), self.transforms[0].number()]
        return torch.tensor([float(index), *noise])


class Jitter:
    def __init__(self) -> None:
        self.generators = {"a": random.Random(4), "b": np.random.RandomState(5)}
        self.torchs = torch.Generator().manual_seed(6)

    def number(self) -> float:
        extra = float(torch.rand((), generator=self.torchs))
        return self.generators["a"].random() + self.generators["b"].randn() + extra


class Together(Numbers):
    def __getitems__(self, indices: list[int]) -> list[torch.Tensor]:
        return [self[index] for index in indices]


class Forever(Sampler):
    """An endless sampler that shuffles again and again, with a process-wide generator."""

    def __iter__(self) -> Iterator[int]:
        while True:
            yield from torch.randperm(SIZE).tolist()


class Counting(Sampler):
    """Makes its own epochs."""

    def __init__(self) -> None:
        self.epoch = 0

    def __iter__(self) -> Iterator[int]:
        self.epoch += 1
        order = list(range(SIZE))
        random.Random(self.epoch).shuffle(order)
        return iter(order)

    def __len__(self) -> int:
        return SIZE


class Buckets:
    """A batch sampler of someone's own, with batches of several sizes."""

    def __init__(self) -> None:
        self.rng = np.random.default_rng(9)

    def __iter__(self) -> Iterator[list[int]]:
        order = self.rng.permutation(SIZE).tolist()
        while order:
            size = random.randint(1, 4)
            yield order[:size]
            order = order[size:]

    def __len__(self) -> int:
        return SIZE // 2


class Stream(IterableDataset):
    """Shards a range over workers and shuffles it with Python's process-wide generator."""

    def __init__(self) -> None:
        self.rng = np.random.default_rng(3)

    def __iter__(self) -> Iterator[Any]:
        info = get_worker_info()
        first, stride = (0, 1) if info is None else (info.id, info.num_workers)
        order = list(range(first, SIZE, stride))
        random.shuffle(order)
        for index in order:
            own = self.rng.random()
            yield torch.tensor([index, torch.rand(()), np.random.rand(), own], dtype=torch.float64)


class Shard(IterableDataset):
    """Shards a range over workers, and has a state."""

    def __init__(self) -> None:
        self.at = self.start = 0

    def __iter__(self) -> Iterator[Any]:
        self.at, self.start = self.start, 0
        info = get_worker_info()
        first, stride = (0, 1) if info is None else (info.id, info.num_workers)
        while self.at * stride + first < SIZE:
            self.at += 1
            yield torch.tensor([(self.at - 1) * stride + first])

    def state_dict(self) -> dict[str, Any]:
        return {"at": self.at}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.at = self.start = state["at"]


class Shuffling:
    """A loader class of one's own: every pass shuffles what the last one left, and is counted."""

    def __init__(self) -> None:
        self.rows = [f"row {index}" for index in range(SIZE)]
        self.passes = 0

    def __len__(self) -> int:
        return SIZE // BATCH

    def __getitem__(self, index: int) -> torch.Tensor:
        names = self.rows[index * BATCH : (index + 1) * BATCH]
        return torch.tensor([float(name.split()[1]) for name in names])

    def __iter__(self) -> Iterator[torch.Tensor]:
        random.Random(self.passes).shuffle(self.rows)
        self.passes += 1
        return (self[index] + self.passes for index in range(len(self)))


class Again:
    """A plain iterable that makes its batches of random numbers."""

    def __iter__(self) -> Iterator[torch.Tensor]:
        for index in range(9):
            yield torch.randn(2) + index + random.random()


class OneAhead:
    """A prefetcher, one batch ahead: ``__iter__`` begins a pass, and returns the same object."""

    def __init__(self, loader: Any) -> None:
        self.loader = loader

    def __iter__(self) -> OneAhead:
        self.batches = iter(self.loader)
        self.following = next(self.batches, None)
        return self

    def __next__(self) -> Any:
        batch, self.following = self.following, next(self.batches, None)
        if batch is None:
            raise StopIteration
        return batch


def noisy(items: list[torch.Tensor]) -> torch.Tensor:
    """A collate function that draws."""
    return torch.stack(items) + torch.rand(())


def seeding(worker: int) -> None:
    """A worker_init_fn that looks at everything a worker may look at."""
    info = get_worker_info()
    dataset = info.dataset
    assert isinstance(dataset, Numbers | Subset)
    dataset.offset = info.seed % 1000 + torch.initial_seed() % 1000 + worker
    dataset.made = np.random.default_rng(np.random.randint(1000))


class Offset(Numbers):
    def __getitem__(self, index: int) -> torch.Tensor:
        row = super().__getitem__(index)
        return torch.cat([row, torch.tensor([self.offset, self.made.random()])])


def distributed(dataset: Any, **options: Any) -> DistributedSampler:
    return DistributedSampler(dataset, num_replicas=2, rank=1, seed=4, **options)


def g(seed: int = 7) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def _with(make: Callable[[Any], Any], dataset: Callable[[], Any] = Numbers) -> Callable[[], Any]:
    return lambda: make(dataset())


def _shared_generator(dataset: Any, **options: Any) -> DataLoader:
    one = g()
    sampler = RandomSampler(dataset, replacement=True, generator=one)
    return DataLoader(dataset, BATCH, sampler=sampler, generator=one, **options)


WORKERS = {"num_workers": 2}
LONG = {"num_workers": 2, "persistent_workers": True}

MAP_STYLE: dict[str, Callable[[], Any]] = {
    "in order": _with(lambda d: DataLoader(d, BATCH)),
    "shuffled": _with(lambda d: DataLoader(d, BATCH, shuffle=True)),
    "drop last": _with(lambda d: DataLoader(d, BATCH, shuffle=True, drop_last=True)),
    "generator": _with(lambda d: DataLoader(d, BATCH, shuffle=True, generator=g())),
    "replacement": _with(_shared_generator),
    "subset random": _with(lambda d: DataLoader(d, BATCH, sampler=SubsetRandomSampler(range(15)))),
    "weighted": _with(
        lambda d: DataLoader(d, BATCH, sampler=WeightedRandomSampler([0.1] * SIZE, 20))
    ),
    "distributed": _with(lambda d: DataLoader(d, 2, sampler=distributed(d))),
    "a list of indices": _with(lambda d: DataLoader(d, 2, sampler=[5, 3, 8, 1, 7, 4, 2, 0, 9])),
    "custom": _with(lambda d: DataLoader(d, BATCH, sampler=Counting())),
    "endless": _with(lambda d: DataLoader(d, BATCH, sampler=Forever())),
    "batch sampler": _with(lambda d: DataLoader(d, batch_sampler=Buckets())),
    "batch sampler of torch": _with(
        lambda d: DataLoader(d, batch_sampler=BatchSampler(Counting(), 4, drop_last=True))
    ),
    "single": _with(lambda d: DataLoader(d, batch_size=None, shuffle=True)),
    "together": _with(lambda d: DataLoader(d, BATCH, shuffle=True, collate_fn=noisy), Together),
    "nested": _with(
        lambda d: DataLoader(ConcatDataset([Subset(d, range(9)), d]), BATCH, shuffle=True)
    ),
    "workers": _with(lambda d: DataLoader(d, BATCH, shuffle=True, **WORKERS)),
    "workers, four": _with(lambda d: DataLoader(d, 2, sampler=distributed(d), num_workers=4)),
    "workers, generator": _with(
        lambda d: DataLoader(d, BATCH, shuffle=True, generator=g(), **WORKERS)
    ),
    "workers, replacement": _with(lambda d: _shared_generator(d, **WORKERS)),
    "workers, endless": _with(lambda d: DataLoader(d, BATCH, sampler=Forever(), **WORKERS)),
    "workers, single": _with(lambda d: DataLoader(d, batch_size=None, shuffle=True, **WORKERS)),
    "workers, together": _with(
        lambda d: DataLoader(d, BATCH, shuffle=True, collate_fn=noisy, **WORKERS), Together
    ),
    "workers, batch sampler": _with(lambda d: DataLoader(d, batch_sampler=Buckets(), **WORKERS)),
    "workers, init": _with(
        lambda d: DataLoader(d, BATCH, worker_init_fn=seeding, **WORKERS), Offset
    ),
    "persistent": _with(lambda d: DataLoader(d, BATCH, shuffle=True, **LONG)),
    "persistent, generator": _with(
        lambda d: DataLoader(d, BATCH, shuffle=True, generator=g(), **LONG)
    ),
    "persistent, distributed": _with(lambda d: DataLoader(d, 2, sampler=distributed(d), **LONG)),
    "persistent, init": _with(
        lambda d: DataLoader(d, BATCH, worker_init_fn=seeding, **LONG), Offset
    ),
}

DRAWN: dict[str, Callable[[], Any]] = {
    "iterable": lambda: DataLoader(Stream(), BATCH),
    "iterable, workers": lambda: DataLoader(Stream(), 2, **WORKERS),
    "iterable, persistent": lambda: DataLoader(Stream(), 2, **LONG),
    "iterable, generator": lambda: DataLoader(Stream(), 2, generator=g(), **WORKERS),
    "a plain iterable": Again,
    "a prefetcher": lambda: OneAhead(DataLoader(Numbers(), BATCH, shuffle=True)),
    "one's own, with a state": Shuffling,
    "torchdata, no state": lambda: StatefulDataLoader(Stream(), 2),
    "torchdata, no state, workers": lambda: StatefulDataLoader(Stream(), 2, **WORKERS),
}


def asked(loader: StatefulDataLoader) -> StatefulDataLoader:
    """It was asked for its state before its first pass, as Accelerate does."""
    loader.state_dict()
    return loader


STATEFUL: dict[str, Callable[[], Any]] = {
    "torchdata": _with(lambda d: StatefulDataLoader(d, BATCH, shuffle=True)),
    "torchdata, distributed": _with(lambda d: StatefulDataLoader(d, 2, sampler=distributed(d))),
    "torchdata, weighted": _with(
        lambda d: StatefulDataLoader(d, BATCH, sampler=WeightedRandomSampler([0.1] * SIZE, 20))
    ),
    "torchdata, custom": _with(lambda d: StatefulDataLoader(d, BATCH, sampler=Counting())),
    "torchdata, asked": _with(
        lambda d: asked(StatefulDataLoader(d, BATCH, sampler=SubsetRandomSampler(range(15))))
    ),
    "torchdata, workers, asked": _with(
        lambda d: asked(StatefulDataLoader(d, 2, sampler=distributed(d), **WORKERS))
    ),
    "torchdata, batch sampler": _with(lambda d: StatefulDataLoader(d, batch_sampler=Buckets())),
    "torchdata, single": _with(
        lambda d: StatefulDataLoader(d, batch_size=None, sampler=SubsetRandomSampler(range(15)))
    ),
    "torchdata, workers": _with(lambda d: StatefulDataLoader(d, BATCH, shuffle=True, **WORKERS)),
    "torchdata, workers, random": _with(
        lambda d: StatefulDataLoader(d, BATCH, sampler=RandomSampler(d), **WORKERS)
    ),
    "torchdata, init": _with(
        lambda d: StatefulDataLoader(d, BATCH, worker_init_fn=seeding, **WORKERS), Offset
    ),
    "torchdata, persistent": _with(
        lambda d: StatefulDataLoader(d, BATCH, shuffle=True, generator=g(), **LONG)
    ),
    "torchdata, persistent, custom": _with(
        lambda d: StatefulDataLoader(d, BATCH, sampler=Counting(), **LONG)
    ),
    "torchdata, iterable": lambda: StatefulDataLoader(Shard(), 2),
    "torchdata, iterable, workers": lambda: StatefulDataLoader(Shard(), 2, **WORKERS),
    "a loader of one's own": Shard,
}

SEQUENCES: dict[str, Callable[[], Any]] = {
    "list": lambda: [torch.full((2,), float(i)) for i in range(9)],
    "tuple": lambda: tuple(range(9)),
    "dataset": lambda: Subset(Numbers(), range(9)),
}


@dataclass
class Trace:
    """What training saw: one item for each batch.

    Attributes:
        batches: The batches, with a number that training drew from each generator after each.
        places: Position and random generators after each batch, as another process gets them.
    """

    batches: list[tuple[Any, ...]] = field(default_factory=list)
    places: list[bytes] = field(default_factory=list)


def seed_all(seed: int) -> None:
    random.seed(seed)
    np.random.seed(seed)
    torch.manual_seed(seed)


def train(feed: Feed, *, most: int, trace: Trace | None = None) -> Trace:
    """Draw batches, and between them what dropout and augmentation of training would draw."""
    trace = Trace() if trace is None else trace
    for _ in range(most):
        more, batch = feed.draw()
        if not more:
            break
        noise = [float(torch.rand(2)[0]), random.random(), float(np.random.randn())]
        trace.batches.append((feed.epoch, _flat(batch), *noise))
        place = {"feed": feed.position(), "rng": capture_rng()}
        trace.places.append(pack_tree(place))
    return trace


def _flat(batch: Any) -> Any:
    if isinstance(batch, list):
        return [_flat(each) for each in batch]
    return batch.tolist() if isinstance(batch, torch.Tensor) else batch


def go(feed: Feed, place: bytes) -> None:
    """What a joiner does at the switch."""
    tree = unpack_tree(place)
    feed.seek(tree["feed"])
    restore_rng(tree["rng"])
