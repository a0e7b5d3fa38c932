"""What a declared policy promises holds in jobs whose planner is killed between any two facts."""

from __future__ import annotations

from collections import Counter

import pytest
from tests.simulation.world import World

from trainmover.events.incident import IncidentOpened
from trainmover.events.migration import MigrationApproved, MigrationCommitted, MigrationProposed
from trainmover.policy import Policy, Rule
from trainmover.testing.simulation import StoredFact
from trainmover_planner.machines.assignment import standbys

DWELL_S = 2.0
MOST = 3
POLICY = Policy(
    cooldown_s=15.0,
    keep_reserve=1,
    moves_per_hour=MOST,
    rules=(Rule(kind=("straggler",), dwell_s=DWELL_S, then="act"),),
)


class Watched(World):
    """A job with slow machines, whose planner dies after every fifth fact of its own.

    Attributes:
        moves: When policy moved a machine by itself, and which slot.
        left: Standbys that were ready still when it had.
    """

    def __init__(self, seed: int, policy: Policy, *, spare: int) -> None:
        super().__init__(seed, slots=4, spare=spare, step_s=0.3, fair=True, policy=policy)
        self.moves: list[tuple[float, int]] = []
        self.left: list[int] = []
        self.proposed: Counter[str] = Counter()
        self.early: list[str] = []
        self._opened: dict[str, float] = {}
        self.scene.bus.stored.append(self._watch)
        assert self.sim.run(until_s=30.0, done=lambda: self.checks.step >= 10)

    def _watch(self, fact: StoredFact) -> None:
        match fact.payload:
            case IncidentOpened(id=id, kind="straggler"):
                self._opened[id] = fact.at_s
            case MigrationProposed(incident=str() as id):
                self.proposed[id] += 1
                if fact.at_s < self._opened[id] + DWELL_S:
                    self.early.append(id)
            case MigrationApproved(kind="planned", approved_by="policy", slot=slot):
                self.moves.append((fact.at_s, slot))
                state = self.planner.state
                if state.flight is not None and state.flight.slot == slot:
                    self.left.append(sum(bool(host.ready) for host in standbys(state)))
            case _:
                pass
        if fact.source == "/planner" and self.planner.process.alive and self.sim.chance(0.2):
            self.planner.kill()
            self.sim.after(self.sim.between(0.1, 2.0), self.planner.start)

    def slow(self) -> None:
        """Machines get slow and quick again, all through the run."""
        names = self.members()
        self.detector.slow[:] = self.sim.random.sample(names, min(2, len(names)))
        self.sim.after(self.sim.between(1.0, 12.0), self.slow)


@pytest.mark.parametrize("seed", range(12))
def test_reserve_budget_dwell_and_cooldown_hold(seed: int) -> None:
    world = Watched(seed, POLICY, spare=6)
    world.slow()
    world.sim.run(until_s=world.sim.now_s + 150.0)
    assert 0 < len(world.moves) <= MOST, "within the hour"
    assert all(left >= 1 for left in world.left)
    assert world.early == []
    at_s: dict[int, float] = {}
    for when_s, slot in world.moves:
        assert when_s >= at_s.get(slot, -1e9) + 15.0, "no flapping"
        at_s[slot] = when_s


@pytest.mark.parametrize("seed", range(6))
def test_all_that_are_slow_are_moved_in_the_end(seed: int) -> None:
    world = Watched(seed, POLICY.model_copy(update={"moves_per_hour": None}), spare=7)
    slow = ["w-0", "w-1", "w-3"]
    world.detector.slow += slow

    def moved() -> bool:
        return not any(name in world.members() for name in slow)

    assert world.sim.run(until_s=world.sim.now_s + 240.0, done=moved), "no starvation"


@pytest.mark.parametrize("seed", range(6))
def test_an_incident_is_proposed_once_whoever_plans(seed: int) -> None:
    asks = POLICY.model_copy(update={"rules": (Rule(dwell_s=DWELL_S, then="wait"),)})
    world = Watched(seed, asks, spare=3)
    world.detector.slow += ["w-0", "w-2"]
    world.sim.run(until_s=world.sim.now_s + 60.0)
    assert world.moves == []
    assert not [one for one in world.scene.bus.facts if isinstance(one.payload, MigrationCommitted)]
    assert len(world.proposed) == 2
    assert max(world.proposed.values()) == 1
