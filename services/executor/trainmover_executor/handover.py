"""Membership changes at a step boundary: who hands what to whom, and who waits for whom.

Three parts are played here, each by the training thread of a rank:

* *stayer*: a planned switch touches only its links to the joiner; after a failure it waits for a
  plan, agrees with the others on the last committed step, and hands state to the joiner if asked.
* *leaver*: hands its whole state to the joiner, then waits: released, or given its slot back.
* *joiner*: receives, verifies, and leaves the sandbox.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, Final, NoReturn

import structlog
import torch.distributed as dist

from trainmover.capsules import holder_of
from trainmover.errors import ProtocolError, StaleEpochError
from trainmover.events.executor import PlanFailed, PlanPrepared, PlanSwitched, StepBroken
from trainmover.plan import Plan
from trainmover_executor.capsule import CapsuleKeeper, open_capsule
from trainmover_executor.control_thread import STATE_GROUP
from trainmover_executor.links.link import LinkBrokenError
from trainmover_executor.runtime import Runtime
from trainmover_executor.state.follow import StateFollower
from trainmover_executor.state.lead import StateLead
from trainmover_executor.state.training import TrainingState
from trainmover_executor.state.transfer import (
    StateCorruptError,
    live_tensors,
    receive_tree,
    send_tree,
)

__all__ = ["Handover", "Position"]

log = structlog.get_logger(__name__)

FOLLOW_VARIABLE: Final = "TRAINMOVER_FOLLOW"
"""``off`` copies state at the switch instead of following, for comparison."""

_CAPSULE_GROUP: Final = "_capsule"
_LINK_TIMEOUT_S: Final = 60.0
_PATIENCE_S: Final = 86400.0
_UNBORN: Final = -1


@dataclass(frozen=True, slots=True)
class Position:
    """Where a rank is, apart from parameters.

    Attributes:
        call: Which call of ``session.steps``, from 1.
        feed: Position in the data.
        rng: Random generators.
        buffers: (index, value) of the module buffers that training changes.
    """

    call: int
    feed: dict[str, Any]
    rng: dict[str, Any]
    buffers: list[list[Any]]

    def to_tree(self) -> dict[str, Any]:
        """As a portable tree."""
        return {
            "call": self.call,
            "feed": self.feed,
            "rng": self.rng,
            "buffers": self.buffers,
        }

    @staticmethod
    def from_tree(tree: dict[str, Any]) -> Position:
        """From a portable tree."""
        return Position(
            call=tree["call"], feed=tree["feed"], rng=tree["rng"], buffers=tree["buffers"]
        )


class Handover:
    """See the module's docstring.

    Attributes:
        committed: Steps completed by the job, as far as this rank knows.
        steps_redone: Attempts that were void since the last membership change.
        is_joiner: True until the first commit after this rank joined.
    """

    def __init__(self, runtime: Runtime, state: TrainingState, capsules: CapsuleKeeper) -> None:
        self._runtime = runtime
        self._state = state
        self._capsules = capsules
        self._switching: Plan | None = None
        self._recovering: Plan | None = None
        self._unconfirmed: Plan | None = None
        self._confirmed: Plan | None = None
        self._leading: tuple[Plan, StateLead] | None = None
        self._follower: StateFollower | None = None
        self.committed = 0
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

    # -- following, while training runs ----------------------------------------------------------

    def look_after_lead(self) -> None:
        """Between two steps: begin to bring a joiner up to date, or end it; usually nothing."""
        plan = self._runtime.mailbox.leading
        if self._leading is not None and self._leading[0] != plan:
            self.end_lead()
        if plan is not None and self._leading is None:
            self._begin_lead(plan)

    def end_lead(self) -> None:
        """Stop bringing a joiner up to date."""
        if self._leading is not None:
            _, lead = self._leading
            self._leading = None
            lead.cancel()

    def before_optimizer(self, index: int) -> None:
        """A step that was voted for is about to be taken by optimizer ``index``."""
        if self._leading is not None:
            self._leading[1].before_optimizer(index)

    def after_optimizer(self) -> None:
        """It has been taken."""
        if self._leading is not None:
            self._leading[1].after_optimizer()

    def _begin_lead(self, plan: Plan) -> None:
        runtime = self._runtime
        started = time.monotonic()

        def current() -> None:
            if runtime.mailbox.led(plan):
                about = {"migration": plan.id, "machine": runtime.spec.machine}
                prepared = {"rank": runtime.rank, "epoch": plan.epoch}
                took = {"prepare_s": time.monotonic() - started}
                runtime.report(PlanPrepared.model_validate({**about, **prepared, **took}))

        try:
            link = runtime.book.parked_link(epoch=plan.epoch, group=STATE_GROUP, peer=runtime.rank)
        except LinkBrokenError as error:
            self._report_failed(plan, str(error))
            runtime.mailbox.abort(plan.epoch)
            return
        lead = StateLead(
            link,
            self._state,
            epoch=plan.epoch,
            wanted=lambda: runtime.mailbox.leading == plan,
            current=current,
            lost=partial(self._report_failed, plan),
        )
        if os.environ.get(FOLLOW_VARIABLE) == "off":
            lead.obstacle = f"switched off by {FOLLOW_VARIABLE}"
        self._leading = (plan, lead)
        lead.start()

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
                self._leave(plan, here)
            else:
                self._switch(plan)
            self._switching = None

    def resolve_undecided(self) -> bool:
        """This rank's vote broke: whether the step is committed nevertheless.

        All gradients of the step are here, or the rank would not have voted; so if any rank saw
        the vote pass, every rank can and must take the step.
        """
        return self._agree(undecided=True)

    def _switch(self, plan: Plan) -> None:
        started = time.perf_counter()
        replaced = self._runtime.switch(plan)
        self._unconfirmed = plan
        self._report_switched(plan, {"links": time.perf_counter() - started}, nbytes=0)
        log.info("switched", migration=plan.id, epoch=plan.epoch, links_replaced=replaced)

    def _agree(self, *, undecided: bool = False) -> bool:
        """Wait for a failure plan and agree on the last committed step.

        Returns:
            Whether the undecided step turned out committed; counted in ``committed`` then.
        """
        runtime = self._runtime
        self._report_broken()
        while True:
            plan = self._await_plan()
            runtime.reset(plan.membership)
            try:
                (agreed,) = runtime.agree([self.committed], op=dist.ReduceOp.MAX)
            except (LinkBrokenError, StaleEpochError) as error:
                runtime.latch.trip(str(error))
                self._report_broken()
                continue
            self._recovering = self._unconfirmed = plan
            self._switching = None
            if agreed - self.committed > int(undecided):
                self._fail(plan, f"this rank completed {self.committed} steps, the others {agreed}")
            log.info("recovering", migration=plan.id, epoch=plan.epoch, committed=agreed)
            if agreed == self.committed:
                return False
            self.committed = agreed
            return True

    def _await_plan(self) -> Plan:
        runtime = self._runtime
        waited = 0
        while True:
            plan = runtime.mailbox.wait_to_recover(after_epoch=runtime.epoch)
            if plan is not None:
                return plan
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
        started = time.perf_counter()
        nbytes = 0
        for joiner, source in sorted(plan.sources.items()):
            if source == runtime.rank and joiner != runtime.rank:
                link = runtime.book.link(STATE_GROUP, joiner, timeout_s=_LINK_TIMEOUT_S)
                tree = {"state": self._state.tree(), "committed": self.committed}
                nbytes += send_tree(link, tree, epoch=plan.epoch).nbytes
            if self._capsule_holder(plan, joiner) == runtime.rank:
                link = runtime.book.link(_CAPSULE_GROUP, joiner, timeout_s=_LINK_TIMEOUT_S)
                capsule = self._capsules.held(joiner, step=self.committed)
                send_tree(link, capsule, epoch=plan.epoch)
        if plan.sources.get(runtime.rank, runtime.rank) != runtime.rank:
            self._decline(plan)
        self._report_switched(plan, {"state": time.perf_counter() - started}, nbytes=nbytes)

    def _capsule_holder(self, plan: Plan, joiner: int) -> int | None:
        """Who hands ``joiner`` its capsule; None before the first step, or when it needs none."""
        if not self.committed or plan.sources[joiner] == joiner:
            return None
        layout = plan.membership.layout
        holder = holder_of(joiner, layout, joining=plan.joining_ranks)
        if holder is None:
            self._fail(plan, f"the capsule of rank {joiner} is lost with all who kept it")
        return holder

    def _decline(self, plan: Plan) -> None:
        """Take in what a joiner is handed, and keep the own: this rank holds the state already.

        It joined by an earlier plan that broke, which the planner cannot know for sure, or it is a
        leaver that got its slot back. Its bits are the same, and it is in the middle of its step.
        """
        runtime = self._runtime
        peers = [(STATE_GROUP, plan.sources[runtime.rank])]
        if (holder := self._capsule_holder(plan, runtime.rank)) is not None:
            peers.append((_CAPSULE_GROUP, holder))
        for group, peer in peers:
            link = runtime.book.link(group, peer, timeout_s=_LINK_TIMEOUT_S)
            receive_tree(link, epoch=plan.epoch, live={}, first_timeout_s=_LINK_TIMEOUT_S)
        log.info("kept the own state: this rank holds it already", migration=plan.id)

    # -- leaver ----------------------------------------------------------------------------------

    def _leave(self, plan: Plan, here: Position) -> None:
        """Hand everything to the joiner; then wait to be released, or to be taken back."""
        runtime = self._runtime
        started = time.perf_counter()
        if self._leading is None or self._leading[0] != plan:
            runtime.latch.trip("the joiner was lost when the switch was decided")
            return
        _, lead = self._leading
        # Another leaver may be released, hence end, before this one: that is no death.
        runtime.unwatch(plan.joining_ranks)
        tree = {
            "committed": self.committed,
            "position": here.to_tree(),
            "capsules": self._capsules.kept(step=self.committed),
        }
        try:
            sent = lead.finish(tree)
        except (LinkBrokenError, StateCorruptError) as error:
            self.end_lead()
            runtime.latch.trip(f"state hand-over to the joiner broke: {error}")
            return
        self._report_switched(
            plan,
            {"state": time.perf_counter() - started},
            nbytes=lead.nbytes + sent.nbytes,
            epoch=plan.epoch,
            copied=lead.obstacle,
        )
        if not lead.obstacle and not self._proved(lead):
            log.warning("the joiner ended before its state could be compared", migration=plan.id)
        log.info("handed over", migration=plan.id, joiner=plan.membership.machine_of(runtime.rank))
        while runtime.mailbox.wait_to_recover(after_epoch=plan.epoch) is None:
            pass  # our agent ends this process once the switch is committed
        self.end_lead()
        runtime.latch.trip("the slot was given back")

    @staticmethod
    def _proved(lead: StateLead) -> bool:
        try:
            lead.prove()
        except (LinkBrokenError, StaleEpochError, ProtocolError):
            return False
        return True

    # -- joiner ----------------------------------------------------------------------------------

    def take_over(self, beginning: Position) -> Position:
        """Wait in the sandbox until a plan needs this standby; return where it has to go on.

        Args:
            beginning: This rank's position before the first step, for a job that has none yet.
        """
        runtime = self._runtime
        tried = runtime.epoch
        while True:
            plan = runtime.mailbox.wait_to_join(after_epoch=tried)
            tried = plan.epoch
            try:
                position = self._join(plan, beginning)
            except (LinkBrokenError, StaleEpochError, StateCorruptError) as error:
                log.warning("could not join", migration=plan.id, error=str(error))
                if not runtime.mailbox.withdrawn(plan):
                    broke = not isinstance(error, StateCorruptError)
                    self._report_failed(plan, str(error), links_broke=broke)
                continue
            runtime.promote()
            self.is_joiner = True
            self._unconfirmed = plan
            runtime.mailbox.joined(plan)
            return position

    def _join(self, plan: Plan, beginning: Position) -> Position:
        runtime = self._runtime
        started = time.perf_counter()
        planned = plan.kind == "planned"
        runtime.reset(plan.membership, watch=not planned)
        if planned:
            position, nbytes, copied = self._follow(plan)
        else:
            position, nbytes = self._inherit(plan, beginning)
            copied = "the leaver is dead"
        phases = {"join": time.perf_counter() - started} if not planned else {}
        self._report_switched(plan, phases, nbytes=nbytes, copied=copied)
        if planned:
            runtime.rewatch()
        log.info(
            "joined",
            migration=plan.id,
            epoch=plan.epoch,
            committed=self.committed,
            state_bytes=nbytes,
            copied=copied,
        )
        return position

    def _follow(self, plan: Plan) -> tuple[Position, int, str]:
        """Be brought up to date by the leaver, until the switch."""
        runtime = self._runtime
        if runtime.mailbox.withdrawn(plan):
            raise LinkBrokenError("the migration was aborted")
        link = runtime.book.link(STATE_GROUP, runtime.rank, timeout_s=_PATIENCE_S)
        follower = StateFollower(link, self._state, epoch=plan.epoch, patience_s=_PATIENCE_S)
        message, received = follower.follow()
        self.committed = message["committed"]
        self._capsules.keep(message["capsules"], step=self.committed)
        follower.begin_proof()
        self._follower = follower
        copied = "" if not follower.copied else "following was not possible"
        return Position.from_tree(message["position"]), received.nbytes, copied

    def _inherit(self, plan: Plan, beginning: Position) -> tuple[Position, int]:
        """Take the state from a replica, and what only the dead rank knew from its capsule."""
        runtime = self._runtime
        runtime.agree([_UNBORN], op=dist.ReduceOp.MAX)
        link = runtime.book.link(STATE_GROUP, plan.sources[runtime.rank], timeout_s=_LINK_TIMEOUT_S)
        tree, received = receive_tree(
            link,
            epoch=plan.epoch,
            live=live_tensors({"state": self._state.tree()}),
            first_timeout_s=_LINK_TIMEOUT_S,
        )
        self._state.load(tree["state"])
        self.committed = tree["committed"]
        if not self.committed:
            # The same program with the same rank came to the same beginning: nobody has to tell.
            return beginning, received.nbytes
        return Position.from_tree(self._receive_capsule(plan)), received.nbytes

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
        holder = self._capsule_holder(plan, runtime.rank)
        assert holder is not None  # noqa: S101 - asked for after the first step, by fresh joiners
        link = runtime.book.link(_CAPSULE_GROUP, holder, timeout_s=_LINK_TIMEOUT_S)
        tree, _ = receive_tree(link, epoch=plan.epoch, live={}, first_timeout_s=_LINK_TIMEOUT_S)
        return open_capsule(tree["capsule"])

    # -- reports ---------------------------------------------------------------------------------

    def _report_switched(
        self,
        plan: Plan,
        phases_s: dict[str, float],
        *,
        nbytes: int,
        epoch: int | None = None,
        copied: str = "",
    ) -> None:
        runtime = self._runtime
        runtime.report(
            PlanSwitched(
                migration=plan.id,
                machine=runtime.spec.machine,
                rank=runtime.rank,
                epoch=runtime.epoch if epoch is None else epoch,
                step=self.committed,
                phases_s=phases_s,
                state_bytes=nbytes,
                copied_because=copied,
            )
        )

    def _report_broken(self) -> None:
        runtime = self._runtime
        runtime.report(
            StepBroken(
                machine=runtime.spec.machine,
                rank=runtime.rank,
                epoch=runtime.epoch,
                committed_step=self.committed,
                reason=runtime.latch.reason,
            )
        )

    def _report_failed(self, plan: Plan, reason: str, *, links_broke: bool = False) -> None:
        runtime = self._runtime
        runtime.report(
            PlanFailed(
                migration=plan.id,
                machine=runtime.spec.machine,
                rank=runtime.rank,
                epoch=plan.epoch,
                reason=reason,
                step_safe=True,
                links_broke=links_broke,
            )
        )

    def _fail(self, plan: Plan, reason: str) -> NoReturn:
        self._report_failed(plan, reason)
        raise ProtocolError(f"migration {plan.id} cannot be carried out here: {reason}")
