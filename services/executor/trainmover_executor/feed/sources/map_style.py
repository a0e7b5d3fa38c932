"""Map-style torch DataLoaders: the sampler is advanced, not the data."""

from __future__ import annotations

import contextlib
import weakref
from collections.abc import Iterator
from typing import Any, Final

import torch
from torch.utils.data import DataLoader, MapDataPipe
from torch.utils.data.dataloader import _DatasetKind

from trainmover_executor.feed import owned
from trainmover_executor.feed.sources.indices import IndexPass, Indices
from trainmover_executor.feed.sources.owning import Owning
from trainmover_executor.feed.sources.source import How
from trainmover_executor.feed.workers import (
    Collating,
    Nothing,
    SeededMap,
    WorkerInit,
    end_workers,
    prefetched,
    replaced,
)

__all__ = ["MapSource", "has_map_style_data", "is_map_style"]

_LEAD: Final = 2
"""A planned move follows more steps than that behind the beginning of a preload."""

_indices: weakref.WeakKeyDictionary[DataLoader[Any], Indices] = weakref.WeakKeyDictionary()
"""One for each loader: workers may outlive a call of ``session.steps``, and passes are counted."""


def is_map_style(loader: Any) -> bool:
    """Whether it is a torch DataLoader that reads a map-style dataset in torch's own way."""
    return has_map_style_data(loader) and type(loader).__iter__ is DataLoader.__iter__


def has_map_style_data(loader: Any) -> bool:
    """Whether it is a torch DataLoader over a map-style dataset, in a way of its own maybe."""
    return (
        isinstance(loader, DataLoader)
        and loader._dataset_kind == _DatasetKind.Map  # noqa: SLF001 - what torch decides by
        and not isinstance(loader.dataset, MapDataPipe)
    )


