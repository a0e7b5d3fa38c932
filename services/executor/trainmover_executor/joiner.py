"""The joiner's part: a warm standby follows a leaver or inherits from a replica, and goes on."""

from __future__ import annotations

import contextlib
import time
from typing import Any, Final

import structlog

from trainmover.errors import StaleEpochError
from trainmover.plan import Plan
from trainmover_executor.capsule import (
    CAPSULE_GROUP,
    CapsuleKeeper,
    CapsuleLostError,
    giver_of,
    open_capsule,
)
from trainmover_executor.links.link import LinkBrokenError
from trainmover_executor.phase_one import STATE_GROUP
from trainmover_executor.position import Position
from trainmover_executor.redundancy.service import FollowerService
from trainmover_executor.redundancy.snapshot import take_again
from trainmover_executor.reports import Reports
from trainmover_executor.role.effects import CouldNotJoin, Joined, Joins
from trainmover_executor.runtime import Runtime
from trainmover_executor.state.follow import StateFollower
from trainmover_executor.state.training import TrainingState
from trainmover_executor.state.transfer import (
    HAND_OVER_TIMEOUT_S,
    StateCorruptError,
    live_tensors,
    receive_tree,
)

__all__ = ["Joiner"]

log = structlog.get_logger(__name__)

_PATIENCE_S: Final = 86400.0
_UNBORN: Final = -1

_Counts = tuple[int, int]
"""Steps, and pieces of work between steps, that the job completed."""


class Joiner:
    """Played by the training thread of a standby, after its shadow iterations.

    Args:
        runtime: This rank.
        state: Its state, to be overwritten.
        reports: Where facts go.
        capsules: What it keeps for other ranks once it takes part.
        following: The same for state.
    """

    def __init__(
        self,
        runtime: Runtime,
        state: TrainingState,
        reports: Reports,
        *,
        capsules: CapsuleKeeper,
        following: FollowerService,
    ) -> None:
        self._runtime = runtime
        self._state = state
        self._capsules = capsules
        self._following = following
        self._reports = reports
        self._follower: StateFollower | None = None

    def take_over(self, beginning: Position) -> Position:
        """Wait in the sandbox until a plan needs this standby; return where it has to go on.

        Args:
            beginning: This rank's position before the first step, for a job that has none yet.
        """
        runtime = self._runtime
        while True:
            plan = runtime.role.wait_to_join()
            try:
                position, counts = self._join(plan, beginning)
            except (LinkBrokenError, StaleEpochError, StateCorruptError) as error:
                log.warning("could not join", migration=plan.id, error=str(error))
                broke = not isinstance(error, StateCorruptError)
                runtime.role.take(CouldNotJoin(plan, str(error), links_broke=broke))
                continue
            runtime.promote()
            steps, between = counts
            runtime.role.take(Joined(plan, committed=steps, between=between))
            runtime.reach("join.done")
            return position

    def _join(self, plan: Plan, beginning: Position) -> tuple[Position, _Counts]:
        runtime = self._runtime
        runtime.reach("join.begin")
        started = time.perf_counter()
        planned = plan.kind == "planned"
        runtime.reset(Joins(plan), watch=not planned)
        if planned:
            position, counts, nbytes = self._follow(plan)
        else:
            position, counts, nbytes = self._inherit(plan, beginning)
        runtime.reach("join.state")
        copied = self._why_copied(planned=planned)
        phases = {"join": time.perf_counter() - started} if not planned else {}
        self._reports.switched(plan, phases, step=counts[0], nbytes=nbytes, copied=copied)
        if planned:
            runtime.rewatch()
        log.info(
            "joined",
            migration=plan.id,
            epoch=plan.epoch,
            committed=counts[0],
            state_bytes=nbytes,
            copied=copied,
        )
        return position, counts

    def _why_copied(self, *, planned: bool) -> str:
        if not planned:
            return "the leaver is dead"
        return "" if self._follower is not None else "following was not possible"

    def _follow(self, plan: Plan) -> tuple[Position, _Counts, int]:
        """Be brought up to date by the leaver, until the switch."""
        runtime = self._runtime
        if runtime.role.state.withdrawn(plan):
            raise LinkBrokenError("the migration was aborted")
        link = runtime.book.link(STATE_GROUP, runtime.rank, timeout_s=_PATIENCE_S)
        follower = StateFollower(link, self._state, epoch=plan.epoch, patience_s=_PATIENCE_S)
        message, received = follower.follow()
        committed = message["committed"]
        self._capsules.keep(message["capsules"], step=committed)
        self._following.adopt(message["followed"])
        if not follower.copied:
            follower.begin_proof()
            self._follower = follower
        counts = (committed, message["between"])
        return Position.from_tree(message["position"]), counts, received.nbytes

    def _inherit(self, plan: Plan, beginning: Position) -> tuple[Position, _Counts, int]:
        """Take the state from a replica, and what only the dead rank knew from its capsule."""
        runtime = self._runtime
        committed, _ = runtime.agree([_UNBORN, _UNBORN], best=max)
        if committed:
            with contextlib.suppress(CapsuleLostError):  # which is said when it is asked for
                runtime.book.call_ahead(CAPSULE_GROUP, giver_of(plan, runtime.rank))
        link = runtime.book.link(
            STATE_GROUP, plan.sources[runtime.rank], timeout_s=HAND_OVER_TIMEOUT_S
        )
        tree, received = receive_tree(
            link,
            epoch=plan.epoch,
            live=live_tensors({"state": self._state.tree()}),
            first_timeout_s=HAND_OVER_TIMEOUT_S,
        )
        self._state.load(tree["state"])
        if "since" in tree["state"]:
            steps = take_again(self._state, tree["state"]["since"])
            log.info("took the steps since a snapshot again", steps=steps)
        self._following.adopt(tree["followed"])
        counts = (tree["committed"], tree["between"])
        if not tree["committed"]:
            # The same program with the same rank came to the same beginning: nobody has to tell.
            return beginning, counts, received.nbytes
        return Position.from_tree(self._receive_capsule(plan)), counts, received.nbytes

    def check_proof(self) -> None:
        """Before a joiner's first vote: its state must be the leaver's.

        Raises:
            StateCorruptError: It is not.
        """
        if self._follower is not None:
            follower, self._follower = self._follower, None
            follower.check_proof()

    def _receive_capsule(self, plan: Plan) -> dict[str, Any]:
        runtime = self._runtime
        try:
            holder = giver_of(plan, runtime.rank)
        except CapsuleLostError as error:
            self._reports.refuse(plan, str(error))
        link = runtime.book.link(CAPSULE_GROUP, holder, timeout_s=HAND_OVER_TIMEOUT_S)
        tree, _ = receive_tree(link, epoch=plan.epoch, live={}, first_timeout_s=HAND_OVER_TIMEOUT_S)
        return open_capsule(tree["capsule"])
