"""Batches over one or more passes, and places in them that another process can go to."""

from __future__ import annotations

import contextlib
import functools
import math
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from typing import Any, ClassVar, Concatenate, Final, ParamSpec, TypeVar

from trainmover.errors import ConfigError
from trainmover_executor.feed.same_data import print_of, require_same
from trainmover_executor.feed.sources.drawn import DrawnSource
from trainmover_executor.feed.sources.map_style import MapSource, has_map_style_data, is_map_style
from trainmover_executor.feed.sources.sequence import SequenceSource, is_sequence
from trainmover_executor.feed.sources.source import DataEndedError, How, Source
from trainmover_executor.feed.sources.stateful import StatefulSource, resumes_itself
from trainmover_executor.state.rng import capture_rng, restore_rng

__all__ = ["ENDLESS", "Feed"]

ENDLESS: Final = sys.maxsize
"""So many passes."""

_NO_LIMIT: Final = float("inf")
_PRELOAD_DROPS: Final = 64.0
"""About as many batches are loaded by workers that run as while others are started."""
_FOLLOWS: Final = 10.0
"""Times as many batches are dropped where nobody waits: training goes on while a loader resumes,
and one that resumes again and again never gets there."""

_Arguments = ParamSpec("_Arguments")
_Result = TypeVar("_Result")


def _reads(
    method: Callable[Concatenate[Feed, _Arguments], _Result],
) -> Callable[Concatenate[Feed, _Arguments], _Result]:
    """Have ``Feed.is_reading`` say that a method runs, which may run the loader's code."""

    @functools.wraps(method)
    def reading(
        feed: Feed, /, *arguments: _Arguments.args, **options: _Arguments.kwargs
    ) -> _Result:
        outside, Feed.is_reading = Feed.is_reading, True
        try:
            return method(feed, *arguments, **options)
        finally:
            Feed.is_reading = outside

    return reading


def _source_of(loader: Any, *, replay: int, apart: bool) -> Source:
    if resumes_itself(loader):
        return StatefulSource(loader)
    if is_map_style(loader) or (apart and has_map_style_data(loader)):
        return MapSource(loader, apart=apart)
    if is_sequence(loader):
        return SequenceSource(loader)
    return DrawnSource(loader, replay=replay, apart=apart)


