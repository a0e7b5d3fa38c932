"""The leaver's part of a planned move: it brings its joiner up to date, hands over, and waits."""

from __future__ import annotations

import os
import time
from typing import Any, Final

import structlog

from trainmover.errors import ProtocolError, StaleEpochError
from trainmover.job.plan import Plan
from trainmover_executor.decisions.effects import LeadFailed, LeadPaused, Led, Left
from trainmover_executor.links.link import Link, LinkBrokenError
from trainmover_executor.moves.facts import Reports
from trainmover_executor.position.moment import Moment
from trainmover_executor.state.handing_over.lead import StateLead
from trainmover_executor.state.handing_over.transfer import StateCorruptError
from trainmover_executor.state.training import TrainingState
from trainmover_executor.worker.adapters.ending import ends_when_released
from trainmover_executor.worker.adapters.files import flush_files
from trainmover_executor.worker.prepare_links import STATE_GROUP
from trainmover_executor.worker.runtime import Runtime

__all__ = ["FOLLOW_VARIABLE", "Leaver"]

log = structlog.get_logger(__name__)

_MOST_PAUSES: Final = 3
"""Where calls of ``session.steps`` end so often meanwhile, state is copied at the switch."""

FOLLOW_VARIABLE: Final = "TRAINMOVER_FOLLOW"
"""``off`` copies state at the switch instead of following, for comparison."""


