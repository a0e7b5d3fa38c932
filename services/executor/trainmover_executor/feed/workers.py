"""Random numbers in loader workers: seeded by what is loaded, not by what the worker did before.

A process that goes on in the middle has other workers, which did nothing before. Map-style: every
index batch carries a seed. Iterable: the seed of the pass and the number of the worker give one. In
both cases the process-wide generators of the worker are seeded with it, and the generator objects
of the dataset.
"""

from __future__ import annotations

import contextlib
import threading
import weakref
from collections.abc import Callable, Iterator
from typing import Any, Final, NamedTuple

import torch
from torch.utils.data import DataLoader, Dataset, IterableDataset, get_worker_info

from trainmover_executor.feed import owned
from trainmover_executor.feed.seeds import mix, seed_process

__all__ = [
    "NOTHING",
    "Collating",
    "Nothing",
    "PassSeed",
    "Seeded",
    "SeededItems",
    "SeededIterable",
    "SeededMap",
    "WorkerInit",
    "end_workers",
    "pass_seed_of",
    "prefetched",
    "replaced",
]


class Seeded(NamedTuple):
    """What a worker has to load, and the seed that it loads it with."""

    seed: int
    index: Any


NOTHING: Final = Seeded(-1, None)
"""To load nothing: it takes a turn among the workers."""


class Nothing:
    """What a worker made of ``NOTHING``."""


class Collating:
    """A loader's ``collate_fn`` that lets ``Nothing`` through.

    Args:
        user: The user's.
    """

    def __init__(self, user: Callable[[Any], Any]) -> None:
        self._user = user

    def __call__(self, data: Any) -> Any:
        """What the user's function makes of ``data``."""
        return data if isinstance(data, Nothing) else self._user(data)


class _Seeding:
    """Seeds a worker's generators, those of ``dataset`` included."""

    def __init__(self, dataset: Any) -> None:
        self.inner = dataset
        self._found: dict[str, Any] | None = None

    def seed(self, seed: int) -> None:
        seed_process(seed)
        if self._found is None:  # in the worker: worker_init_fn may have made some
            self._found = owned.find({"dataset": self.inner})
        owned.reseed(self._found, seed)


class SeededMap(Dataset[Any]):
    """A map-style dataset whose indices come with seeds.

    Args:
        dataset: The user's.
    """

    def __init__(self, dataset: Any) -> None:
        self._seeding = _Seeding(dataset)

    @property
    def inner(self) -> Any:
        """The user's dataset."""
        return self._seeding.inner

    def __getitem__(self, item: Seeded) -> Any:
        if item == NOTHING:
            return Nothing()
        self._seeding.seed(item.seed)
        return self.inner[item.index]

    def __getitems__(self, items: Seeded) -> Any:
        if items == NOTHING:
            return Nothing()
        self._seeding.seed(items.seed)
        together = getattr(self.inner, "__getitems__", None)
        return together(items.index) if together else [self.inner[each] for each in items.index]


class PassSeed:
    """The seed of the pass under way, which workers that outlive a pass can read.

    Attributes:
        passes: Passes begun, here or where a mark came from. No two of a loader are seeded alike.
    """

    def __init__(self) -> None:
        self.passes = 0
        self._cells = torch.zeros(2, dtype=torch.int64).share_memory_()  # type: ignore[no-untyped-call]

    @property
    def value(self) -> int:
        """It."""
        return int(self._cells[0].item())

    @value.setter
    def value(self, seed: int) -> None:
        self._cells[0] = seed

    @property
    def skips(self) -> bool:
        """Whether nobody wants what workers load now."""
        return bool(self._cells[1].item())

    @skips.setter
    def skips(self, skips: bool) -> None:
        self._cells[1] = skips


_pass_seeds: weakref.WeakKeyDictionary[DataLoader[Any], PassSeed] = weakref.WeakKeyDictionary()


def pass_seed_of(loader: Any) -> PassSeed:
    """That of ``loader``: its workers may outlive a call of ``session.steps``."""
    if not isinstance(loader, DataLoader):
        return PassSeed()
    return _pass_seeds.setdefault(loader, PassSeed())


class SeededItems(Dataset[Any]):
    """A map-style dataset whose items are loaded with seeds made of the pass and their indices.

    For loaders that number no index batches, and keep the state of samplers themselves. While the
    seed says that it ``skips``, nothing is loaded, except by a dataset with a state.

    Args:
        dataset: The user's.
        seed: Of the pass.
    """

    def __init__(self, dataset: Any, seed: PassSeed) -> None:
        self._seeding = _Seeding(dataset)
        self._seed = seed
        self._may_skip = not hasattr(dataset, "state_dict")
        if not self._may_skip:
            self.state_dict = dataset.state_dict
            self.load_state_dict = dataset.load_state_dict

    @property
    def inner(self) -> Any:
        """The user's dataset."""
        return self._seeding.inner

    def __getitem__(self, index: Any) -> Any:
        if self._may_skip and self._seed.skips:
            return Nothing()
        self._seeding.seed(mix(self._seed.value, repr(index)))
        return self.inner[index]

    def __getitems__(self, indices: Any) -> Any:
        if self._may_skip and self._seed.skips:
            return Nothing()
        self._seeding.seed(mix(self._seed.value, repr(indices)))
        together = getattr(self.inner, "__getitems__", None)
        return together(indices) if together else [self.inner[each] for each in indices]


class SeededIterable(IterableDataset[Any]):
    """An iterable dataset whose workers are seeded when a pass begins.

    Args:
        dataset: The user's.
        seed: Of the pass.
    """

    def __init__(self, dataset: Any, seed: PassSeed) -> None:
        self._seeding = _Seeding(dataset)
        self._seed = seed

    @property
    def inner(self) -> Any:
        """The user's dataset."""
        return self._seeding.inner

    def __iter__(self) -> Iterator[Any]:
        info = get_worker_info()
        self._seeding.seed(mix(self._seed.value, 0 if info is None else info.id))
        return iter(self.inner)


class WorkerInit:
    """Begins a worker: it sees the user's dataset and the same seed in every life of the rank.

    Args:
        user: The loader's ``worker_init_fn``.
        seed: Of the workers.

    Attributes:
        seed: As given.
    """

    def __init__(self, user: Callable[[int], None] | None, seed: int) -> None:
        self._user = user
        self.seed = seed

    def __call__(self, worker: int) -> None:
        """Run in worker number ``worker``, before it loads anything."""
        own = mix(self.seed, worker)
        info: Any = get_worker_info()
        object.__setattr__(info, "dataset", info.dataset.inner)  # it lets nobody set attributes
        object.__setattr__(info, "seed", own)
        seed_process(own)
        if self._user is not None:
            self._user(worker)


@contextlib.contextmanager
def replaced(loader: DataLoader[Any], **attributes: Any) -> Iterator[None]:
    """While it lasts, ``loader`` has other attributes, those that it lets nobody set included."""
    before = {name: vars(loader)[name] for name in attributes}
    vars(loader).update(attributes)
    try:
        yield
    finally:
        vars(loader).update(before)


def prefetched(loader: DataLoader[Any]) -> float:
    """Batches that the workers of ``loader`` have loaded while nobody draws; 0 without workers."""
    return float(loader.num_workers * (loader.prefetch_factor or 0))


def end_workers(iterator: Any) -> None:
    """End the workers of an iterator that is given up, without waiting for what they load now."""
    if not getattr(iterator, "_shutdown", True):
        shut_down = iterator._shutdown_workers  # noqa: SLF001 - what its finalizer calls
        threading.Thread(target=shut_down, name="tm-end-workers", daemon=True).start()