class Feed:
    """Batches of a loader over one or more passes over the data, with a position.

    Args:
        loader: Any iterable of batches.
        epochs: Passes over the data, each after ``set_epoch``; None for one, without.
        replay: First batches that are kept when ``loader`` can be iterated over only once, so that
            ``seek`` and ``rewind`` can go back to them: as many as there are shadow iterations.
        together: Give lists of so many batches, the last of a pass maybe shorter; None for batches.
        apart: Passes over ``loader`` that others begin, or have begun, change nothing in this one.

    Attributes:
        is_reading: Whether any feed is in the code of its loader.
        cost_s: Seconds spent in drawing batches that were dropped.
    """

    is_reading: ClassVar[bool] = False

    def __init__(
        self,
        loader: Iterable[Any],
        *,
        epochs: int | None = None,
        replay: int = 0,
        together: int | None = None,
        apart: bool = False,
    ) -> None:
        self._loader = loader
        self._together = together
        self._source = _source_of(loader, replay=replay * (together or 1), apart=apart)
        self._epochs = 1 if epochs is None else epochs
        self._sets_epoch = epochs is not None
        self._epoch = 0
        self._consumed = 0
        self._pass: Any = None
        self._begun = False
        self._print: int | None = None
        self._left: dict[str, Any] | None = None
        self.cost_s = 0.0

    @property
    def epoch(self) -> int:
        """Index of the pass over the data."""
        return self._epoch

    @property
    def how(self) -> How:
        """How ``seek`` finds a place: ``index`` and ``state`` do not load what is before it."""
        return self._source.how

    @property
    def loader(self) -> str:
        """What it reads, for people."""
        dataset = getattr(self._loader, "dataset", None)
        over = "" if dataset is None else f" over {type(dataset).__name__}"
        return type(self._loader).__name__ + over

    @_reads
    def draw(self) -> tuple[bool, Any]:
        """(True, next batch), or (False, None) when the data is used up.

        Raises:
            ConfigError: Of endless passes one gave no batch.
        """
        self._left = None
        more, batch = self._draw()
        if self._together is None or not more:
            return more, batch
        batches = [batch]
        while len(batches) < self._together:
            try:
                batches.append(self._source.draw())
            except StopIteration:
                break  # the next call ends the pass
            self._consumed += 1
        return True, batches

    def finish(self) -> None:
        """The job found no more behind the place that this is at.

        A sampler may draw random numbers where its pass ends: torch's does.
        """
        if self._begun:
            self.draw()

    def _draw(self) -> tuple[bool, Any]:
        while self._epoch < self._epochs:
            if not self._begun:
                self._set_epoch()
                self._print = print_of(self._loader)
                self._source.begin()
                self._begun = True
            if self._source.unloaded:
                self._source.resume(self._source.mark(), self._consumed)
            try:
                batch = self._source.draw()
            except StopIteration:
                if self._epochs == ENDLESS and not self._consumed:
                    raise ConfigError(f"{self.loader} gave no batch in a whole pass") from None
                self._end_pass()
                continue
            self._consumed += 1
            return True, batch
        return False, None

    def _set_epoch(self) -> None:
        if not self._sets_epoch:
            return  # the program may do that itself, in a loop around ours
        for owner in (
            getattr(self._loader, "sampler", None),
            getattr(self._loader, "batch_sampler", None),
            self._loader,
        ):
            set_epoch = getattr(owner, "set_epoch", None)
            if set_epoch is not None:
                set_epoch(self._epoch)
                return

    def _end_pass(self) -> None:
        self._source.end()
        self._begun = False
        self._epoch += 1
        self._consumed = 0

    def position(self) -> dict[str, Any]:
        """Where it is, as a portable tree; after a batch was drawn, or before the first."""
        return {
            "epoch": self._epoch,
            "consumed": self._consumed,
            "begun": self._begun,
            "print": self._print if self._begun else None,
            "mark": self._source.mark() if self._begun else self._source.rest_mark(),
        }

    @_reads
    def seek(self, position: dict[str, Any]) -> None:
        """Go to where ``position`` was taken, from what is prepared if that is not beyond it.

        Generator objects of the loader stand as they stood there; process-wide generators are left
        wherever that leads.

        Raises:
            DataEndedError: The data ends before.
            ConfigError: The loader cannot be begun anew, or its data is not the same.
        """
        mark = position["mark"]
        if not position["begun"]:
            self._source.end()
            self._source.rest(mark)
            self._epoch, self._consumed, self._begun = position["epoch"], 0, False
            return
        require_same(self._loader, position["print"])
        self._take_up()
        self._go(position, until=_NO_LIMIT)
        self._left = None
        self._print = position["print"]
        self._source.arrive(mark)

    def behind(self, position: dict[str, Any]) -> int:
        """Batches from here to ``position``, at the least: of passes in between nobody knows."""
        drawn = self._consumed if self._epoch == position["epoch"] else 0
        return max(0, int(position["consumed"]) - drawn)

    def recount(self, position: dict[str, Any]) -> None:
        """Passes over the loader that were begun since ``position`` was taken begin again."""
        self._source.recount(position["mark"])

    def beside(self) -> dict[str, Any]:
        """See ``Source``."""
        return self._source.beside()

    def put_beside(self, state: dict[str, Any]) -> None:
        """See ``Source``."""
        self._source.put_beside(state)

    @_reads
    def rewind(self) -> None:
        """Begin the data anew: a shadow iteration ran out of it."""
        self._source.end()
        self._source.rewind()
        self._epoch = self._consumed = 0
        self._begun = False

    # -- ahead of time ---------------------------------------------------------------------------

    @_reads
    def approach(self, position: dict[str, Any], *, budget_s: float) -> bool:
        """Prepare a ``seek`` to ``position`` or a later one of the pass, for so many seconds.

        Nothing is loaded where indices can be drawn alone. Process-wide generators stay as they
        are.

        Returns:
            Whether nothing is left to prepare.

        Raises:
            DataEndedError: The data ends before.
        """
        until = time.monotonic() + budget_s
        if not position["begun"]:
            return True
        with _generators_kept():
            if self._source.follows:
                return self._follow(position, until=until, drops=_FOLLOWS * self._source.drops)
            if self._source.prepares:
                self._source.end()
                self._begun = False
                self._set_epoch_of(position)
            return self._source.prepare(position["mark"], position["consumed"], until=until)

    @_reads
    def preload(self, position: dict[str, Any], *, budget_s: float = _NO_LIMIT) -> bool:
        """Be at ``position`` and load what follows it, so that a ``seek`` to there finds it loaded.

        Later positions may be preloaded in turn. Process-wide generators stay as they are. Nothing
        is done where nobody but the program loads.

        Args:
            position: Where to be.
            budget_s: Stop before, after so many seconds.

        Returns:
            Whether nothing is left to do.

        Raises:
            DataEndedError: The data ends before.
        """
        source = self._source
        if not (position["begun"] and (source.loads_ahead or source.follows)):
            return True
        if self._is_in(position) and self._consumed > position["consumed"]:
            return True  # it was begun beyond that place, and training gets there
        drops, until = max(source.drops, _PRELOAD_DROPS), time.monotonic() + budget_s
        with _generators_kept():
            return self._follow(position, until=until, drops=drops, leads=True)

    def _follow(
        self, position: dict[str, Any], *, until: float, drops: float, leads: bool = False
    ) -> bool:
        """As ``_go``, a part of the way, with variables of the program in between."""
        self._take_up()
        try:
            return self._go(position, until=until, drops=drops, leads=leads)
        finally:
            self._left = self._source.beside() if self._source.follows else None

    def _take_up(self) -> None:
        """Have the loader's own attributes and generators be what they were left as.

        A loader may look at what it has given; of the job's it has given more by now.
        """
        if self._left is not None:
            self._source.put_beside(self._left)

    def _set_epoch_of(self, position: dict[str, Any]) -> None:
        self._epoch = position["epoch"]
        self._set_epoch()

    def _is_in(self, position: dict[str, Any]) -> bool:
        """Whether the pass of ``position`` is under way."""
        return self._begun and self._source.goes_on(position["mark"])

    def _go(
        self,
        position: dict[str, Any],
        *,
        until: float,
        drops: float | None = None,
        leads: bool = False,
    ) -> bool:
        """Be in the pass of ``position``, at it or before it.

        Args:
            position: Where to.
            until: When to stop (``time.monotonic``).
            drops: Batches that are rather dropped than avoided; the source's choice when None.
            leads: Where it begins anew, leave out what training uses while workers begin.
        """
        source, mark, at = self._source, position["mark"], position["consumed"]
        most = source.drops if drops is None else drops
        gap = at - self._consumed
        if not (self._is_in(position) and source.unloaded <= gap <= most):
            source.end()
            self._set_epoch_of(position)
            self._begun = False
            self._consumed = source.resume(mark, at + (source.lead(at) if leads else 0))
            self._begun = True
        self._epoch = position["epoch"]
        started = time.monotonic()
        try:
            return self._drop_to(at, until=until)
        finally:
            self.cost_s += time.monotonic() - started

    def _drop_to(self, at: int, *, until: float) -> bool:
        while self._consumed < at:
            if time.monotonic() >= until:
                return False
            try:
                self._source.drop(at - self._consumed)
            except StopIteration:
                raise DataEndedError(self._loader, at=self._consumed, wanted=at) from None
            self._consumed += 1
        return True

    @_reads
    def skip(self, steps: int) -> None:
        """Begin behind so many draws, across passes; before the first one.

        A loader with ``load_state_dict`` is left where the program has brought it by that.
        """
        if self.how == "draw":
            started = time.monotonic()
            for _ in range(steps):
                self.draw()
            self.cost_s += time.monotonic() - started
        if self.how != "index":
            return
        length, together = self._length(), self._together or 1
        a_pass = None if length is None else math.ceil(length / together)
        while self._epoch + 1 < self._epochs and a_pass is not None and steps >= a_pass > 0:
            self._set_epoch()
            self._source.pass_over()
            self._epoch += 1
            steps -= a_pass
        if steps:
            batches = steps * together
            self._set_epoch()
            self._source.begin_at(batches)
            self._consumed = batches
            self._begun = True

    def _length(self) -> int | None:
        try:
            return len(self._loader)  # type: ignore[arg-type]
        except TypeError:
            return None


@contextlib.contextmanager
def _generators_kept() -> Iterator[None]:
    rng = capture_rng()
    try:
        yield
    finally:
        restore_rng(rng)
