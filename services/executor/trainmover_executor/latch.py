"""The latch: the first communication error of a step, kept until the step is over.

Raising in the middle of a backward pass would leave the state machines of DDP, FSDP or a pipeline
schedule broken for the redo. So the first error is latched, every further collective of the step
completes at once with a stand-in, the step runs through to the vote, and the vote is void.
"""

from __future__ import annotations

import threading
from collections.abc import Callable

from trainmover_executor.links.link import LinkBrokenError

__all__ = ["Latch"]


class Latch:
    """Set at most once per epoch, from any thread.

    What another thread found out in one epoch may be said when the training thread is in the next
    one already, which it must not break. So such a reason comes with the epoch it belongs to.

    Args:
        epoch: The epoch at the start.

    Attributes:
        surfaced: Whether its reason was raised into the program.
        protected: True while the session is inside its step loop, where a broken step is redone.
            Outside of it an error is the user's to see.
    """

    def __init__(self, *, epoch: int = 0) -> None:
        self.protected = False
        self.surfaced = False
        self._epoch = epoch
        self._reason: str | None = None
        self._set_for = epoch
        self._lock = threading.Lock()
        self._listeners: list[Callable[[int, str], None]] = []

    @property
    def is_set(self) -> bool:
        """Whether the running step is broken."""
        return self._reason is not None

    @property
    def reason(self) -> str:
        """Why it is set; empty while it is not."""
        return self._reason or ""

    def listen(self, listener: Callable[[int, str], None]) -> None:
        """Have ``listener(epoch, reason)`` called when it trips, on the thread that trips it."""
        self._listeners.append(listener)

    def trip(self, reason: str, *, epoch: int | None = None) -> None:
        """Latch; only the first reason of an epoch counts.

        Args:
            reason: What broke.
            epoch: The epoch that it broke; nothing happens once that is over. None, for the thread
                that changes epochs and those it waits for, is the epoch of now.
        """
        with self._lock:
            at = self._epoch if epoch is None else epoch
            if at < self._epoch or (self.is_set and at <= self._set_for):
                return
            self._reason, self._set_for = reason, at
        for listener in self._listeners:
            listener(at, reason)

    def begin(self, epoch: int) -> None:
        """A new epoch begins with new links: what broke before it is over."""
        with self._lock:
            self._epoch = epoch
            if self._set_for < epoch:
                self._reason = None

    def carry_over(self, epoch: int) -> None:
        """A new epoch begins with the links of the one before: what broke stays broken."""
        with self._lock:
            self._epoch = self._set_for = epoch

    def check_protected(self) -> None:
        """Raise the latched error where no session would redo the step.

        Raises:
            LinkBrokenError: The latch is set outside of a session's step loop.
        """
        if not self.protected:
            self.surfaced = True
            raise LinkBrokenError(
                f"communication broke outside of session.steps(): {self.reason}. "
                "Only steps are redone; run collectives inside 'with step' where you can."
            )
