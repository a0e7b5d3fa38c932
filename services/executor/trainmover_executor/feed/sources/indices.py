"""Passes over the indices of a map-style loader: they can be advanced without loading anything."""

from __future__ import annotations

import collections
import contextlib
import time
from collections.abc import Callable, Iterator
from itertools import islice
from typing import Any, Final

import torch
from torch.utils.data import (
    BatchSampler,
    DataLoader,
    DistributedSampler,
    RandomSampler,
    SequentialSampler,
    SubsetRandomSampler,
    WeightedRandomSampler,
)

from trainmover_executor.feed import owned
from trainmover_executor.feed.attributes.attributes import attributes_of_chain
from trainmover_executor.feed.seeds import mix, torch_state
from trainmover_executor.feed.stream import Stream
from trainmover_executor.feed.workers import NOTHING, Seeded
from trainmover_executor.program.values.compare import equal
from trainmover_executor.state.packing.portable import pack_tree

__all__ = ["IndexPass", "Indices"]

_ONCE: Final = (RandomSampler, SubsetRandomSampler, WeightedRandomSampler)
"""They draw from torch's process-wide generator once, when their first index is asked for."""

_KNOWN: Final = (*_ONCE, SequentialSampler, DistributedSampler, range, list, tuple)
_MOVABLE: Final[tuple[type, ...]] = (type(iter([])), type(iter(range(0))))
_CHUNK: Final = 1024


class Indices:
    """Stands where the loader's sampler of index batches stands, and makes passes over it.

    Args:
        loader: A map-style torch DataLoader.
        skipped_late: Whether a loader reads them that drops what is before its place by itself, at
            any time: they carry no seeds then, and never draw what training would.
        notes_changes: Whether passes note what the program changes in a sampler while it draws from
            them, and do that again where they are repeated.

    Attributes:
        following: The pass that the next iterator of the loader takes, instead of a new one.
        passes: Passes begun, in this process or the one that a position came from.
    """

    def __init__(
        self, loader: DataLoader[Any], *, skipped_late: bool = False, notes_changes: bool = False
    ) -> None:
        self._sampler: Any = loader._index_sampler  # noqa: SLF001 - the loader's own choice of the two
        self._chain = list(_chain_of(self._sampler))
        self._attributes = attributes_of_chain(self._chain)
        self._roots = {"generator": loader.generator, "sampler": self._sampler}
        self._apart = (loader.dataset,)
        self._seeded = loader.num_workers > 0 and not skipped_late
        self._skipped_late = skipped_late
        self.notes_changes = notes_changes and self.isolated
        self.following: IndexPass | None = None
        self.passes = 0

    def __iter__(self) -> Iterator[Any]:
        return _Undecided(self.take, self._sampler)

    def __len__(self) -> int:
        return len(self._sampler)

    def take(self) -> IndexPass:
        """The pass for an iterator that asks for its first index batch."""
        following = self.following or self.fresh()
        self.following = None
        return following

    def fresh(self, *, ahead: int = 0, worker_seed: int | None = None) -> IndexPass:
        """A new pass.

        Args:
            ahead: Index batches that it leaves out at its beginning.
            worker_seed: That of workers which run already; None for new ones.
        """
        if worker_seed is None:
            worker_seed = mix("workers", torch_state(), self.passes)
        return IndexPass(self, seeded=self._seeded, worker_seed=worker_seed, ahead=ahead)

    def repeated(self, mark: dict[str, Any]) -> IndexPass:
        """The pass that ``mark`` describes, from its beginning."""
        return IndexPass(self, seeded=self._seeded, worker_seed=mark["workers"], mark=mark)

    @property
    def last(self) -> Any:
        """The sampler that yields single indices, or what else there is at the end."""
        return self._chain[-1]

    @property
    def sampler(self) -> Any:
        """The loader's sampler of index batches."""
        return self._sampler

    @property
    def chain(self) -> list[Any]:
        """That sampler, the one that it wraps, and so on."""
        return self._chain

    @property
    def isolated(self) -> bool:
        """Whether it may draw from process-wide generators at any time."""
        if self._skipped_late:
            return True
        *batching, last = self._chain
        known = type(last) in _KNOWN and all(type(each) is BatchSampler for each in batching)
        return not known

    @property
    def draws_once(self) -> bool:
        """Whether it draws from torch's process-wide generator when a pass begins."""
        return type(self.last) in _ONCE and self.last.generator is None

    def state(self) -> dict[str, Any]:
        """What passes depend on and change, apart from process-wide generators; portable."""
        return {
            "owned": owned.capture(owned.find(self._roots, apart=self._apart)),
            "attributes": self._attributes.state(),
            "passes": self.passes,
        }

    def attributes(self) -> dict[str, Any]:
        """What samplers keep, and the program may change while a pass is under way; portable."""
        return self._attributes.state()

    def load_attributes(self, attributes: dict[str, Any]) -> None:
        """Put back what ``attributes`` returned, in this or another process."""
        self._attributes.load(attributes)

    def load_state(self, state: dict[str, Any]) -> None:
        """Put back what ``state`` returned, in this or another process."""
        owned.restore(owned.find(self._roots, apart=self._apart), state["owned"])
        self._attributes.load(state["attributes"])
        self.passes = state["passes"]


