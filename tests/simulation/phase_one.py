"""Phase 1 of a plan at a simulated rank: it takes its time, and may find nobody."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from trainmover.job.plan import Plan
from trainmover_executor.decisions import effects

if TYPE_CHECKING:
    from tests.simulation.ranks import SimRank

__all__ = ["PhaseOne"]


class PhaseOne:
    """Does what ``trainmover_executor.worker.prepare_links`` does; parked links are not modelled.

    Args:
        rank: Whose.
        take: Told how it went.
        opened: Whether it answers calls.
    """

    def __init__(
        self, rank: SimRank, take: Callable[[effects.Event], None], *, opened: bool
    ) -> None:
        self._rank = rank
        self._take = take
        self._dialling: set[int] = set()
        self._answering: list[Plan] = []
        self.opened = opened

    def park(self, plan: Plan) -> None:
        """Dial joiners: a stayer all of them, a leaver its own."""
        self._dialling.add(plan.epoch)
        late_s = (0.005, 0.05) if self._leaves(plan) else (0.001, 0.2)
        self._rank.after(self._rank.sim.between(*late_s), self._dial, plan)

    def cancel(self, epoch: int) -> None:
        """The plan for ``epoch`` was called off."""
        self._dialling.discard(epoch)

    def answer(self, plan: Plan) -> None:
        """At a joiner: be prepared once it answers calls."""
        self._answering.append(plan)
        if self.opened:
            self.open()

    def open(self) -> None:
        """It answers calls from now on."""
        self.opened = True
        for plan in self._answering:
            self._rank.after(0.001, self._take, effects.Parked(plan, 0.1))
        self._answering.clear()

    def _leaves(self, plan: Plan) -> bool:
        return self._rank.rank in plan.joining_ranks

    def _dial(self, plan: Plan) -> None:
        if plan.epoch not in self._dialling:
            return
        slots = [self._rank.slot] if self._leaves(plan) else [move.slot for move in plan.moves]
        joiners = [self._joiner_of(plan, slot) for slot in slots]
        if any(joiner is None for joiner in joiners):
            self._take(effects.NotParked(plan, "nobody listens at the joiner"))
        elif all(joiner is not None and joiner.phase_one.opened for joiner in joiners):
            self._take(effects.Parked(plan, 0.1))
        else:
            self._rank.after(0.1, self._dial, plan)

    def _joiner_of(self, plan: Plan, slot: int) -> SimRank | None:
        member = plan.membership.members[slot]
        rank = plan.membership.layout.ranks_of(slot)[0]
        return self._rank.fabric.at(member.machine, member.generation, rank)
