"""Loaders with a state of their own: torchdata's ``StatefulDataLoader``, Hugging Face datasets."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator
from typing import Any, Final

import torch
from torch.utils.data import DataLoader
from torch.utils.data.dataloader import _DatasetKind

from trainmover.errors import ConfigError
from trainmover_executor.feed import owned
from trainmover_executor.feed.seeds import mix, torch_state
from trainmover_executor.feed.sources.indices import IndexPass, Indices
from trainmover_executor.feed.sources.owning import Owning
from trainmover_executor.feed.sources.source import How
from trainmover_executor.feed.workers import (
    Collating,
    SeededItems,
    WorkerInit,
    end_workers,
    pass_seed_of,
    prefetched,
    replaced,
)
from trainmover_executor.state.packing.codec import StateNotPortableError, encode
from trainmover_executor.state.training import Stateful

__all__ = ["StatefulSource", "resumes_itself"]

_QUICK_S: Final = 0.05
_STARTS_S: Final = 1.0
"""What it takes about to resume with workers, as long as that is not known."""
_MOST_DROPS: Final = 10_000.0


def resumes_itself(loader: object) -> bool:
    """Whether ``loader`` can go to a place by its state, other than by drawing what is before it.

    A ``StatefulDataLoader`` draws and drops the data of an iterable dataset without a state.
    """
    if not isinstance(loader, Stateful):
        return False
    if isinstance(loader, DataLoader) and not _is_map_style(loader):
        return isinstance(loader.dataset, Stateful)
    return True


def _is_torchdatas(loader: object) -> bool:
    """Whether it is a ``StatefulDataLoader``; the state of another one is its own affair."""
    return isinstance(loader, DataLoader) and hasattr(loader, "next_iter_state")


def _is_map_style(loader: DataLoader[Any]) -> bool:
    return bool(loader._dataset_kind == _DatasetKind.Map)  # noqa: SLF001 - what torch decides by


class StatefulSource(Owning):
    """Reads a loader and resumes it by its ``state_dict``.

    Args:
        loader: With ``state_dict`` and ``load_state_dict``.
    """

    how: How = "state"

    def __init__(self, loader: Any) -> None:
        super().__init__()
        self._loader = loader
        self._generator = getattr(loader, "generator", None)
        self._indices = _indices_of(loader)
        self._pass: IndexPass | None = None
        self._seed = pass_seed_of(loader)
        self._seeds_items = _seeds_items(loader)
        self._prefetched = prefetched(loader) if isinstance(loader, DataLoader) else 0.0
        self.loads_ahead = self._prefetched > 0.0
        self.prepares = self._indices is not None and not self.loads_ahead
        self._iterator: Iterator[Any] | None = None
        self._id = 0
        self._checked = False
        self._mark: dict[str, Any] | None = None
        self._first: Any = None
        self._drawn, self._draws_s, self._resume_s = 0, 0.0, 0.0
        self._skips = self._seed.skips = False
        self.unloaded = 0

    @property
    def follows(self) -> bool:
        """See ``Source``: it is not known yet what it takes to resume, or it takes long."""
        return not self.prepares and (self._resume_s == 0.0 or self._resume_s > _QUICK_S)

    @property
    def drops(self) -> float:
        """See ``Source``."""
        draw_s = self._draws_s / max(self._drawn, 1)
        resume_s = self._resume_s or (_STARTS_S if self.loads_ahead else _QUICK_S)
        return min(max(self._prefetched, resume_s / max(draw_s, 1e-6)), _MOST_DROPS)

    def lead(self, at: int) -> int:
        """See ``Source``."""
        del at
        return 0

    def begin(self) -> None:
        """See ``Source``."""
        if self._first is None:
            self._first = self._beginning()
        self._seed.passes += 1
        self._id = self._seed.value = mix(torch_state(), self._seed.passes)
        self._pass = None if self._indices is None else self._indices.fresh()
        if self._pass is not None and self._loader.next_iter_state:  # the program loaded a state
            self._begin_behind(self._loader.next_iter_state)
        self._open()
        self._mark = None

    def _begin_behind(self, state: dict[str, Any]) -> None:
        if not state["_iterator_finished"]:
            assert self._pass is not None  # noqa: S101 - asked for where there is one
            self._pass.skip_to(_drawn_in(state))
        elif self.loads_ahead:  # its workers would load the pass, end, and begin another one
            self._loader.next_iter_state = None

    def _beginning(self) -> Any:
        """The state before the first pass."""
        if not _is_torchdatas(self._loader):
            return self._loader.state_dict()
        dataset: Any = self._loader.dataset
        own = isinstance(dataset, Stateful) and not self._loader.num_workers
        return dataset.state_dict() if own else {}

    def _open(self) -> None:
        loader = self._loader
        self._owned = self._find()
        changes: dict[str, Any] = {}
        if self._indices is not None:
            self._indices.following = self._pass
            name = "sampler" if loader.batch_sampler is None else "batch_sampler"
            changes[name] = self._indices
        if self._seeds_items:
            running = getattr(loader, "_iterator", None)
            if not isinstance(getattr(running, "_dataset", None), SeededItems):
                end_workers(running)
                loader._iterator = None  # noqa: SLF001 - there is no other way to them
            changes["dataset"] = SeededItems(loader.dataset, self._seed)
            changes["worker_init_fn"] = WorkerInit(loader.worker_init_fn, self._seed.value)
            changes["collate_fn"] = Collating(loader.collate_fn)
        if self._was_asked and self._indices is not None:  # its iterator knows nothing of ours
            self._load(loader.state_dict())
        with replaced(loader, **changes) if changes else contextlib.nullcontext():
            self._iterator = iter(loader)

    def begin_at(self, batches: int) -> None:
        """See ``Source``."""
        raise NotImplementedError

    def pass_over(self) -> None:
        """See ``Source``."""
        raise NotImplementedError

    def draw(self) -> Any:
        """See ``Source``."""
        assert self._iterator is not None  # noqa: S101 - a pass was begun
        self._mark = None
        started = time.monotonic()
        batch = next(self._iterator)
        self._draws_s += time.monotonic() - started
        self._drawn += 1
        return batch

    def drop(self, left: int) -> None:
        """See ``Source``; workers of a map-style loader need not load it."""
        ahead = int(self._prefetched)
        skips = self._seeds_items and left > ahead  # these are with the workers already
        self._skip(skips)
        self.draw()
        self.unloaded = ahead if skips else max(self.unloaded - 1, 0)

    def _skip(self, skips: bool) -> None:
        if skips != self._skips:
            self._skips = self._seed.skips = skips

    def mark(self) -> dict[str, Any]:
        """See ``Source``; the loader's state is taken once for each batch.

        Raises:
            ConfigError: The state cannot be handed to another machine.
        """
        if self._mark is None:
            now = owned.capture(self._owned)
            self._mark = {"id": self._id, "passes": self._seed.passes, "now": now}
            self._mark["loader"] = self._state()
            if self._pass is not None:
                self._mark["pass"] = self._pass.mark
        return self._mark

    def _state(self) -> Any:
        state = self._loader.state_dict()
        if not self._checked:
            try:
                encode(state)
            except StateNotPortableError as error:
                raise ConfigError(
                    f"the position of a {type(self._loader).__name__} cannot be handed over: "
                    f"its {error}"
                ) from error
            self._checked = True
        return state

    def goes_on(self, mark: dict[str, Any]) -> bool:
        """See ``Source``."""
        return bool(self._id == mark["id"])

    def rest_mark(self) -> dict[str, Any]:
        """See ``Source``."""
        mark = {"passes": self._seed.passes, "now": owned.capture(self._find())}
        if self._indices is not None:
            mark |= {"indices": self._indices.state(), "asked": self._was_asked}
        # Before its first pass a loader might start its workers to say where it is.
        return mark if self._first is None else {**mark, "loader": self._state()}

    def rest(self, mark: dict[str, Any]) -> None:
        """See ``Source``."""
        self._seed.passes = mark["passes"]
        if self._indices is not None:
            self._indices.load_state(mark["indices"])
        owned.restore(self._find(), mark["now"])
        if "loader" in mark:
            self._load(mark["loader"])
        elif self._first is not None:
            self._load_beginning()
            if mark.get("asked"):
                with replaced(self._loader, generator=torch.Generator()):
                    self._loader.state_dict()

    @property
    def _was_asked(self) -> bool:
        """Whether its state was asked for before a pass, for which it has made an iterator."""
        return bool(getattr(self._loader, "_initial_iter_for_state_dict", False))

    def _load_beginning(self) -> None:
        if not _is_torchdatas(self._loader):
            self._loader.load_state_dict(self._first)
            return
        self._load({})  # a StatefulDataLoader's own way to begin anew
        if self._first:
            dataset: Any = self._loader.dataset
            dataset.load_state_dict(self._first)

    def _find(self) -> dict[str, Any]:
        """Generators that move with the loader; those in workers are seeded."""
        loader = self._loader
        if not isinstance(loader, DataLoader):
            return owned.find({"loader": loader})
        roots = {"generator": self._generator, "sampler": [loader.batch_sampler, loader.sampler]}
        if loader.num_workers:
            return owned.find(roots, apart=(loader.dataset,))
        return owned.find({**roots, "dataset": loader.dataset, "collate_fn": loader.collate_fn})

    def _load(self, state: Any) -> None:
        if isinstance(self._loader, DataLoader):
            end_workers(self._loader._iterator)  # noqa: SLF001 - loading a state drops them
        self._loader.load_state_dict(state)

    def rewind(self) -> None:
        """See ``Source``."""

    def end(self) -> None:
        """See ``Source``."""
        self._iterator = None
        self._mark = None
        self._skip(False)
        self.unloaded = 0

    def prepare(self, mark: dict[str, Any], at: int, *, until: float) -> bool:
        """See ``Source``; what has no indices of ours resumes quickly."""
        del at
        if not self.prepares:
            return True
        self._load({})  # lets go of what has been drawn of the sampler here, which takes a while
        self._pass = self._near(mark)
        return self._pass.skip_to(_drawn_in(mark["loader"]), until=until)

    def _near(self, mark: dict[str, Any]) -> IndexPass:
        """The pass of ``mark``, not beyond it."""
        assert self._indices is not None  # noqa: S101 - asked for where they are
        here, at = self._pass, _drawn_in(mark["loader"])
        is_near = here is not None and here.began and here.at <= at
        if here is not None and is_near and here.mark["id"] == mark["pass"]["id"]:
            return here
        return self._indices.repeated(mark["pass"])

    def resume(self, mark: dict[str, Any], at: int) -> int:
        """See ``Source``."""
        started = time.monotonic()
        self._skip(False)
        self.unloaded = 0
        self._id = self._seed.value = mark["id"]
        self._seed.passes = mark["passes"]
        if self._indices is not None:
            self._pass = self._near(mark) if self.prepares else self._indices.repeated(mark["pass"])
            self._pass.skip_to(_drawn_in(mark["loader"]))
        with contextlib.ExitStack() as quiet:
            if isinstance(self._loader, DataLoader):  # a number is drawn, and then not used
                quiet.enter_context(replaced(self._loader, generator=torch.Generator()))
            self._load(mark["loader"])
            self._open()
        self._mark = mark
        self._resume_s = time.monotonic() - started
        return at

    def arrive(self, mark: dict[str, Any]) -> None:
        """See ``Source``."""
        owned.restore(self._owned, mark["now"])

    def recount(self, mark: dict[str, Any]) -> None:
        """See ``Source``: what a pass is seeded with comes with the loader's state."""


def _drawn_in(state: dict[str, Any]) -> int:
    """Index batches drawn where a StatefulDataLoader had ``state``."""
    main = state["_snapshot"]["_main_snapshot"] if "_snapshot" in state else state
    return int(main["_sampler_iter_yielded"])


def _indices_of(loader: Any) -> Indices | None:
    """What makes the passes of a sampler without a state again; None where it has one.

    The loader itself draws and drops the indices before its place, from a sampler that may have
    another epoch or random numbers by then.
    """
    if not (_is_torchdatas(loader) and _is_map_style(loader)):
        return None
    indices = Indices(loader, skipped_late=True)
    own = any(isinstance(each, Stateful) for each in indices.chain)
    torchdatas = type(indices.last).__module__.startswith("torchdata.")  # its iterator has one
    return None if own or torchdatas else indices


def _seeds_items(loader: Any) -> bool:
    """Whether items are loaded in workers of a map-style loader."""
    return isinstance(loader, DataLoader) and loader.num_workers > 0 and _is_map_style(loader)
