"""Checkpoints that are written in the background while training goes on.

``torch.distributed.checkpoint.async_save`` has a thread of its own, whose collectives coordinate
what the ranks write. They belong to no step: a vote neither waits for them nor is aborted by them,
and one that breaks ends the save and nothing else.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from typing import Any

import structlog

from trainmover.errors import StaleEpochError, TrainMoverError
from trainmover_executor.collectives.communicator.base import Communicator
from trainmover_executor.collectives.communicator.checks import CollectiveError
from trainmover_executor.links.link import LinkBrokenError

__all__ = ["BackgroundSave", "BackgroundSaves", "SaveLostError"]

log = structlog.get_logger(__name__)


class SaveLostError(TrainMoverError):
    """A machine died while a checkpoint was written in the background: it is not complete."""


class BackgroundSave:
    """One save, and the operations of its group while it lasts.

    Args:
        path: Where it is written, for people.

    Attributes:
        future: Done when its thread is; None until that was started.
    """

    def __init__(self, path: str) -> None:
        self.path = path
        self.future: Future[Any] | None = None
        self._began_in = threading.get_ident()
        self._changed = threading.Condition()
        self._operations = 0
        self._is_lost = False

    @property
    def is_over(self) -> bool:
        """Whether its thread has ended, so that its group carries other operations again."""
        return self.future is not None and self.future.done()

    def began(self, future: Future[Any]) -> None:
        """Its thread was started; what becomes of it is logged."""
        self.future = future
        future.add_done_callback(self._ended)

    def run(self, operation: Callable[[Communicator], None], communicator: Communicator) -> None:
        """Perform one of its operations, on its own thread.

        Raises:
            CollectiveError: The program uses the group as well.
            SaveLostError: The save is lost.
        """
        if threading.get_ident() == self._began_in:
            raise CollectiveError(
                f"the group that saves {self.path} in the background was used for something else "
                "meanwhile. Make a group for saves alone: saves = dist.new_group()"
            )
        with self._changed:
            if self._is_lost:
                raise self._lost()
            self._operations += 1
        try:
            operation(communicator)
        except (LinkBrokenError, StaleEpochError) as error:
            self._is_lost = True
            raise self._lost() from error
        finally:
            with self._changed:
                self._operations -= 1
                self._changed.notify_all()

    def give_up(self) -> None:
        """Links are broken and about to be made anew: return when no operation uses them."""
        with self._changed:
            self._is_lost = True
            self._changed.wait_for(lambda: self._operations == 0)

    def _ended(self, future: Future[Any]) -> None:
        if (error := future.exception()) is not None:
            log.warning("a checkpoint was not saved", path=self.path, reason=str(error))

    def _lost(self) -> SaveLostError:
        return SaveLostError(
            f"the checkpoint {self.path} is not complete: a machine was replaced while it was "
            "written. If it is not written again at once, its folder stays without .metadata, and "
            "the next save is whole."
        )


class BackgroundSaves:
    """The saves of this rank, one after the other.

    Attributes:
        allowed: Whether a save may begin here: in work between steps, which all ranks do.
    """

    def __init__(self) -> None:
        self.allowed = False
        self._latest: BackgroundSave | None = None

    @contextlib.contextmanager
    def allowing(self) -> Iterator[None]:
        """While it lasts, a save may begin."""
        self.allowed = True
        try:
            yield
        finally:
            self.allowed = False

    @property
    def under_way(self) -> bool:
        """Whether one is being written: its operations must not see links replaced."""
        return self._latest is not None and not self._latest.is_over

    def began(self, save: BackgroundSave) -> None:
        """``save`` is the one that is written now."""
        self._latest = save

    def wait(self) -> None:
        """Return when the last one is written, or lost."""
        if self._latest is not None and self._latest.future is not None:
            self._latest.future.exception()

    def give_up(self) -> None:
        """See ``BackgroundSave.give_up``."""
        if self._latest is not None and self.under_way:
            self._latest.give_up()
