"""The joiner's part: a warm standby goes to where the job stands, takes the state over, goes on.

A standby's program waits in its first shadow iterations' call of ``session.steps``. The job may be
in a later one. So each time the program asks for a step (or for work between steps), the joiner
says how to get nearer (see ``course``); all of that is still in the sandbox. Where the job stands,
it takes over what a leaver or a replica holds, and is a member from then on.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import structlog
import torch

from trainmover.errors import StaleEpochError
from trainmover.job.plan import Plan
from trainmover_executor.decisions.effects import CouldNotJoin, Joined
from trainmover_executor.feed.catching_up import Data
from trainmover_executor.links.link import LinkBrokenError
from trainmover_executor.moves.facts import Reports
from trainmover_executor.moves.joining.coming import Coming
from trainmover_executor.moves.joining.from_leaver import FromLeaver
from trainmover_executor.moves.joining.from_replica import FromReplica
from trainmover_executor.moves.joining.waiting import Waiting
from trainmover_executor.moves.private_state import PrivateStateKeeper
from trainmover_executor.position.course import Course, Lost, TakeOver, Way
from trainmover_executor.position.moment import Moment
from trainmover_executor.position.position import Position
from trainmover_executor.position.results import Returned
from trainmover_executor.redundancy.service import FollowerService
from trainmover_executor.state.handing_over.transfer import StateCorruptError
from trainmover_executor.state.training import TrainingState
from trainmover_executor.worker.runtime import Runtime

__all__ = ["Joiner"]

log = structlog.get_logger(__name__)


class Joiner:
    """Played by the training thread of a standby, after its shadow iterations.

    Args:
        runtime: This rank.
        state: Its state, to be overwritten.
        reports: Where facts go.
        private_state: What it keeps for other ranks once it takes part.
        following: The same for state.
    """

    def __init__(
        self,
        runtime: Runtime,
        state: TrainingState,
        reports: Reports,
        *,
        private_state: PrivateStateKeeper,
        following: FollowerService,
    ) -> None:
        self._runtime = runtime
        self._state = state
        self._reports = reports
        self._coming: Coming | None = None
        self._waiting = Waiting(runtime)
        self._from_leaver = FromLeaver(
            runtime, state, private_state=private_state, following=following
        )
        self._from_replica = FromReplica(runtime, state, reports, following=following)

    @property
    def committed(self) -> int:
        """Steps that the job has completed, as far as this standby was told."""
        return 0 if self._coming is None else self._coming.committed

    @property
    def voted(self) -> Position | None:
        """Where the rank that is replaced was at its last vote, if this standby was told.

        None, too, while the program is in a call around the one that took that vote.
        """
        return None if self._coming is None else self._coming.vote_of_rest()

    def variables_when_given(self, step: list[list[int]]) -> dict[str, Any]:
        """See ``Coming.variables_when_given``."""
        return {} if self._coming is None else self._coming.variables_when_given(step)

    @property
    def variables_now(self) -> dict[str, Any]:
        """The program's variables where the job stands, of the rank that gives the state."""
        return {} if self._coming is None else self._coming.variables_now()

    @property
    def large(self) -> dict[str, torch.Tensor]:
        """What has come of the job's variables that is large, by its prints."""
        return {} if self._coming is None else self._coming.large

    @property
    def replaces_the_dead(self) -> bool:
        """Whether the job waits for this standby since a machine died."""
        return self._coming is not None and not self._coming.is_planned

    @property
    def ran_the_rest(self) -> bool:
        """Whether the program's variables come from the vote of the rank that is replaced."""
        return self._coming is not None and self._coming.ran_the_rest

    def check_inputs(self) -> None:
        """It takes over in a collective, which the program has called with what it computed.

        Raises:
            ProtocolError: It was on its way there before the rank died, with variables of its own.
        """
        if self._coming is not None and self._coming.is_beyond:
            self._reports.refuse(
                self._coming.plan,
                "the job waits in a collective between two steps, and this standby's program had "
                "called it before: put it into session.between_steps()",
            )

    def way(
        self, course: Course, *, between: bool, data: Data, ready: Callable[[], None]
    ) -> tuple[Way, Moment | None]:
        """How this standby's program gets to where the job stands; waits until a plan needs it.

        Args:
            course: Where the program is.
            between: It asks for work between steps; else for a step.
            data: Its data.
            ready: See ``Waiting.until_needed``.

        Returns:
            The way; with ``TakeOver``, what this process goes on with. It holds the state then.
        """
        while True:
            try:
                return self._next_way(course, between=between, data=data, ready=ready)
            except (LinkBrokenError, StaleEpochError, StateCorruptError) as error:
                self._could_not(error)

    def _next_way(
        self, course: Course, *, between: bool, data: Data, ready: Callable[[], None]
    ) -> tuple[Way, Moment | None]:
        coming = self._coming
        if coming is None:
            found = self._waiting.until_needed(course, between=between, data=data, ready=ready)
            if not isinstance(found, Plan):
                return found, None
            coming = self._begin(found)
        if coming.is_planned:
            way = self._from_leaver.way(coming, course, between=between, data=data)
        else:
            way = self._from_replica.way(coming, course, between=between)
        if isinstance(way, Lost):
            self._reports.refuse(coming.plan, way.reason)
        return way, self._take_over(coming) if isinstance(way, TakeOver) else None

    def position_behind(self, returned: Returned | None) -> Position | None:
        """Where the dead rank was behind work between steps that the program passes, if known."""
        return None if self._coming is None else self._coming.behind(returned)

    def runs_the_rest(self, *, hidden: frozenset[str]) -> None:
        """The program runs the code behind a vote from which it does not see ``hidden``."""
        if self._coming is not None:
            self._coming.hidden = hidden
            self._coming.was_at_vote = not self._coming.is_planned

    def writes_in_front(self) -> None:
        """The program wrote to parameters between being given a step and its body."""
        self._from_replica.writes_in_front = True

    def keep_writes(self) -> None:
        """The program is about to do one more step, of which nothing counts."""
        if self._coming is not None:
            self._coming.own_writes.end(issued=self._runtime.latch.issued)

    def put_parameters_back(self, *, settings: dict[str, Any]) -> None:
        """Behind an optimizer's step within it: the same, of what that step has changed.

        Args:
            settings: Those in front of that step.
        """
        if self._coming is not None:
            self._coming.put_parameters_back(settings=settings)

    def put_state_back(self) -> None:
        """Behind the body of one more step: the code there sees the state that the job has."""
        if self._coming is not None:
            self._coming.issued = self._runtime.latch.issued
            self._coming.put_state_back(self._state)

    def check_proof(self) -> None:
        """Before a joiner's first vote: its state must be the leaver's.

        Raises:
            StateCorruptError: It is not.
        """
        self._from_leaver.check_proof()

    def body_begins(self) -> None:
        """A body of training begins: what the code in front of it did is in the state already.

        Raises:
            ProtocolError: See ``Front.body_begins``.
        """
        front, self._from_replica.front = self._from_replica.front, None
        if front is not None:
            front.body_begins()

    # -- the way -----------------------------------------------------------------------------------

    def _begin(self, plan: Plan) -> Coming:
        coming = self._coming = Coming(plan)
        self._runtime.reach("join.begin")
        (self._from_leaver if coming.is_planned else self._from_replica).begin(coming)
        return coming

    def _take_over(self, coming: Coming) -> Moment:
        plan, runtime = coming.plan, self._runtime
        giver = self._from_leaver if coming.is_planned else self._from_replica
        moment = giver.take(coming)
        runtime.reach("join.state")
        committed = moment.place.committed
        phases = {} if coming.is_planned else {"join": time.perf_counter() - coming.started}
        self._reports.switched(
            plan, phases, step=committed, nbytes=coming.nbytes, copied=giver.copied
        )
        if coming.is_planned:
            runtime.rewatch()
        log.info(
            "joined",
            migration=plan.id,
            epoch=plan.epoch,
            committed=committed,
            state_bytes=coming.nbytes,
            lent_bytes=coming.lent,
            copied=giver.copied,
        )
        self._coming = None
        runtime.promote()
        between = coming.told["between"]
        runtime.decisions.take(Joined(plan, committed, between, moment.votes_at_end))
        runtime.reach("join.done")
        return moment

    def _could_not(self, error: Exception) -> None:
        coming, self._coming = self._coming, None
        if coming is None:
            raise error
        log.warning("could not join", migration=coming.plan.id, error=str(error))
        broke = not isinstance(error, StateCorruptError)
        self._runtime.decisions.take(CouldNotJoin(coming.plan, str(error), links_broke=broke))
