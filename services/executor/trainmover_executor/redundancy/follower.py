"""The side of a rank that follows its neighbour's state in its own host memory."""

from __future__ import annotations

import concurrent.futures
from typing import Any

import structlog

from trainmover.errors import ProtocolError
from trainmover_executor.redundancy.advance import UnpredictableError, advance, same
from trainmover_executor.redundancy.copies.snapshot import SnapshotCopy
from trainmover_executor.redundancy.copies.stepping import FollowedCopy

__all__ = ["Follower", "NotFollowedError"]

log = structlog.get_logger(__name__)


class NotFollowedError(ProtocolError):
    """This rank does not hold the current state of its neighbour."""


class Follower:
    """Takes in what came with a vote once the vote has passed, beside training.

    The optimizer step of the copy runs in a thread of its own: nobody waits for it before the next
    vote. Doubt is final until the owner begins anew.

    Attributes:
        writes_between: Whether the neighbour's program writes to parameters between two steps: its
            state is that of its last vote here.
        is_unlike: Whether the neighbour's settings went another way than this rank's.
        structure: The neighbour's (see ``Structure.tree``); None where it is like this rank's.
    """

    def __init__(self) -> None:
        self._copy: FollowedCopy | SnapshotCopy | None = None
        self._whole: dict[str, Any] | None = None
        self._pending: dict[str, Any] | None = None
        self._pending_own: dict[str, Any] = {}
        self._theirs: dict[str, Any] | None = None
        self._own: dict[str, Any] = {}
        self._step = -1
        self._proved = False
        self.writes_between = False
        self.is_unlike = False
        self.structure: dict[str, Any] | None = None
        self._doubt = "nothing has come yet"
        self._thread = concurrent.futures.ThreadPoolExecutor(1, thread_name_prefix="tm-follower")
        self._taking: concurrent.futures.Future[None] | None = None

    @property
    def current(self) -> bool:
        """Whether the neighbour's whole state is here, and was compared after a followed step."""
        return not self._doubt and self._proved

    def rest(self) -> None:
        """Wait until the last committed step has been taken in."""
        if self._taking is not None:
            taking, self._taking = self._taking, None
            try:
                taking.result()
            except (ProtocolError, ValueError, KeyError, TypeError, RuntimeError) as error:
                self._doubted(f"a step could not be followed: {error!r}")

    def receive(self, message: dict[str, Any], *, own: dict[str, Any]) -> None:
        """Keep what came with a vote until the vote is known.

        Args:
            message: What ``Followed.message`` made.
            own: This rank's own small state at the vote.
        """
        self.rest()
        self._pending = None
        try:
            if "whole" in message:
                self._pending = _checked(message)
                return
            if message["outline"] is not None:
                self._copy = _copy_for(message["outline"])
                self._proved, self._doubt, self._theirs = False, "", None
            if self._doubt or self._copy is None:
                return
            self._compare(self._copy, message, own)
            self._pending, self._pending_own = message, own
        except (ProtocolError, KeyError, TypeError) as error:
            self.is_unlike = isinstance(error, UnpredictableError)
            self._doubted(str(error))

    def _compare(
        self, copy: FollowedCopy | SnapshotCopy, message: dict[str, Any], own: dict[str, Any]
    ) -> None:
        """Was what this rank holds, and would have told of the neighbour, true?"""
        if self._theirs is not None:
            expected = advance(self._theirs, before=self._own, now=own)
            if not same(expected, message["small"]):
                raise UnpredictableError("its scheduler, scaler or extras are not like this rank's")
        if message["sample"] is not None and not message["outline"]:
            name, value = message["sample"]
            if not copy.agrees(name, value):
                raise ProtocolError(f"{name} differs after a followed step")
            self._proved = copy.complete

    def committed(self) -> None:
        """The vote has passed: follow."""
        message, self._pending = self._pending, None
        if message is None:
            return
        self._whole = None
        self.structure = message.get("structure")  # none from a release before
        if "whole" in message:
            self._hold(message)
            return
        if self._copy is None:
            return
        self._theirs, self._own = message["small"], self._pending_own
        self._step = message["step"]
        self.writes_between |= message.get("between", False)  # none from a release before
        self._taking = self._thread.submit(self._copy.follow, message)

    def _hold(self, message: dict[str, Any]) -> None:
        """What came with the vote is the neighbour's state, if it was all of it."""
        self._copy, self._doubt, self._proved = None, "", message["whole"] is not None
        if self._proved:
            self._whole, self._step = message, message["step"]
            self.writes_between = message["between"]

    @property
    def holds_a_vote(self) -> bool:
        """See ``FollowerService.holds_a_vote``."""
        return self._whole is not None

    def abort(self) -> None:
        """The vote did not pass."""
        self._pending = None

    def tree(self, *, committed: int, own: dict[str, Any]) -> tuple[dict[str, Any], list[str]]:
        """The neighbour's state after ``committed`` steps, and the units that are followed.

        Args:
            committed: Steps completed by the job.
            own: This rank's own small state now.

        Raises:
            NotFollowedError: It is not here; the message says why.
        """
        self.rest()
        if not self.current:
            raise NotFollowedError(self._doubt or "not all of it was followed yet")
        if self._step != committed:
            raise NotFollowedError(f"it was followed up to step {self._step}, not {committed}")
        if self._whole is not None:
            return self._whole["whole"], sorted(self._whole["names"])
        if self._copy is None or self._theirs is None:
            raise NotFollowedError("not all of it was followed yet")
        small = advance(self._theirs, before=self._own, now=own)
        tree = self._copy.tree(settings=small["settings"], others=small["others"])
        return tree, sorted(self._copy.names)

    def _doubted(self, reason: str) -> None:
        if not self._doubt:
            log.warning("the state of the slot before is not followed any more", reason=reason)
        self._doubt = reason
        self._pending = None


def _checked(message: dict[str, Any]) -> dict[str, Any]:
    """A message with a neighbour's whole state.

    Raises:
        ProtocolError: It is none.
    """
    match message:
        case {"whole": dict() | None, "step": int(), "between": bool(), "names": list()}:
            return message
    raise ProtocolError("a neighbour's message with all of its state does not parse")


def _copy_for(outline: dict[str, Any]) -> FollowedCopy | SnapshotCopy:
    return SnapshotCopy(outline) if outline["logged"] else FollowedCopy(outline)
