"""Membership changes at a step boundary: who hands what to whom, and who waits for whom.

The stayer's part is here: a planned switch touches only its links to the joiner; after a failure
it waits for a plan, agrees with the others on the last committed step, and hands state to the
joiner if asked. The other two parts are in ``leaver`` and ``joiner``.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial
from typing import Any, Final

import structlog

from trainmover.errors import ProtocolError, StaleEpochError
from trainmover.job.plan import Plan
from trainmover_executor.decisions.effects import (
    Agreed,
    HandedOut,
    Noted,
    Recovers,
    SaveTaken,
    Stopped,
)
from trainmover_executor.decisions.state import WorkerState
from trainmover_executor.links.link import LinkBrokenError
from trainmover_executor.moves.checkpoint import CheckpointKeeper
from trainmover_executor.moves.facts import Reports
from trainmover_executor.moves.joining.joiner import Joiner
from trainmover_executor.moves.leaver import Leaver
from trainmover_executor.moves.private_state import (
    PRIVATE_STATE_GROUP,
    PrivateStateKeeper,
    PrivateStateLostError,
    giver_of,
)
from trainmover_executor.position.moment import Moment
from trainmover_executor.redundancy.service import FollowerService
from trainmover_executor.state.handing_over.arrival import await_arrival, say_arrived
from trainmover_executor.state.handing_over.transfer import (
    HAND_OVER_TIMEOUT_S,
    StateCorruptError,
    receive_tree,
    send_tree,
)
from trainmover_executor.state.training import TrainingState
from trainmover_executor.worker.prepare_links import STATE_GROUP
from trainmover_executor.worker.runtime import Runtime

__all__ = ["Handover"]

log = structlog.get_logger(__name__)

_WAIT_LOG_S: Final = 5.0


class Handover:
    """See the module's docstring.

    Attributes:
        steps_redone: Attempts that were aborted since the last membership change.
        is_joiner: True until the first commit after this rank joined.
        leaver: This rank's part when it is the one to leave.
        joiner: Its part while it is a standby.
        private_state: What this rank keeps for others.
    """

    def __init__(
        self,
        runtime: Runtime,
        state: TrainingState,
        *,
        private_state: PrivateStateKeeper,
        following: FollowerService,
        checkpoint: CheckpointKeeper,
    ) -> None:
        self._runtime = runtime
        self._checkpoint = checkpoint
        self._state = state
        self.private_state = private_state
        self._following = following
        self._decisions = runtime.decisions
        self._reports = Reports(runtime)
        self.joiner = Joiner(
            runtime, state, self._reports, private_state=private_state, following=following
        )
        self.leaver = Leaver(runtime, state, self._reports)
        self.steps_redone = 0
        self.is_joiner = False

    @property
    def committed(self) -> int:
        """Steps completed by the job, as far as this rank knows."""
        return self._decisions.state.committed

    @property
    def has_begun(self) -> bool:
        """Whether the job has completed a step of its own, or work in front of the first."""
        state = self._decisions.state
        return state.committed > state.origin or state.between > 0

    @property
    def pending(self) -> bool:
        """Whether a membership change waits for the step boundary."""
        return self._decisions.state.pending

    @property
    def unconfirmed(self) -> bool:
        """Whether the epoch has not had its first committed step yet."""
        return self._decisions.state.unconfirmed is not None

    def confirm(self) -> Plan | None:
        """The plan whose epoch has just had its first committed step, once."""
        plan = self._decisions.state.confirmed
        if plan is not None:
            self._decisions.take(Noted())
        return plan

    def try_or_latch(self, action: Callable[[], None]) -> bool:
        """Run ``action``; a communication error trips the latch instead of being raised."""
        try:
            action()
        except (LinkBrokenError, StaleEpochError, StateCorruptError) as error:
            # Damage included: the joiner says that it could not join, and a newer plan comes.
            self._runtime.latch.trip(str(error))
            return False
        return True

    def check_proof(self) -> None:
        """Before a joiner's first vote: its state must be the leaver's.

        Raises:
            StateCorruptError: It is not.
        """
        self.joiner.check_proof()

    # -- stayers and survivors -------------------------------------------------------------------

    def settle(self, moment: Moment) -> None:
        """Carry out what is pending; on a communication error the latch is set on return.

        Args:
            moment: Where this rank stands, for joiners.
        """
        state = self._decisions.state
        if state.broken is not None:
            self._agree()
        elif (plan := state.recovering) is not None:
            if self.try_or_latch(partial(self._hand_out, plan, moment)):
                self._decisions.take(HandedOut(plan))
        elif (plan := state.switching) is not None:
            if state.rank in plan.joining_ranks:
                rest = {
                    "committed": state.committed,
                    "between": state.between,
                    "position": moment.position.to_tree(),
                    **moment.common(),
                    "voted": moment.voted.to_tree(),
                    "gradients": self._state.gradients() if moment.accumulates else None,
                    "zeroed": self._state.lasting_gradients(),
                    **self.private_state.kept(step=state.committed),
                    "followed": self._following.units_held(),
                    "parted": self._following.replicas.parted,
                }
                self.leaver.leave(plan, rest, moment=moment, step=state.committed)
            else:
                self._switch(plan)

    def resolve_undecided(self) -> bool:
        """This rank's vote broke: whether what it was about is committed nevertheless.

        All gradients of the step are here, or the rank would not have voted; so if any rank saw
        the vote pass, every rank can and must take the step.
        """
        return self._agree()

    def _switch(self, plan: Plan) -> None:
        self._runtime.reach("switch.begin")
        started = time.perf_counter()
        replaced = self._runtime.switch(plan)
        self._following.replaced(plan.joining_ranks)
        took = {"links": time.perf_counter() - started}
        self._reports.switched(plan, took, step=self.committed, nbytes=0)
        self._runtime.reach("switch.done")
        log.info("switched", migration=plan.id, epoch=plan.epoch, links_replaced=replaced)

    def _agree(self) -> bool:
        """Wait for a recovery plan and agree on the last committed step.

        Returns:
            Whether what was undecided turned out committed; it is counted then.
        """
        runtime, decisions = self._runtime, self._decisions
        while True:
            decisions.take(Stopped())
            plan = self._await_plan()
            runtime.reach("recover.begin")
            runtime.reset(Recovers(plan))
            before = decisions.state
            try:
                own = [before.committed, before.between, int(before.votes_at_end)]
                committed, between, at_end = runtime.agree(own, best=max)
                said = self._following.replicas.says_after_failure(committed=committed)
                self._following.heard(runtime.agree(said, best=min))
            except (LinkBrokenError, StaleEpochError) as error:
                runtime.latch.trip(str(error))
                continue
            if refusal := decisions.take(Agreed(plan, committed, between, bool(at_end))).refusal:
                self._reports.refuse(plan, refusal)
            self._following.replaced(plan.joining_ranks)
            runtime.reach("recover.agreed")
            log.info("recovering", migration=plan.id, epoch=plan.epoch, committed=committed)
            return own[:2] != [committed, between]

    def _await_plan(self) -> Plan:
        waited = 0
        while True:
            state = self._decisions.wait_until(_has_news, timeout_s=_WAIT_LOG_S)
            if state.next_recovery is not None:
                return state.next_recovery
            if state.save is not None:
                self._decisions.take(SaveTaken())
                self._checkpoint.save(state.save, committed=state.committed)
                continue
            waited += round(_WAIT_LOG_S)
            log.warning(
                "holding the job: no recovery plan yet; is the planner running, is a standby "
                "registered?",
                waited_s=waited,
                reason=self._runtime.latch.reason,
            )

    def _hand_out(self, plan: Plan, moment: Moment) -> None:
        """Give joiners what this rank holds for them.

        First where the job stands, so that their programs get there all at the same time.
        """
        runtime = self._runtime
        runtime.reach("recover.hand")
        started = time.perf_counter()
        nbytes = 0
        for joiner in plan.sources:
            if self._private_state_holder(plan, joiner) == runtime.rank:
                runtime.table.call_ahead(PRIVATE_STATE_GROUP, joiner)
        mine = [
            joiner
            for joiner, source in sorted(plan.sources.items())
            if source == runtime.rank != joiner
        ]
        for joiner in mine:
            link = runtime.table.link(STATE_GROUP, joiner, timeout_s=HAND_OVER_TIMEOUT_S)
            send_tree(link, self._told(joiner, moment), epoch=plan.epoch)
        for joiner in sorted(plan.sources):
            if self._private_state_holder(plan, joiner) == runtime.rank:
                link = runtime.table.link(
                    PRIVATE_STATE_GROUP, joiner, timeout_s=HAND_OVER_TIMEOUT_S
                )
                tree = self.private_state.held(joiner, step=self.committed)
                send_tree(link, tree, epoch=plan.epoch)
        for joiner in mine:
            link = runtime.table.link(STATE_GROUP, joiner, timeout_s=HAND_OVER_TIMEOUT_S)
            await_arrival(link, epoch=plan.epoch)
            content = self._state_for(plan, joiner, moment)
            nbytes += send_tree(link, content, epoch=plan.epoch).nbytes
        if plan.sources.get(runtime.rank, runtime.rank) != runtime.rank:
            self._decline(plan)
        took = {"state": time.perf_counter() - started}
        self._reports.switched(plan, took, step=self.committed, nbytes=nbytes)

    def _told(self, joiner: int, moment: Moment) -> dict[str, Any]:
        """What a joiner has to know before it can take over."""
        state, following = self._decisions.state, self._following
        as_of_vote = joiner not in following.replicas.ranks and following.holds_a_vote
        counts = {"committed": state.committed, "between": state.between, "begun": self.has_begun}
        # A joiner passes the work behind the draw of the next step by itself.
        before = state.between - len(moment.passed)
        kept, step = self.private_state, self.committed
        return {
            **counts,
            **moment.common(),
            "then": kept.own_variables(step=step, ordinal=before),
            "now": moment.position.variables,
            "buffers": {
                "then": kept.own_buffers(step=step, ordinal=before),
                "now": moment.position.buffers,
            },
            "structure": following.structure_for(joiner),
            "as_of_vote": as_of_vote,
        }

    def _state_for(self, plan: Plan, joiner: int, moment: Moment) -> dict[str, Any]:
        """What ``joiner`` takes over: the copy kept of its state, or this rank's own equal one."""
        state = self._state
        tree, followed = state.tree(), list[str]()
        if joiner not in self._following.replicas.ranks:
            try:
                tree, followed = self._following.tree_of(joiner, committed=self.committed)
            except ProtocolError as error:
                self._reports.refuse(plan, f"the state of rank {joiner} is not here: {error}")
        gradients = self._state.gradients() if moment.accumulates else None
        return {
            "state": tree,
            "followed": followed,
            "parted": self._following.replicas.parted,
            "writes_between": bool(followed) and self._following.writes_between,
            "gradients": gradients,
            "zeroed": state.lasting_gradients(),
            "large": moment.large,
        }

    def _private_state_holder(self, plan: Plan, joiner: int) -> int | None:
        """Who hands ``joiner`` its private state; None before the first step, or if none is due."""
        if not self.has_begun or plan.sources[joiner] == joiner:
            return None
        try:
            return giver_of(plan, joiner)
        except PrivateStateLostError as error:
            self._reports.refuse(plan, str(error))

    def _decline(self, plan: Plan) -> None:
        """Take in what a joiner is handed, and keep the own: this rank holds the state already.

        It joined by an earlier plan that broke, which the planner cannot know for sure, or it is a
        leaver that got its slot back. Its bits are the same, and it is in the middle of its step.
        """
        runtime = self._runtime
        source = runtime.table.link(
            STATE_GROUP, plan.sources[runtime.rank], timeout_s=HAND_OVER_TIMEOUT_S
        )
        receive_tree(source, epoch=plan.epoch, live={}, first_timeout_s=HAND_OVER_TIMEOUT_S)
        if (holder := self._private_state_holder(plan, runtime.rank)) is not None:
            link = runtime.table.link(PRIVATE_STATE_GROUP, holder, timeout_s=HAND_OVER_TIMEOUT_S)
            receive_tree(link, epoch=plan.epoch, live={}, first_timeout_s=HAND_OVER_TIMEOUT_S)
        say_arrived(source, epoch=plan.epoch)
        receive_tree(source, epoch=plan.epoch, live={}, first_timeout_s=HAND_OVER_TIMEOUT_S)
        log.info("kept the own state: this rank holds it already", migration=plan.id)


def _has_news(state: WorkerState) -> bool:
    """Whether a rank that waits for a recovery plan has anything to do."""
    return state.next_recovery is not None or state.save is not None