class Leaver:
    """Played by the training thread, between and in front of optimizer steps.

    Args:
        runtime: This rank.
        state: Its state.
        reports: Where facts go.
    """

    def __init__(self, runtime: Runtime, state: TrainingState, reports: Reports) -> None:
        self._runtime = runtime
        self._state = state
        self._reports = reports
        self._leading: tuple[Plan, StateLead] | None = None
        self._paused: tuple[Plan, Link] | None = None
        self._awaited: tuple[Plan, StateLead] | None = None
        self._pauses = 0

    def look_after(self, moment: Moment) -> None:
        """Between two steps: begin to bring a joiner up to date, or end it; usually nothing.

        Args:
            moment: Where the job stands.
        """
        plan = self._runtime.decisions.state.leading
        if any(held is not None and held[0] != plan for held in self._held()):
            self.end()
        if self._leading is not None:
            self._leading[1].step_begins()
        elif plan is not None and not self._is_awaiting(plan):
            self._begin(plan, moment)

    def _held(self) -> tuple[tuple[Plan, object] | None, ...]:
        return self._leading, self._paused, self._awaited

    def _is_awaiting(self, plan: Plan) -> bool:
        """Whether the joiner's program has not come yet to where the job was in an earlier call."""
        if self._awaited is None or self._awaited[0] != plan:
            return False
        link = self._awaited[1].pause()
        if link is not None:
            self._paused, self._awaited = (plan, link), None
        return link is None

    def pause(self) -> None:
        """A call of ``session.steps`` ended: go on in the next one, where the joiner has to be."""
        if self._leading is None:
            return
        plan, lead = self._leading
        self._leading = None
        self._pauses += 1
        link = lead.pause()
        if link is None:
            self._awaited = (plan, lead)
        else:
            self._paused = (plan, link)
        self._runtime.decisions.take(LeadPaused(plan))

    def end(self) -> None:
        """Stop bringing a joiner up to date."""
        if self._leading is not None:
            _, lead = self._leading
            self._leading = None
            lead.cancel()
        if self._paused is not None:
            self._paused[1].close()
            self._paused = None
        if self._awaited is not None:
            self._awaited[1].cancel()
            self._awaited = None
        self._pauses = 0

    def before_optimizer(self, index: int) -> None:
        """A step that was voted for is about to be taken by optimizer ``index``."""
        if self._leading is not None:
            self._leading[1].before_optimizer(index)

    def after_optimizer(self) -> None:
        """It has been taken."""
        if self._leading is not None:
            self._leading[1].after_optimizer()

    def _begin(self, plan: Plan, moment: Moment) -> None:
        runtime = self._runtime
        runtime.reach("lead.begin")
        try:
            lead = self._lead(plan, moment)
        except LinkBrokenError as error:
            runtime.decisions.take(LeadFailed(plan, str(error)))
            return
        if os.environ.get(FOLLOW_VARIABLE) == "off":
            lead.obstacle = f"switched off by {FOLLOW_VARIABLE}"
        if self._pauses >= _MOST_PAUSES:
            lead.defer("calls of session.steps() end before the joiner is up to date")
        self._leading = (plan, lead)
        lead.start()

    def _lead(self, plan: Plan, moment: Moment) -> StateLead:
        runtime = self._runtime
        started = time.monotonic()
        paused, self._paused = self._paused, None
        if paused is not None and paused[0] == plan:
            link = paused[1]
        else:
            if paused is not None:
                paused[1].close()
            link = runtime.table.parked_link(epoch=plan.epoch, group=STATE_GROUP, peer=runtime.rank)

        def current() -> None:
            runtime.reach("lead.current")
            runtime.decisions.take(Led(plan, time.monotonic() - started))

        def lost(reason: str) -> None:
            runtime.decisions.take(LeadFailed(plan, reason))

        return StateLead(
            link,
            self._state,
            moment=moment,
            epoch=plan.epoch,
            wanted=lambda: runtime.decisions.state.leading == plan,
            current=current,
            lost=lost,
        )

    def leave(self, plan: Plan, rest: dict[str, Any], *, moment: Moment, step: int) -> None:
        """Hand over what is left; then wait to be released, or to be taken back.

        Args:
            plan: The plan that the ranks voted for.
            rest: What only the session knows.
            moment: Where the job stands.
            step: Steps completed by the job.
        """
        runtime = self._runtime
        started = time.perf_counter()
        try:
            self._resume(plan, moment)
        except (LinkBrokenError, StateCorruptError) as error:
            self.end()
            runtime.latch.trip(f"the joiner did not get to where the job stands: {error}")
            return
        if self._leading is None or self._leading[0] != plan:
            runtime.latch.trip("the joiner was lost when the switch was decided")
            return
        _, lead = self._leading
        runtime.reach("leave.begin")
        # Another leaver may be released, hence end, before this one: that is no death.
        runtime.unwatch(plan.joining_ranks)
        try:
            sent = lead.finish(rest, large=moment.large)
        except (LinkBrokenError, StateCorruptError) as error:
            self.end()
            runtime.latch.trip(f"state hand-over to the joiner broke: {error}")
            return
        state_s = time.perf_counter() - started
        # The joiner has all that it needs: it may commit before this rank has said anything.
        with ends_when_released():
            runtime.reach("leave.sent")
            # The joiner waits for the proof, and writes on behind what is in our files.
            flush_files()
            if not lead.obstacle and not self._proved(lead):
                log.warning(
                    "the joiner ended before its state could be compared", migration=plan.id
                )
            self._reports.switched(
                plan,
                {"state": state_s},
                step=step,
                nbytes=lead.nbytes + sent.nbytes,
                copied=lead.obstacle,
            )
            joiner = plan.membership.machine_of(runtime.rank)
            log.info("handed over", migration=plan.id, joiner=joiner)
            runtime.decisions.take(Left(plan))
            # Our agent ends this process once the switch is committed.
            runtime.decisions.wait_until(lambda state: state.next_recovery is not None)
        self.end()
        runtime.latch.trip("the slot was given back")

    def _resume(self, plan: Plan, moment: Moment) -> None:
        """Have the joiner come to where the job stands, where it is not yet."""
        if self._leading is None and self._paused is not None and self._paused[0] == plan:
            self._take_up(plan, moment)
        if self._leading is not None and not self._leading[1].is_met:
            self._leading[1].meet(moment)

    def _take_up(self, plan: Plan, moment: Moment) -> None:
        """The switch was decided in the last step of a call that the program left."""
        lead = self._lead(plan, moment)
        lead.defer("the switch was decided in the last step of a call of session.steps()")
        self._leading = (plan, lead)

    @staticmethod
    def _proved(lead: StateLead) -> bool:
        try:
            lead.prove()
        except (LinkBrokenError, StaleEpochError, ProtocolError):
            return False
        return True
