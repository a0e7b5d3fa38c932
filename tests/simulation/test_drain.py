"""A drain ends and leaves the reserve, although its planner is killed between any two facts."""

from __future__ import annotations

import pytest
from tests.simulation.world import World

from trainmover.events.migration import MigrationApproved
from trainmover.events.operator import DrainEnded, DrainStarted
from trainmover.policy import Policy
from trainmover.protocol.requests import DrainRequest
from trainmover.testing.simulation import StoredFact
from trainmover_planner.machines.assignment import standbys

RESERVE = 1


class Drained(World):
    """A job whose planner dies after every fourth fact of its own."""

    def __init__(self, seed: int, *, spare: int) -> None:
        policy = Policy(cooldown_s=1.0, keep_reserve=RESERVE)
        super().__init__(seed, slots=4, spare=spare, step_s=0.3, fair=True, policy=policy)
        self.waves: list[int] = []
        self.left: list[int] = []
        self.joiners: set[str] = set()
        self.scene.bus.stored.append(self._watch)
        assert self.sim.run(until_s=30.0, done=lambda: self.checks.step >= 10)
        self.sim.run(until_s=self.sim.now_s + 5.0)

    def _watch(self, fact: StoredFact) -> None:
        if isinstance(fact.payload, MigrationApproved) and fact.payload.kind == "planned":
            self.waves.append(len(fact.payload.plan.moves))
            self.joiners |= {move.joiner for move in fact.payload.plan.moves}
            state = self.planner.state
            if state.flight is not None and state.flight.id == fact.payload.migration:
                self.left.append(sum(bool(host.ready) for host in standbys(state)))
        if fact.source == "/planner" and self.planner.process.alive and self.sim.chance(0.25):
            self.planner.kill()
            self.sim.after(self.sim.between(0.1, 2.0), self.planner.start)

    def said(self, kind: type) -> list:
        return [one.payload for one in self.scene.bus.facts if isinstance(one.payload, kind)]

    def drain(self, *machines: str) -> None:
        """Ask until it is heard: a planner may be away, or a request get lost."""
        if not self.said(DrainStarted):
            if self.planner.process.alive:
                self.planner.ask("drain", DrainRequest(machines=machines))
            self.sim.after(1.0, self.drain, *machines)


@pytest.mark.parametrize("seed", range(12))
def test_a_drain_ends_whoever_plans(seed: int) -> None:
    world = Drained(seed, spare=4)
    for _ in range(2):  # three standbys are not drained: one machine has to wait for these
        world.sim.after(30.0, world.add_machine)
    drained = ("w-0", "w-1", "w-3", "w-5")
    world.drain(*drained)
    if seed % 3 == 0:
        victim = world.machines["w-2"]
        world.harm("w-2")
        world.sim.after(world.sim.between(1.0, 4.0), victim.kill)
        world.add_machine()
    ended = world.sim.run(
        until_s=world.sim.now_s + 200.0, done=lambda: bool(world.said(DrainEnded))
    )
    assert ended, world.planner.state.control
    membership = world.planner.state.membership
    assert membership is not None
    assert all(membership.slot_of_machine(name) is None for name in drained)
    assert set(drained) <= set(world.planner.state.inventory.quarantined)
    assert not world.joiners & set(drained)
    assert max(world.waves) <= membership.layout.third
    assert all(left >= RESERVE for left in world.left)
    assert {one.drain for one in world.said(DrainStarted)} == {"d-0001"}
