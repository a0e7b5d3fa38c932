"""Anything else that can be iterated over: what is before a place is drawn and dropped."""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from typing import Any, Final

import structlog
from torch.utils.data import DataLoader, IterDataPipe
from torch.utils.data.dataloader import _BaseDataLoaderIter, _DatasetKind

from trainmover.errors import ConfigError
from trainmover_executor.feed import owned
from trainmover_executor.feed.attributes.attributes import Attributes, attributes_of
from trainmover_executor.feed.attributes.changes import Changes
from trainmover_executor.feed.seeds import mix, torch_state
from trainmover_executor.feed.sources.owning import Owning
from trainmover_executor.feed.sources.source import How
from trainmover_executor.feed.stream import Stream
from trainmover_executor.feed.workers import (
    PassSeed,
    SeededIterable,
    WorkerInit,
    end_workers,
    pass_seed_of,
    replaced,
)
from trainmover_executor.state.packing.portable import pack_tree

__all__ = ["DrawnSource"]

log = structlog.get_logger(__name__)

_TOLD: Final = ("now", "changes", "begun")
"""What a mark says of the place, besides of the pass."""


class DrawnSource(Owning):
    """Reads what can only be read in order.

    Args:
        loader: Any iterable of batches.
        replay: First batches that are kept when it can be iterated over only once.
        apart: See ``Feed``; workers that outlive a pass count all passes nevertheless.
    """

    how: How = "draw"
    follows = True
    prepares = False
    drops = float("inf")
    loads_ahead = False
    unloaded = 0

    def __init__(self, loader: Any, *, replay: int, apart: bool = False) -> None:
        super().__init__()
        self._loader = loader
        is_alone = apart and not getattr(loader, "persistent_workers", False)
        self._seed = PassSeed() if is_alone else pass_seed_of(loader)
        self._workers = _Workers(loader, self._seed) if _loads_in_workers(loader) else None
        self._iterator: Iterator[Any] | None = None
        self._stream: Stream | None = None
        self._mark: dict[str, Any] = {}
        self._tape = _Tape(loader, keep=replay) if _is_one_shot(loader) else None
        # One that can be iterated over only once goes on from where it is.
        self._attributes = attributes_of(loader) if self._tape is None else Attributes(tuple)
        self._changes = Changes(loader, ())
        self._warned = False

    def lead(self, at: int) -> int:
        """See ``Source``."""
        del at
        return 0

    def begin(self) -> None:
        """See ``Source``."""
        self._seed.passes += 1
        mark = {
            "passes": self._seed.passes,
            "owned": owned.capture(self._find()),
            "attributes": self._attributes.state(),
        }
        if self._workers is None:
            self._stream = Stream.of_now()
            mark["stream"] = self._stream.seeds
        mark["id"] = mix(torch_state() if self._workers else b"", pack_tree(mark))
        self._mark = mark
        self._open()
        self._changes = Changes(self._loader, self._attributes.holders())

    def begin_at(self, batches: int) -> None:
        """See ``Source``."""
        raise NotImplementedError

    def pass_over(self) -> None:
        """See ``Source``."""
        raise NotImplementedError

    def _open(self) -> None:
        if self._workers is not None:
            self._iterator = self._workers.open(self._mark["id"])
        else:
            self._iterator = self._run(iter, self._tape if self._tape is not None else self._loader)
        self._owned = self._find()

    def _run(self, work: Any, *arguments: Any) -> Any:
        return work(*arguments) if self._stream is None else self._stream.run(work, *arguments)

    def draw(self) -> Any:
        """See ``Source``."""
        return self._draw(dropped=False)

    def drop(self, left: int) -> None:
        """See ``Source``."""
        del left
        self._draw(dropped=True)

    def _draw(self, *, dropped: bool) -> Any:
        self._changes.before(dropped=dropped)
        batch = self._run(next, self._iterator)
        self._changes.after()
        return batch

    def mark(self) -> dict[str, Any]:
        """See ``Source``."""
        now = owned.capture(self._owned)
        told = {"now": now, "changes": self._changes.told, "begun": self._seed.passes}
        return {**self._mark, **told}

    def goes_on(self, mark: dict[str, Any]) -> bool:
        """See ``Source``."""
        return self._mark["id"] == mark["id"] and self._changes.go_on(mark["changes"])

    def rest_mark(self) -> dict[str, Any]:
        """See ``Source``."""
        running = self._workers is not None and self._workers.run
        return {
            "passes": self._seed.passes,
            "running": running,
            "now": owned.capture(self._find()),
            "attributes": self._attributes.state(),
        }

    def rest(self, mark: dict[str, Any]) -> None:
        """See ``Source``."""
        self._seed.passes = mark["passes"]
        if self._workers is not None and not mark["running"]:
            self._workers.stop()
        owned.restore(self._find(), mark["now"])
        self._attributes.load(mark.get("attributes", {}))
        if self._tape is not None:
            self._tape.rewind()

    def rewind(self) -> None:
        """See ``Source``."""
        if self._tape is not None:
            self._tape.rewind()

    def prepare(self, mark: dict[str, Any], at: int, *, until: float) -> bool:
        """See ``Source``."""
        raise NotImplementedError

    def resume(self, mark: dict[str, Any], at: int) -> int:
        """See ``Source``."""
        del at
        if self._tape is not None:
            self._tape.rewind()
        self._mark = {key: each for key, each in mark.items() if key not in _TOLD}
        self._seed.passes = mark["passes"]
        owned.restore(self._find(), mark["owned"])
        self._attributes.load(mark.get("attributes", {}))
        if self._tape is not None and self._tape.drawn > 0:
            self._check_stream(mark["stream"])
        elif "stream" in mark:
            self._stream = Stream(mark["stream"], advance=False)
        self._open()
        holders = self._attributes.holders()
        self._changes = Changes(self._loader, holders, told=mark.get("changes", ()))
        return 0

    def _check_stream(self, seeds: list[int]) -> None:
        """An iterator that gave some batches goes on with the stream that they were made with."""
        assert self._stream is not None  # noqa: S101 - it was begun
        if self._stream.differs(seeds):
            raise ConfigError(
                f"the loader is a {type(self._loader).__name__} that was begun here with other "
                "random numbers than elsewhere, and cannot be begun anew. Pass something that can "
                "be iterated over again (an object whose __iter__ makes a new iterator), or seed "
                "random, numpy.random and torch before the first step."
            )

    def arrive(self, mark: dict[str, Any]) -> None:
        """See ``Source``."""
        owned.restore(self._owned, mark["now"])
        self.recount(mark)

    def beside(self) -> dict[str, Any]:
        """See ``Source``."""
        return {**super().beside(), "attributes": self._attributes.state()}

    def put_beside(self, state: dict[str, Any]) -> None:
        """See ``Source``."""
        super().put_beside(state)
        self._attributes.load(state["attributes"])

    def recount(self, mark: dict[str, Any]) -> None:
        """See ``Source``."""
        self._seed.passes = mark.get("begun", mark["passes"])

    def _find(self) -> dict[str, Any]:
        if self._workers is None:
            return owned.find({"loader": self._loader})
        dataset = self._loader.dataset
        return owned.find({"generator": self._loader.generator}, apart=(dataset,))

    def end(self) -> None:
        """See ``Source``."""
        if self._workers is not None and self._iterator is not None:
            self._workers.close(self._iterator)
        self._iterator = None
        self._warn_of_iterators()

    def _warn_of_iterators(self) -> None:
        if self._warned:
            return
        for name, value in getattr(self._loader, "__dict__", {}).items():
            held = value.values() if isinstance(value, dict) else value
            members = held if isinstance(value, dict | list | tuple) else [value]
            if any(isinstance(each, _BaseDataLoaderIter) for each in members):
                self._warned = True
                log.warning(
                    "a loader keeps an iterator over a DataLoader from pass to pass, which cannot "
                    "be carried: when a machine is replaced, the joiner has other batches",
                    attribute=f"{type(self._loader).__name__}.{name}",
                    cure="have it draw from session.cycle(loader), which is made once",
                )