def _chain_of(sampler: Any) -> Iterator[Any]:
    """A sampler, the one that it wraps, and so on."""
    seen: set[int] = set()
    while sampler is not None and id(sampler) not in seen:
        seen.add(id(sampler))
        yield sampler
        inside = getattr(sampler, "__dict__", {})
        sampler = inside.get("sampler", inside.get("batch_sampler"))


class _Undecided:
    """An iterator that decides which pass it is once it is used: some are made and dropped.

    To a ``StatefulDataLoader`` it has the state of torchdata's own, so that a state of the loader
    means the same without TrainMover. A pass is brought to its place before the loader reads it.

    Args:
        take: Gives the pass.
        sampler: Of index batches.
    """

    def __init__(self, take: Callable[[], IndexPass], sampler: Any) -> None:
        self._take = take
        self._sampler = sampler
        self._pass: IndexPass | None = None

    def state_dict(self) -> dict[str, int]:
        at = 0 if self._pass is None else self._pass.at
        samples = at * (getattr(self._sampler, "batch_size", None) or 1)
        with contextlib.suppress(AttributeError, TypeError):  # single indices, or without an end
            samples = min(samples, len(self._sampler.sampler))  # the last batch may be smaller
        return {"samples_yielded": samples}

    def load_state_dict(self, state: dict[str, int]) -> None:
        del state

    def __iter__(self) -> _Undecided:
        return self

    def __next__(self) -> Any:
        if self._pass is None:
            self._pass = self._take()
        return next(self._pass)


class _Rest:
    """What ``BatchSampler.__iter__`` reads, with indices that can be advanced behind its back."""

    def __init__(self, sampler: BatchSampler, indices: Iterator[Any]) -> None:
        self._sampler = sampler
        self.sampler = indices

    @property
    def batch_size(self) -> int:
        return self._sampler.batch_size

    @property
    def drop_last(self) -> bool:
        return self._sampler.drop_last


