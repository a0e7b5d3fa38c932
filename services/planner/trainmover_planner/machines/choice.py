"""What speaks against giving a slot to a machine, in points. Pure functions of the state.

See docs/concepts/placement.md for the reasons behind the terms and their order.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from trainmover.job.plan import Candidate
from trainmover.job.topology import Member, Membership
from trainmover_planner.machines.matching import cheapest
from trainmover_planner.rules.rebalance import pace_of
from trainmover_planner.state.inventory import Host
from trainmover_planner.state.state import State
from trainmover_planner.state.transition import Transition

__all__ = ["WEIGHTS", "Choice", "Judge", "Option", "choose", "note_trouble"]

_DAY_S: Final = 86_400.0
_MOST_TROUBLES: Final = 8
_TOLD: Final = 4
"""Candidates of a slot that a plan names: the chosen one and the next best."""


@dataclass(frozen=True, slots=True)
class Weights:
    """Points for each thing that speaks against a machine.

    Each outweighs what stands below it, for one slot.

    Attributes:
        former: It is the machine that was to leave the slot.
        cold: It is not ready for the slot yet: the program has to start first.
        behind: It has still to draw data that training has used, which can be reached in no other
            way: the job would pause for as long as that takes.
        leaving: A notice says that it is about to go itself.
        trouble: Each incident about it, and each time it was given up, within a day; at most 8.
        slow: Each ``slow_share`` of a step that it was late when the detector last named it the
            slowest, within a day; at most 8.
        far: Each level of the topology at which it is apart from a machine beside it in the ring.
        fresh: Each of ``ages_s`` that has not passed since it registered: it has not proved itself,
            and may still follow data that can only be read in order.
        ages_s: Seconds.
        slow_share: A share of a step.
    """

    former: int = 1_000_000
    cold: int = 100_000
    behind: int = 20_000
    leaving: int = 10_000
    trouble: int = 1_000
    slow: int = 100
    far: int = 10
    fresh: int = 1
    ages_s: tuple[float, ...] = (10.0, 60.0, 600.0, 3_600.0)
    slow_share: float = 0.02


WEIGHTS: Final = Weights()


@dataclass(frozen=True, slots=True)
class Option:
    """A machine that could take a slot.

    Attributes:
        member: It, in the slot.
        costs: What speaks against it, by term; only what does.
    """

    member: Member
    costs: Mapping[str, int]

    @property
    def cost(self) -> int:
        """In points."""
        return sum(self.costs.values())


@dataclass(frozen=True, slots=True)
class Choice:
    """Who takes which slot.

    Attributes:
        members: The new member of each slot that found one.
        candidates: Of each slot the chosen machine and the next best.
    """

    members: Mapping[int, Member]
    candidates: tuple[Candidate, ...]


class Judge:
    """Says what each machine would cost in each slot.

    Args:
        state: The planner's state.
        membership: The one in which slots are to be filled.
        now_s: The time.
    """

    def __init__(self, state: State, membership: Membership, *, now_s: float) -> None:
        self._state = state
        self._membership = membership
        self._now_s = now_s
        self._leaving = {one.machine for one in state.incidents.values() if one.kind == "notice"}

    def standby(self, host: Host, slot: int) -> Option:
        """A standby that started a process for ``slot``."""
        weights, age_s = WEIGHTS, self._now_s - host.registered_s
        terms = {
            "cold": weights.cold * (slot not in host.ready),
            "behind": weights.behind * self._is_behind(host, slot),
            **self._health(host.machine.name),
            "far": weights.far * self._distance(host, slot),
            "fresh": weights.fresh * sum(age_s < each for each in weights.ages_s),
        }
        return Option(host.member(slot), {term: cost for term, cost in terms.items() if cost})

    def likeliest(self) -> tuple[int, ...]:
        """All slots, those first whose machine has most against it: they need a standby first."""
        members = self._membership.members
        bad = [sum(self._health(member.machine).values()) for member in members]
        return tuple(sorted(range(len(members)), key=lambda slot: -bad[slot]))

    def _health(self, name: str) -> dict[str, int]:
        """What speaks against a machine wherever it is."""
        weights, since_s = WEIGHTS, self._now_s - _DAY_S
        troubles = sum(at_s > since_s for at_s in self._state.troubles.get(name, ()))
        pace = pace_of(self._state, name, self._now_s) or 0.0
        return {
            "leaving": weights.leaving * (name in self._leaving),
            "trouble": weights.trouble * troubles,
            "slow": weights.slow * min(math.ceil(pace / weights.slow_share), _MOST_TROUBLES),
        }

    def _is_behind(self, host: Host, slot: int) -> bool:
        ranks = self._membership.layout.ranks_of(slot)
        return bool(host.behind) and any(rank in host.behind for rank in ranks)

    def former(self, member: Member) -> Option:
        """The machine that was to leave a slot, and could take it back."""
        return Option(member, {"former": WEIGHTS.former})

    def _distance(self, host: Host, slot: int) -> int:
        """Levels of the topology between a machine and those beside ``slot`` in the ring."""
        members = self._membership.members
        beside = self._membership.beside(slot)
        return sum(self._levels(host, members[other].machine) for other in beside)

    def _levels(self, host: Host, other: str) -> int:
        """1 for what is apart at the nearest level alone, more for what is apart further out."""
        neighbour, levels = self._state.inventory.get(other), self._state.policy.topology
        if neighbour is None:
            return 0
        mine, theirs = host.machine.labels, neighbour.machine.labels
        apart = [
            number
            for number, level in enumerate(levels, start=1)
            if level in mine and level in theirs and mine[level] != theirs[level]
        ]
        return max(apart, default=0)


def choose(options: Mapping[int, Sequence[Option]]) -> Choice:
    """Fill as many slots as possible, no machine twice, with what speaks least against.

    Args:
        options: Of each slot the machines that could take it, in the order in which they are taken
            where all else is equal.
    """
    # The cheapest of a slot, as many as there are slots, are enough for each to find one.
    ranked = {
        slot: sorted(row, key=lambda one: one.cost)[: max(len(options), _TOLD)]
        for slot, row in options.items()
    }
    chosen = cheapest(
        {slot: {one.member.machine: one.cost for one in row} for slot, row in ranked.items()}
    )
    members: dict[int, Member] = {}
    candidates: list[Candidate] = []
    for slot, row in ranked.items():
        taker = chosen.get(slot)
        mine = [one for one in row if one.member.machine == taker]
        others = [one for one in row if one.member.machine != taker]
        members.update((slot, one.member) for one in mine)
        candidates += [_told(slot, one, chosen=True) for one in mine]
        candidates += [_told(slot, one, chosen=False) for one in others[: _TOLD - len(mine)]]
    return Choice(members, tuple(candidates))


def _told(slot: int, one: Option, *, chosen: bool) -> Candidate:
    return Candidate(slot=slot, machine=one.member.machine, chosen=chosen, costs=one.costs)


def note_trouble(transition: Transition, machine: str) -> None:
    """Something was wrong with ``machine`` now."""
    known = transition.state.troubles.get(machine, ())
    lately = [at_s for at_s in known if at_s > transition.now_s - _DAY_S]
    kept = (*lately, transition.now_s)[-_MOST_TROUBLES:]
    transition.note(troubles=transition.state.troubles.put(machine, kept))