def _is_one_shot(loader: Any) -> bool:
    """Whether ``iter(loader)`` goes on; a prefetcher's ``__iter__`` may begin anew, and return it.

    That is not tried out: it would begin workers, and draw the first batch. fairseq's iterators
    have a generator for an ``__iter__``, and have begun it when they are made.
    """
    if not isinstance(loader, Iterator):
        return False
    begin = inspect.getattr_static(type(loader), "__iter__")
    code = getattr(begin, "__code__", None)  # none in C: generators, map, zip, files
    if code is None or code.co_code == Iterator.__iter__.__code__.co_code:
        return True
    held = getattr(loader, "__dict__", {}).values()
    return inspect.isgeneratorfunction(begin) and any(isinstance(each, Iterator) for each in held)


class _Tape:
    """An iterator that can be begun anew as long as no more than its first items were drawn.

    Args:
        iterator: Which.
        keep: How many of its items are kept.

    Attributes:
        drawn: Items drawn from it.
    """

    def __init__(self, iterator: Iterator[Any], *, keep: int) -> None:
        self._iterator = iterator
        self._keep = keep
        self._kept: list[Any] = []
        self.drawn = 0
        self._at = 0

    def __iter__(self) -> _Tape:
        return self

    def __next__(self) -> Any:
        if self._at < len(self._kept):
            item = self._kept[self._at]
        else:
            item = next(self._iterator)
            self.drawn += 1
            self._kept = [*self._kept, item] if self.drawn <= self._keep else []
        self._at += 1
        return item

    def rewind(self) -> None:
        """Begin anew.

        Raises:
            ConfigError: Items are gone.
        """
        if len(self._kept) < self.drawn:
            raise ConfigError(
                f"the loader is a {type(self._iterator).__name__}: {self.drawn} batches were "
                "drawn from it, and it cannot be begun anew. Pass something that can be iterated "
                "over again: an object whose __iter__ makes a new iterator."
            )
        self._at = 0