class MapSource(Owning):
    """Reads a map-style DataLoader.

    Args:
        loader: The loader.
        apart: See ``Feed``; workers that outlive a pass count all passes nevertheless.
    """

    how: How = "index"
    follows = False
    prepares = True

    def __init__(self, loader: DataLoader[Any], *, apart: bool = False) -> None:
        super().__init__()
        self._loader = loader
        is_alone = apart and not loader.persistent_workers
        self._indices = (
            Indices(loader, notes_changes=True)
            if is_alone
            else _indices.setdefault(loader, Indices(loader))
        )
        self._generator = loader.generator
        self.loads_ahead = loader.num_workers > 0
        self.unloaded = 0
        self.drops = prefetched(loader)
        self._iterator: Iterator[Any] | None = None
        self._spare: IndexPass | None = None

    def lead(self, at: int) -> int:
        """See ``Source``."""
        try:
            left = len(self._indices) - 1 - at
        except TypeError:  # without an end
            return _LEAD
        return max(0, min(_LEAD, left))

    def begin(self) -> None:
        """See ``Source``."""
        self.begin_at(0)

    def begin_at(self, batches: int) -> None:
        """See ``Source``."""
        following = self._indices.fresh(ahead=batches, worker_seed=self._running_seed())
        self._skip_workers(following, batches)
        if self._goes_on and self._loader._iterator is None:  # noqa: SLF001 - passed over
            with self._nothing_drawn():
                self._begin(following)
        else:
            self._begin(following)
        if batches:
            following.skip_to(batches)

    def pass_over(self) -> None:
        """See ``Source``."""
        if not self._goes_on:  # what an iterator of the loader draws when it is made
            torch.empty((), dtype=torch.int64).random_(generator=self._loader.generator)
        self._indices.fresh(worker_seed=self._running_seed()).skip_to(len(self._indices))

    @property
    def _goes_on(self) -> bool:
        """Whether the next pass is read by the iterator of the one before."""
        return self._loader.persistent_workers and self._indices.passes > 0

    def _nothing_drawn(self) -> contextlib.AbstractContextManager[None]:
        """While it lasts, an iterator that is made draws no number of the loader's or the job's."""
        return replaced(self._loader, generator=torch.Generator())

    def _running_seed(self) -> int | None:
        running: Any = self._loader._iterator  # noqa: SLF001 - there is no other way to them
        begun = getattr(running, "_worker_init_fn", None)
        return begun.seed if isinstance(begun, WorkerInit) else None

    def draw(self) -> Any:
        """See ``Source``."""
        assert self._spare is not None  # noqa: S101 - a pass was begun
        if self._spare.repeats:
            self._spare.arrive()
        return self._next()

    def _next(self) -> Any:
        assert self._iterator is not None  # noqa: S101 - a pass was begun
        batch = next(self._iterator)
        while isinstance(batch, Nothing):
            batch = next(self._iterator)
        return batch

    def drop(self, left: int) -> None:
        """See ``Source``."""
        del left
        self._next()

    def mark(self) -> dict[str, Any]:
        """See ``Source``."""
        assert self._spare is not None  # noqa: S101 - a pass was begun
        now = owned.capture(self._owned)
        return {**self._spare.mark, "now": now, "begun": self._indices.passes}

    def goes_on(self, mark: dict[str, Any]) -> bool:
        """See ``Source``."""
        is_same = self._spare is not None and self._spare.mark["id"] == mark["id"]
        if self._spare is not None and is_same:
            self._spare.repeat(mark)
        return is_same

    def rest_mark(self) -> dict[str, Any]:
        """See ``Source``."""
        return {**self._indices.state(), "now": owned.capture(self._find())}

    def rest(self, mark: dict[str, Any]) -> None:
        """See ``Source``."""
        self._spare = None
        if mark["passes"] == 0:
            self._end_running()  # where the mark was taken, there are none yet
        self._indices.load_state(mark)
        owned.restore(self._find(), mark["now"])

    def rewind(self) -> None:
        """See ``Source``."""

    def prepare(self, mark: dict[str, Any], at: int, *, until: float) -> bool:
        """See ``Source``."""
        self._spare = self._near(mark, at)
        return self._spare.skip_to(at, until=until)

    def resume(self, mark: dict[str, Any], at: int) -> int:
        """See ``Source``."""
        following = self._near(mark, at)
        following.skip_to(at)
        self._skip_workers(following, at)
        with self._nothing_drawn():
            self._begin(following)
        return at

    def _skip_workers(self, following: IndexPass, at: int) -> None:
        following.skips = at % self._loader.num_workers if self.loads_ahead else 0

    def arrive(self, mark: dict[str, Any]) -> None:
        """See ``Source``."""
        owned.restore(self._owned, mark["now"])
        if self._spare is not None:
            self._spare.repeat(mark)
            self._spare.arrive()
        self.recount(mark)

    def beside(self) -> dict[str, Any]:
        """See ``Source``."""
        return {**super().beside(), "attributes": self._indices.attributes()}

    def put_beside(self, state: dict[str, Any]) -> None:
        """See ``Source``."""
        super().put_beside(state)
        self._indices.load_attributes(state["attributes"])

    def recount(self, mark: dict[str, Any]) -> None:
        """See ``Source``."""
        self._indices.passes = mark.get("begun", mark["passes"])

    def _near(self, mark: dict[str, Any], at: int) -> IndexPass:
        """The pass of ``mark``, not beyond ``at`` index batches."""
        spare = self._spare
        if spare is not None and spare.began and spare.at <= at and spare.mark["id"] == mark["id"]:
            spare.repeat(mark)
            return spare
        return self._indices.repeated(mark)

    def _begin(self, following: IndexPass) -> None:
        loader, indices = self._loader, self._indices
        self._spare = indices.following = following
        auto = loader.batch_sampler is not None
        changes: dict[str, Any] = {"batch_sampler" if auto else "sampler": indices}
        if self.loads_ahead:
            seed = following.worker_seed
            changes["dataset"] = SeededMap(loader.dataset)
            changes["collate_fn"] = Collating(loader.collate_fn)
            changes["worker_init_fn"] = WorkerInit(loader.worker_init_fn, seed)
            self._check_workers(seed)
        with replaced(loader, **changes):
            self._iterator = DataLoader.__iter__(loader)  # and not that of a class of its own
        self._owned = self._find()

    def _check_workers(self, seed: int) -> None:
        """End workers that outlived a pass, unless they can go on with ours."""
        begun = self._running_seed()
        if begun is None or (begun != seed and self._loader.worker_init_fn is not None):
            self._end_running()

    def _end_running(self) -> None:
        end_workers(self._loader._iterator)  # noqa: SLF001 - there is no other way to them
        self._loader._iterator = None  # noqa: SLF001 - as above

    def _find(self) -> dict[str, Any]:
        loader = self._loader
        roots: dict[str, Any] = {"generator": self._generator, "sampler": self._indices.sampler}
        if not self.loads_ahead:
            roots.update(dataset=loader.dataset, collate_fn=loader.collate_fn)
        return owned.find(roots, apart=(loader.dataset,) if self.loads_ahead else ())

    def end(self) -> None:
        """See ``Source``."""
        if self._iterator is not None and not self._loader.persistent_workers:
            end_workers(self._iterator)
        self._iterator = None
