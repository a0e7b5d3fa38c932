"""The vote of a step: committed everywhere or nowhere, in front of the optimizer.

See ``docs/concepts/the-vote.md``.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from trainmover.errors import StaleEpochError
from trainmover.telemetry.records import Phase
from trainmover_executor.decisions.effects import VoteBegun, VoteBroke, VotePassed
from trainmover_executor.links.link import LinkBrokenError
from trainmover_executor.moves.handover import Handover
from trainmover_executor.moves.private_state import PrivateStateKeeper
from trainmover_executor.position.position import Position
from trainmover_executor.redundancy.service import FollowerService
from trainmover_executor.report.step_timing import StepTiming
from trainmover_executor.worker.runtime import Runtime

__all__ = ["Voting"]


class Voting:
    """Casts this rank's votes.

    Args:
        runtime: Links to the other ranks.
        handover: Resolves a vote that broke.
        private_state: What a crash of this machine would lose, exchanged with each vote.
        following: Likewise, where a neighbour follows.
        timing: Timing of the parts of a step.
    """

    def __init__(
        self,
        runtime: Runtime,
        handover: Handover,
        *,
        private_state: PrivateStateKeeper,
        following: FollowerService,
        timing: StepTiming,
    ) -> None:
        self._runtime = runtime
        self._handover = handover
        self._private_state = private_state
        self._following = following
        self._timing = timing
        self._stepping = False

    def begin_step(self, *, redone: bool) -> None:
        """An attempt begins: its optimizer has not been called.

        Args:
            redone: The step was attempted before.
        """
        self._stepping = False
        self._following.begin_attempt(redone=redone)

    def before_optimizer(self, index: int, vote: Callable[[], None], *_: Any) -> None:
        """In front of each optimizer's step; ``vote`` leaves the body if the step is aborted."""
        self._following.replicas.before_optimizer()
        if self._stepping:
            self._following.strayed()
        self._stepping = True
        # As the body began: the vote may be the one that has the next ones come at the end.
        at_end = self._runtime.decisions.state.votes_at_end
        vote()
        if at_end:
            self._following.note(step=self._handover.committed + 1)
        self._runtime.reach("optimizer.before")
        self._handover.leaver.before_optimizer(index)

    def after_optimizer(self, stepped: Callable[[], None], *_: Any) -> None:
        """After each optimizer's step; ``stepped`` is told of it."""
        stepped()
        self._runtime.reach("optimizer.after")
        self._following.stepped()
        self._handover.leaver.after_optimizer()

    def vote(
        self,
        *,
        may_switch: bool,
        at_end: bool,
        here: Callable[[], Position],
        step_s: Callable[[], float],
    ) -> bool:
        """Commit the step everywhere or nowhere; decides a planned switch by the way.

        Args:
            may_switch: Whether this rank is fit for a switch after this step.
            at_end: Whether this rank asks for the next vote to be at the end of the body.
            here: Where this rank is in its data and random numbers.
            step_s: How long a step takes, in seconds.

        Returns:
            Whether the step is committed.
        """
        runtime, handover = self._runtime, self._handover
        runtime.drain()
        if runtime.latch.is_set:
            return False
        self._timing.enter(Phase.VOTE)
        handover.check_proof()
        runtime.reach("vote.begin")
        plan = runtime.decisions.take(VoteBegun(may_switch)).voted_on
        prepared = plan.epoch if plan is not None else runtime.epoch
        cast = False
        try:
            self._exchange_state(here(), step=handover.committed + 1, step_s=step_s())
            cast = True
            runtime.reach("vote.cast")
            said = self._following.replicas.says(committed=handover.committed)
            mine = [prepared, -prepared, -int(at_end), *said]
            lowest, highest, asked, *heard = runtime.agree(mine, best=min)
        except (LinkBrokenError, StaleEpochError) as error:
            runtime.decisions.take(VoteBroke(str(error), cast=cast))
            return cast and handover.resolve_undecided()
        after = runtime.decisions.take(VotePassed(lowest, -highest, at_end=asked < 0))
        self._following.heard(heard)
        self._timing.enter(Phase.BODY)
        runtime.reach("vote.passed" if after.switching is None else "vote.decided")
        return True

    def _exchange_state(self, here: Position, *, step: int, step_s: float) -> None:
        """Hand the neighbours what a crash of this machine would lose, and keep theirs."""
        following = self._following
        followed = following.still_followed()
        coming = self._private_state.exchange(here.to_tree(), step=step, followed=followed)
        following.exchange(step=step, stepping=self._stepping, receiving=coming, step_s=step_s)