class IndexPass:
    """One pass over the index batches of a loader.

    Args:
        indices: Where from.
        seeded: Whether index batches carry seeds, for workers.
        worker_seed: What workers are begun with.
        mark: Of the pass that this one repeats; None for a new one.
        ahead: Index batches that it leaves out at its beginning.

    Attributes:
        worker_seed: As given.
        at: Index batches drawn.
        skips: How often it yields ``NOTHING`` first, so that the worker with a given number has
            the same batches to load as if the pass had begun at its beginning.
        repeats: Whether it does what another process did, up to where a mark was taken: what the
            program has changed in samplers meanwhile, here, does not count before ``arrive``.
    """

    def __init__(
        self,
        indices: Indices,
        *,
        seeded: bool,
        worker_seed: int,
        mark: dict[str, Any] | None = None,
        ahead: int = 0,
    ) -> None:
        self._indices = indices
        self._seeded = seeded
        self._mark = mark
        self._ahead = ahead
        self._later: list[list[Any]] = [] if mark is None else [*mark.get("later", ())]
        self._heeded = 0
        self._attributes: dict[str, Any] = {}
        self._stream: Stream | None = None
        self._singles: Iterator[Any] | None = None
        self._batches: Iterator[Any] | None = None
        self._seed = 0
        self.worker_seed = worker_seed
        self.at = 0
        self.skips = 0
        self.repeats = mark is not None

    @property
    def began(self) -> bool:
        """Whether an index was asked for."""
        return self._batches is not None

    @property
    def mark(self) -> dict[str, Any]:
        """What the pass can be repeated from, once it has begun; portable.

        It is always the same, but for what the program changed in a sampler that may read that at
        any time: one that goes over another again and again, say, and the epoch of that.
        """
        assert self._mark is not None  # noqa: S101 - it has begun
        if not self._indices.notes_changes:
            return self._mark
        later, now = [*self._later], self._indices.attributes()
        ahead = later[self._heeded :]
        if not equal(now, ahead[-1][1] if ahead else self._attributes):
            later.append([ahead[-1][0] if ahead else self.at, now])
        return {**self._mark, "later": later} if later else self._mark

    def repeat(self, mark: dict[str, Any]) -> None:
        """``mark`` was taken later in this pass: get there as the other process did."""
        self._later[self._heeded :] = mark.get("later", ())[self._heeded :]
        self.repeats = True

    def arrive(self) -> None:
        """It is where the last mark was taken: samplers are what they were there."""
        if self._indices.notes_changes:
            ahead = self._later[self._heeded :]
            self._indices.load_attributes(ahead[-1][1] if ahead else self._attributes)
            del self._later[self._heeded :]  # noted again with the next index batch
        self.repeats = False

    def __iter__(self) -> IndexPass:
        return self

    def __next__(self) -> Any:
        if self.skips > 0:
            self.skips -= 1
            return NOTHING
        if self._batches is None:
            self._begin()
        batch = self._draw(next, self._batches)
        self.at += 1
        return Seeded(mix(self._seed, self.at), batch) if self._seeded else batch

    def _draw(self, work: Callable[..., Any], *arguments: Any) -> Any:
        """Draw with samplers as they were at this place, and note what the program changed."""
        indices = self._indices
        if not indices.notes_changes:
            return self._run(work, *arguments)
        now = indices.attributes()
        if self.repeats:
            self._heed()
            indices.load_attributes(self._attributes)
        elif not equal(now, self._attributes):
            self._later.append([self.at, now])
            self._heeded += 1
        try:
            return self._run(work, *arguments)
        finally:
            self._attributes = indices.attributes()
            if self.repeats:
                indices.load_attributes(now)

    def _run(self, work: Callable[..., Any], *arguments: Any) -> Any:
        if self._stream is None:
            return work(*arguments)
        return self._stream.run(work, *arguments)

    def _begin(self) -> None:
        indices = self._indices
        now = indices.attributes() if indices.notes_changes and self._mark is not None else None
        if self._mark is None:
            self._mark = self._marked()
        else:
            indices.load_state(self._mark)
            if "torch" in self._mark:
                torch.set_rng_state(self._mark["torch"])
            if "stream" in self._mark:
                self._stream = Stream(self._mark["stream"], advance=False)
        self._seed = self._mark["seed"]
        self._attributes = self._mark["attributes"]
        self._draw(self._open)
        if now is not None:
            indices.load_attributes(now)
        self.skip_to(self._ahead)

    def _heed(self) -> int:
        """Have samplers be what the program made of them at this place, in another process.

        Returns:
            Index batches before it did more, at the most.
        """
        for at, attributes in self._later[self._heeded :]:
            if at > self.at:
                return int(at) - self.at
            self._attributes = attributes
            self._heeded += 1
        return _CHUNK

    def _marked(self) -> dict[str, Any]:
        indices = self._indices
        indices.passes += 1
        mark = {**indices.state(), "workers": self.worker_seed}
        # Made without the stream: a program may have seeded torch and nothing else.
        mark["seed"] = mix(
            torch_state(), indices.passes, self.worker_seed, pack_tree(mark["owned"])
        )
        if indices.isolated:
            self._stream = Stream.of_now()
            mark["stream"] = self._stream.seeds
        elif indices.draws_once:
            mark["torch"] = torch.get_rng_state()
        mark["id"] = mix(torch_state(), pack_tree(mark))
        return mark

    def _open(self) -> None:
        sampler = self._indices.sampler
        if type(sampler) is BatchSampler:
            self._singles = iter(sampler.sampler)
            rest: Any = _Rest(sampler, self._singles)
            self._batches = BatchSampler.__iter__(rest)
        else:
            self._batches = iter(sampler)

    def skip_to(self, at: int, *, until: float | None = None) -> bool:
        """Advance to ``at`` index batches, or as far as ``until`` (``time.monotonic``) allows.

        Returns:
            Whether it got there; the end of the indices counts as there.
        """
        if self._batches is None:
            self._begin()
        self._jump(at)
        while self.at < at:
            if until is not None and time.monotonic() >= until:
                return False
            self._draw(self._skip, min(_CHUNK, at - self.at, self._heed()))
        return True

    def _jump(self, at: int) -> None:
        """To ``at`` in no time, where the indices are a list or a range that nobody has read."""
        if self.at == 0 and type(self._singles) in _MOVABLE and at > 0:
            size = self._indices.sampler.batch_size
            self._singles.__setstate__(at * size)  # type: ignore[union-attr]
            self.at = at

    def _skip(self, count: int) -> None:
        if self._singles is not None:
            rest = islice(self._singles, count * self._indices.sampler.batch_size)
        else:
            assert self._batches is not None  # noqa: S101 - it has begun
            rest = islice(self._batches, count)
        collections.deque(rest, maxlen=0)
        self.at += count
