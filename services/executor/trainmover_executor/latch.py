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

    Attributes:
        surfaced: Whether its reason was raised into the program.
        protected: True while the session is inside its step loop, where a broken step is redone.
            Outside of it an error is the user's to see.
    """

    def __init__(self) -> None:
        self.protected = False
        self.surfaced = False
        self._reason: str | None = None
        self._lock = threading.Lock()
        self._listeners: list[Callable[[str], None]] = []

    @property
    def is_set(self) -> bool:
        """Whether the running step is broken."""
        return self._reason is not None

    @property
    def reason(self) -> str:
        """Why it is set; empty while it is not."""
        return self._reason or ""

    def listen(self, listener: Callable[[str], None]) -> None:
        """Have ``listener(reason)`` called when the latch trips, on the thread that trips it."""
        self._listeners.append(listener)

    def trip(self, reason: str) -> None:
        """Latch; only the first reason of an epoch counts."""
        with self._lock:
            if self._reason is not None:
                return
            self._reason = reason
        for listener in self._listeners:
            listener(reason)

    def clear(self) -> None:
        """A new epoch begins."""
        with self._lock:
            self._reason = None

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
