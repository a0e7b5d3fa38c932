"""The latch: the first communication error of a step, kept until the step is over.

Raising in the middle of a backward pass would leave the state machines of DDP, FSDP or a pipeline
schedule broken for the redo. So the first error is latched, every further collective of the step
completes at once with a stand-in, the step runs through to the vote, and the step is aborted.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence

import torch

from trainmover_executor.decisions.effects import Broke
from trainmover_executor.decisions.shell import RankDecisions
from trainmover_executor.links.link import LinkBrokenError

__all__ = ["DoesBetween", "Latch"]

DoesBetween = Callable[[Sequence[int], list[torch.Tensor], Callable[[], object]], bool]
"""Given global ranks, the tensors written to, and how to do it: whether it was done."""


class Latch:
    """What those who communicate see of the core of decisions.

    Args:
        decisions: Keeps the reason, and the epoch it belongs to.

    Attributes:
        surfaced: Whether its reason was raised into the program.
        protected: True in the body of a step and in work between steps, which are done again.
            Outside of them an error is the user's to see.
        between: Does a collective that the program calls between two steps, so that it is done
            again if it breaks. There is none before there is a session.
        issued: Collectives and messages of the program so far.
        on_issue: Called in front of each of them, by the thread that issues it; mostly None.
        stand_ins: How many of them completed with stand-ins.
    """

    def __init__(self, decisions: RankDecisions) -> None:
        self._decisions = decisions
        self.protected = False
        self.surfaced = False
        self.between: DoesBetween | None = None
        self.issued = 0
        self.on_issue: Callable[[], None] | None = None
        self.stand_ins = 0

    def issue(self) -> None:
        """The program issues a collective or a message."""
        self.issued += 1
        if self.on_issue is not None:
            self.on_issue()

    @contextlib.contextmanager
    def protecting(self) -> Iterator[None]:
        """While it lasts, what breaks is done again by whoever asks for this."""
        self.protected = True
        try:
            yield
        finally:
            self.protected = False

    @property
    def is_set(self) -> bool:
        """Whether the running step is broken."""
        return self._decisions.state.broken is not None

    @property
    def uses_stand_ins(self) -> bool:
        """Whether collectives until the next step complete with stand-ins.

        The step is broken; or this rank learned only while it recovered that it is committed. Then
        the others broke further on, and the joiner begins with the next step: nobody would answer.
        """
        return self.is_set or self._decisions.state.recovering is not None

    @property
    def reason(self) -> str:
        """Why it is set; empty while it is not."""
        return self._decisions.state.broken or ""

    def trip(self, reason: str, *, epoch: int | None = None) -> None:
        """Latch; only the first reason of an epoch counts.

        What another thread found out in one epoch may be said when the training thread is in the
        next one already, which it must not break. So such a reason comes with its epoch.

        Args:
            reason: What broke.
            epoch: The epoch that it broke; nothing happens once that is over. None, for the thread
                that changes epochs and those it waits for, is the epoch of now.
        """
        self._decisions.take(Broke(reason, epoch))

    def check_protected(self) -> None:
        """Raise the latched error where nobody would do it again; else a stand-in is given.

        Raises:
            LinkBrokenError: The latch is set outside of a step's body and work between steps.
        """
        if not self.protected:
            self.surfaced = True
            raise LinkBrokenError(
                f"communication broke outside of 'with step': {self.reason}. Bodies of steps and "
                "session.between_steps() are done again, and small collectives of all ranks: run "
                "this one in one of these."
            )
        self.stand_ins += 1