def _loads_in_workers(loader: Any) -> bool:
    return (
        isinstance(loader, DataLoader)
        and type(loader).__iter__ is DataLoader.__iter__
        and loader._dataset_kind == _DatasetKind.Iterable  # noqa: SLF001 - what torch decides by
        and loader.num_workers > 0
        and not isinstance(loader.dataset, IterDataPipe)
    )


class _Workers:
    """An iterable-style DataLoader with workers, seeded anew for each pass."""

    def __init__(self, loader: DataLoader[Any], seed: PassSeed) -> None:
        self._loader = loader
        self._seed = seed

    def open(self, seed: int) -> Iterator[Any]:
        """A pass with ``seed``."""
        loader = self._loader
        self._seed.value = seed
        running: Any = loader._iterator  # noqa: SLF001 - there is no other way to them
        if not isinstance(getattr(running, "_dataset", None), SeededIterable):
            self.stop()
        with replaced(
            loader,
            dataset=SeededIterable(loader.dataset, self._seed),
            worker_init_fn=WorkerInit(loader.worker_init_fn, seed),
        ):
            return iter(loader)

    @property
    def run(self) -> bool:
        """Whether workers have outlived a pass."""
        return self._loader._iterator is not None  # noqa: SLF001 - there is no other way to them

    def stop(self) -> None:
        """End workers that have outlived a pass."""
        end_workers(self._loader._iterator)  # noqa: SLF001 - as above
        self._loader._iterator = None  # noqa: SLF001 - as above

    def close(self, iterator: Iterator[Any]) -> None:
        """The pass is over, or given up."""
        if not self._loader.persistent_workers:
            end_workers(iterator)
