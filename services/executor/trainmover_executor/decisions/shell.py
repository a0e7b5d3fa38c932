"""The decisions of a rank, between two threads: events go in from either, actions come out."""

from __future__ import annotations

import threading
from collections.abc import Callable

from trainmover.job.plan import Plan
from trainmover_executor.decisions.core import step
from trainmover_executor.decisions.effects import Action, Event
from trainmover_executor.decisions.state import WorkerState

__all__ = ["RankDecisions"]


class RankDecisions:
    """Holds the state of the core; every method may be called from any thread.

    Args:
        state: What the rank knows at the start.
    """

    def __init__(self, state: WorkerState) -> None:
        self._state = state
        self._changed = threading.Condition()
        self._perform: Callable[[Action], None] = _nothing

    @property
    def state(self) -> WorkerState:
        """What the rank knows now; reading it takes no lock."""
        return self._state

    def act(self, perform: Callable[[Action], None]) -> None:
        """Have ``perform`` do what follows from events, on the thread that the event came from."""
        self._perform = perform

    def take(self, event: Event) -> WorkerState:
        """Take in an event, and do what follows.

        Actions are done after the lock is released: those of two threads may cross. Each that this
        could harm names the epoch that it is meant for.

        Returns:
            What the rank knew just after the event.
        """
        with self._changed:
            state, actions = step(self._state, event)
            self._state = state
            self._changed.notify_all()
        for action in actions:
            self._perform(action)
        return state

    def wait_until(
        self, reached: Callable[[WorkerState], bool], *, timeout_s: float | None = None
    ) -> WorkerState:
        """Wait for a state that ``reached`` accepts; the one of then when the time is over."""
        with self._changed:
            self._changed.wait_for(lambda: reached(self._state), timeout_s)
            return self._state

    def wait_to_join(self) -> Plan:
        """Wait until a plan needs this standby."""
        plan = self.wait_until(lambda state: state.wanted is not None).wanted
        assert plan is not None  # noqa: S101 - it waits for ever
        return plan

    def wait_to_join_or(
        self, news: Callable[[], bool], *, timeout_s: float | None = None
    ) -> Plan | None:
        """Wait until a plan needs this standby; None once there is ``news``, or time is over.

        Args:
            news: Looked at when something happened, or ``wake`` was called.
            timeout_s: How long.
        """
        return self.wait_until(
            lambda state: state.wanted is not None or news(), timeout_s=timeout_s
        ).wanted

    def wake(self) -> None:
        """Have those who wait look again."""
        with self._changed:
            self._changed.notify_all()


def _nothing(action: Action) -> None:
    """Nobody acts yet."""
    del action
