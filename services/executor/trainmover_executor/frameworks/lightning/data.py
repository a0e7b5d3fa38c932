"""The loader that steps are made of."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice
from typing import Any

from torch.utils.data import DataLoader, IterableDataset

from trainmover.errors import ConfigError
from trainmover_executor.feed.sources.map_style import is_map_style
from trainmover_executor.feed.sources.stateful import resumes_itself

__all__ = ["movable_loader"]


def movable_loader(combined: Any, *, batches: float) -> DataLoader[Any]:
    """The one loader of a fit, cut to what an epoch takes.

    Args:
        combined: Lightning's collection of loaders.
        batches: Batches of an epoch.

    Raises:
        ConfigError: There are several loaders, or one of a kind that is not carried.
    """
    loader = combined.flattened[0]
    if len(combined.flattened) != 1 or combined.iterables is not loader:
        raise ConfigError(
            "a fit reads one train_dataloader here, and got a collection of them: make one "
            "DataLoader over one data set (torch.utils.data.StackDataset zips several)"
        )
    resumes = isinstance(loader, DataLoader) and resumes_itself(loader) and _has_length(loader)
    if not (resumes or is_map_style(loader)):
        raise ConfigError(
            f"the train_dataloader is a {type(loader).__name__} that cannot be gone to by index "
            "(an iterable data set, or a class with a way of its own to draw batches), and the "
            "last batch of an epoch is not known before it comes. Pass a torch DataLoader over a "
            "data set with __len__ and __getitem__, or torchdata's StatefulDataLoader over one."
        )
    held = vars(loader)
    if resumes and len(loader) > batches:
        raise ConfigError(
            f"an epoch takes {batches:.0f} of the {len(loader)} batches of a "
            f"{type(loader).__name__}, whose state counts all: leave out limit_train_batches, or "
            "pass a torch DataLoader"
        )
    if len(loader) > batches:
        name = "sampler" if loader.batch_sampler is None else "batch_sampler"
        held[name] = _First(held[name], int(batches))
    whole: DataLoader[Any] = loader
    return whole


def _has_length(loader: DataLoader[Any]) -> bool:
    return not isinstance(loader.dataset, IterableDataset)


class _First:
    """The first so many of what a sampler gives.

    Args:
        sampler: Which.
        count: How many.
    """

    def __init__(self, sampler: Any, count: int) -> None:
        self.sampler = sampler
        self.count = count

    def __iter__(self) -> Iterator[Any]:
        return islice(iter(self.sampler), self.count)

    def __len__(self) -> int:
        return self.count

    def __getattr__(self, name: str) -> Any:
        return getattr(self.__dict__["sampler"], name)
