"""Membership changes at a step boundary: who hands what to whom, and who waits for whom.

The stayer's part is here: a planned switch touches only its links to the joiner; after a failure
it waits for a plan, agrees with the others on the last committed step, and hands state to the
joiner if asked. The other two parts are in ``leaver`` and ``joiner``.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial
from typing import Any, Literal

import structlog
import torch.distributed as dist

from trainmover.errors import ProtocolError, StaleEpochError
from trainmover.plan import Plan
from trainmover_executor.capsule import (
    CAPSULE_GROUP,
    CapsuleKeeper,
    CapsuleLostError,
    giver_of,
)
from trainmover_executor.checkpoint import CheckpointKeeper
from trainmover_executor.joiner import Joiner
from trainmover_executor.leaver import Leaver
from trainmover_executor.links.link import LinkBrokenError
from trainmover_executor.phase_one import STATE_GROUP
from trainmover_executor.position import Position
from trainmover_executor.redundancy.layout import replicas_of
from trainmover_executor.redundancy.service import FollowerService
from trainmover_executor.reports import Reports
from trainmover_executor.runtime import Runtime
from trainmover_executor.state.training import TrainingState
from trainmover_executor.state.transfer import HAND_OVER_TIMEOUT_S, receive_tree, send_tree

__all__ = ["Handover"]

log = structlog.get_logger(__name__)


class Handover:
    """See the module's docstring.

    Attributes:
        committed: Steps completed by the job, as far as this rank knows.
        between: Pieces of work between steps that the job completed, likewise.
        steps_redone: Attempts that were void since the last membership change.
        is_joiner: True until the first commit after this rank joined.
        leaver: This rank's part when it is the one to leave.
    """

    def __init__(
        self,
        runtime: Runtime,
        state: TrainingState,
        *,
        capsules: CapsuleKeeper,
        following: FollowerService,
        checkpoint: CheckpointKeeper,
    ) -> None:
        self._runtime = runtime
        self._checkpoint = checkpoint
        self._state = state
        self._capsules = capsules
        self._following = following
        self._switching: Plan | None = None
        self._recovering: Plan | None = None
        self._unconfirmed: Plan | None = None
        self._confirmed: Plan | None = None
        self._reports = Reports(runtime)
        self._joiner = Joiner(runtime, state, self._reports, capsules=capsules, following=following)
        self.leaver = Leaver(runtime, state, self._reports)
        self.committed = 0
        self.between = 0
        self.steps_redone = 0
        self.is_joiner = False

    @property
    def pending(self) -> bool:
        """Whether a membership change waits for the step boundary."""
        return self._switching is not None or self._recovering is not None

    def vote_passed(self, switching: Plan | None) -> None:
        """The running step is committed everywhere; ``switching`` was voted for with it."""
        self.committed += 1
        self._switching = switching
        self._confirmed, self._unconfirmed = self._unconfirmed, None

    @property
    def unconfirmed(self) -> bool:
        """Whether the epoch has not had its first committed step yet."""
        return self._unconfirmed is not None

    def confirm(self) -> Plan | None:
        """The plan whose epoch has just had its first committed step, once."""
        plan, self._confirmed = self._confirmed, None
        return plan

    def try_or_latch(self, action: Callable[[], None]) -> bool:
        """Run ``action``; a communication error trips the latch instead of being raised."""
        try:
            action()
        except (LinkBrokenError, StaleEpochError) as error:
            self._runtime.latch.trip(str(error))
            return False
        return True

    def take_over(self, beginning: Position) -> Position:
        """Wait in the sandbox until a plan needs this standby; return where it has to go on.

        Args:
            beginning: This rank's position before the first step, for a job that has none yet.
        """
        self._unconfirmed, position, counts = self._joiner.take_over(beginning)
        self.committed, self.between = counts
        self.is_joiner = True
        return position

    def check_proof(self) -> None:
        """Before a joiner's first vote: its state must be the leaver's.

        Raises:
            StateCorruptError: It is not.
        """
        self._joiner.check_proof()

    # -- stayers and survivors -------------------------------------------------------------------

    def settle(self, here: Position) -> None:
        """Carry out what is pending; on a communication error the latch is set on return.

        Args:
            here: This rank's position, for the joiner when this rank is the leaver.
        """
        if self._runtime.latch.is_set:
            self._agree()
        elif self._recovering is not None:
            if self.try_or_latch(partial(self._hand_out, self._recovering)):
                self._recovering = None
        elif (plan := self._switching) is not None:
            if self._runtime.rank in plan.joining_ranks:
                rest = {
                    "committed": self.committed,
                    "between": self.between,
                    "position": here.to_tree(),
                    "capsules": self._capsules.kept(step=self.committed),
                    "followed": self._following.units_held(),
                }
                self.leaver.leave(plan, rest, step=self.committed)
            else:
                self._switch(plan)
            self._switching = None

    def resolve_undecided(self) -> bool:
        """This rank's vote broke: whether the step is committed nevertheless.

        All gradients of the step are here, or the rank would not have voted; so if any rank saw
        the vote pass, every rank can and must take the step.
        """
        return self._agree(undecided="step")

    def resolve_between(self) -> bool:
        """The same for work between steps."""
        return self._agree(undecided="between")

    def _switch(self, plan: Plan) -> None:
        self._runtime.reach("switch.begin")
        started = time.perf_counter()
        replaced = self._runtime.switch(plan)
        self._following.replaced(plan.joining_ranks)
        self._unconfirmed = plan
        took = {"links": time.perf_counter() - started}
        self._reports.switched(plan, took, step=self.committed, nbytes=0)
        self._runtime.reach("switch.done")
        log.info("switched", migration=plan.id, epoch=plan.epoch, links_replaced=replaced)

    def _agree(self, *, undecided: Literal["", "step", "between"] = "") -> bool:
        """Wait for a failure plan and agree on the last committed step.

        Args:
            undecided: What this rank's vote broke about, if about anything.

        Returns:
            Whether the undecided turned out committed; it is counted then.
        """
        runtime = self._runtime
        self._reports.broken(step=self.committed)
        while True:
            plan = self._await_plan()
            runtime.reach("recover.begin")
            runtime.reset(plan.membership)
            try:
                own = [self.committed, self.between]
                committed, between = runtime.agree(own, op=dist.ReduceOp.MAX)
            except (LinkBrokenError, StaleEpochError) as error:
                runtime.latch.trip(str(error))
                self._reports.broken(step=self.committed)
                continue
            self._recovering = self._unconfirmed = plan
            self._switching = None
            self._following.replaced(plan.joining_ranks)
            behind = (committed - self.committed, between - self.between)
            if behind not in {(0, 0), (undecided == "step", undecided == "between")}:
                self._reports.refuse(
                    plan, f"this rank completed {self.committed} steps, the others {committed}"
                )
            runtime.reach("recover.agreed")
            log.info("recovering", migration=plan.id, epoch=plan.epoch, committed=committed)
            self.committed, self.between = committed, between
            return behind != (0, 0)

    def _await_plan(self) -> Plan:
        runtime = self._runtime
        waited = 0
        while True:
            told = runtime.mailbox.wait_to_recover(after_epoch=runtime.epoch)
            if isinstance(told, Plan):
                return told
            if told is not None:
                self._checkpoint.save(told, committed=self.committed)
                continue
            waited += 5
            log.warning(
                "holding the job: no recovery plan yet; is the planner running, is a standby "
                "registered?",
                waited_s=waited,
                reason=runtime.latch.reason,
            )

    def _hand_out(self, plan: Plan) -> None:
        """Give joiners what this rank holds for them."""
        runtime = self._runtime
        runtime.reach("recover.hand")
        started = time.perf_counter()
        nbytes = 0
        for joiner, source in sorted(plan.sources.items()):
            if source == runtime.rank and joiner != runtime.rank:
                link = runtime.book.link(STATE_GROUP, joiner, timeout_s=HAND_OVER_TIMEOUT_S)
                nbytes += send_tree(link, self._state_for(plan, joiner), epoch=plan.epoch).nbytes
            if self._capsule_holder(plan, joiner) == runtime.rank:
                link = runtime.book.link(CAPSULE_GROUP, joiner, timeout_s=HAND_OVER_TIMEOUT_S)
                capsule = self._capsules.held(joiner, step=self.committed)
                send_tree(link, capsule, epoch=plan.epoch)
        if plan.sources.get(runtime.rank, runtime.rank) != runtime.rank:
            self._decline(plan)
        took = {"state": time.perf_counter() - started}
        self._reports.switched(plan, took, step=self.committed, nbytes=nbytes)

    def _state_for(self, plan: Plan, joiner: int) -> dict[str, Any]:
        """What ``joiner`` takes over: the copy kept of its state, or this rank's own equal one."""
        state, followed = self._state.tree(), list[str]()
        if joiner not in replicas_of(self._state.models, rank=self._runtime.rank):
            try:
                state, followed = self._following.tree_of(joiner, committed=self.committed)
            except ProtocolError as error:
                self._reports.refuse(plan, f"the state of rank {joiner} is not here: {error}")
        counts = {"committed": self.committed, "between": self.between}
        return {"state": state, **counts, "followed": followed}

    def _capsule_holder(self, plan: Plan, joiner: int) -> int | None:
        """Who hands ``joiner`` its capsule; None before the first step, or when it needs none."""
        if not self.committed or plan.sources[joiner] == joiner:
            return None
        try:
            return giver_of(plan, joiner)
        except CapsuleLostError as error:
            self._reports.refuse(plan, str(error))

    def _decline(self, plan: Plan) -> None:
        """Take in what a joiner is handed, and keep the own: this rank holds the state already.

        It joined by an earlier plan that broke, which the planner cannot know for sure, or it is a
        leaver that got its slot back. Its bits are the same, and it is in the middle of its step.
        """
        runtime = self._runtime
        peers = [(STATE_GROUP, plan.sources[runtime.rank])]
        if (holder := self._capsule_holder(plan, runtime.rank)) is not None:
            peers.append((CAPSULE_GROUP, holder))
        for group, peer in peers:
            link = runtime.book.link(group, peer, timeout_s=HAND_OVER_TIMEOUT_S)
            receive_tree(link, epoch=plan.epoch, live={}, first_timeout_s=HAND_OVER_TIMEOUT_S)
        log.info("kept the own state: this rank holds it already", migration=plan.id)
