"""Whole jobs that share a pool: real planners, detectors, agents, leaders and machines of a pool.

Only ranks and what carries messages are modelled. The leader may die before each of its messages:
what it says to each job, and its order, are messages of their own.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from tests.simulation.machines import SimMachine
from tests.simulation.pool_world import Agent, Leader, World
from tests.simulation.world import World as JobWorld

from trainmover.commands import Command, Prepare, Recover, Refusal
from trainmover.events.machine import (
    MachineLent,
    MachineReady,
    MachineWarming,
    PoolMachineAssigned,
)
from trainmover.job.plan import Plan
from trainmover.job.topology import Frozen, Machine, Member
from trainmover.policy.sharing import JobShare
from trainmover.protocol.requests import ReleaseRequest, StandbysRequest, StandbysStatus
from trainmover.testing.simulation import StoredFact
from trainmover_pool import state as pool

__all__ = ["PooledJobs", "RealJob"]

POOL = "p"


class RealJob:
    """A simulated job with everything, to which a pool lends machines."""

    up = True

    def __init__(self, world: PooledJobs, name: str, slots: int) -> None:
        self.world, self.name = world, name
        self.inner = JobWorld(0, sim=world.sim, job=name, slots=slots, spare=0)
        self.inner.scene.max_steps = 10**6
        self.assigned: dict[str, tuple[int, str]] = {}
        self._facts = 0
        self.inner.scene.bus.stored.append(self._stored)
        enqueue = self.inner.scene.bus.enqueue

        def watched(machine: str, command: Command, *, id: str) -> None:
            if isinstance(command, Prepare | Recover):
                world.planned(self, command.plan)
            enqueue(machine, command, id=id)

        self.inner.scene.bus.enqueue = watched  # type: ignore[method-assign]

    def _stored(self, fact: StoredFact) -> None:
        match fact.payload:
            case PoolMachineAssigned(machine=name, job=job, term=term):
                if term >= self.assigned.get(name, (0, ""))[0]:
                    self.assigned[name] = (term, job)

    def say(self, source: str, payload: Frozen, id: str = "") -> None:
        self._facts += 1
        at_s = self.world.sim.now_s
        self.inner.scene.bus.store(StoredFact(at_s, source, id or f"x-{self._facts}", payload))

    def register(self, agent: Agent) -> None:
        """The agent of a machine of the pool begins."""
        if not agent.alive:
            return
        inner, name = self.inner, agent.machine
        nnodes = inner.nnodes
        known = inner.machines.get(name)
        if known is None:
            inner.machines[name] = SimMachine(
                inner.scene, inner.fabric, name, nnodes=nnodes, pool=POOL, exited=agent.end
            )
        else:
            known.exited = agent.end
            known.start()
        agent.died = lambda: self.kill(name)

    def kill(self, name: str) -> None:
        machine = self.inner.machines[name]
        if machine.alive:
            self.inner.harm(name)
            machine.kill()

    # -- what the pool asks --------------------------------------------------------------------

    def ask_status(
        self, machines: Iterable[str], answer: Callable[[StandbysStatus], object]
    ) -> None:
        def told(reply: Frozen) -> None:
            if isinstance(reply, StandbysStatus):
                answer(reply)

        self.inner.planner.ask("standbys", StandbysRequest(machines=tuple(machines)), told)

    def ask_release(self, machine: str, answer: Callable[[str], object]) -> None:
        def told(reply: Frozen) -> None:
            answer(reply.reason if isinstance(reply, Refusal) else "")

        self.inner.planner.ask("release", ReleaseRequest(machine=machine), told)

    # -- how it is -----------------------------------------------------------------------------

    def members(self) -> list[Member]:
        membership = self.inner.planner.state.membership
        return [] if membership is None else list(membership.members)

    def live(self, name: str, generation: int) -> bool:
        """Whether this incarnation of a machine is there."""
        machine = self.inner.machines.get(name)
        return machine is not None and machine.alive and machine.generation == generation

    def whole(self) -> bool:
        """Whether it trains, and all of its machines are there."""
        state = self.inner.planner.state
        members = self.members()
        return (
            self.inner.planner.ready
            and state.phase == "running"
            and state.flight is None
            and bool(members)
            and all(self.live(one.machine, one.generation) for one in members)
            and state.membership is not None
            and state.membership.epoch == self.inner.checks.voted_epoch
        )


class PooledJobs(World):
    """Jobs of two slots each that share a pool.

    Args:
        seed: Decides everything random.
        shares: What each job gets.
        machines: How many the pool has.

    Attributes:
        taken: How often a command with a plan counted on a machine of the pool.
    """

    def __init__(self, seed: int, shares: dict[str, JobShare], machines: int) -> None:
        super().__init__(seed, {name: (given, 2) for name, given in shares.items()}, machines)
        self.taken = 0

    def make_job(self, name: str, slots: int) -> Any:
        return RealJob(self, name, slots)

    def form(self) -> None:
        done = self.run(30.0, lambda: all(job.whole() for job in self.jobs.values()))
        assert done, "the jobs did not form"
        self.run(3.0)

    def missing(self, job: str) -> int:
        return 0 if self.jobs[job].whole() else 1

    # -- messages of the leader ----------------------------------------------------------------

    def assign(self, leader: Leader, command: pool.Assigning, order: Command) -> None:
        """As the shell does: what is said to each job is stored before the order leaves."""
        fact = PoolMachineAssigned(
            machine=command.machine, job=command.job, reason=command.reason, term=leader.term
        )
        waiting = sorted(self.jobs)
        id = f"{command.machine}:{command.run}:{command.offer}:{leader.term}:{command.job}"

        def tell(name: str) -> None:
            self.sim.after(self.latency_s(), stored, name)

        def stored(name: str) -> None:
            self.jobs[name].say("/pool", fact, id)
            leader.process.after(self.latency_s(), acknowledged, name)

        def acknowledged(name: str) -> None:
            waiting.remove(name)
            if not waiting:
                self.before(leader, command)
                leader.process.call(send)

        def send() -> None:
            self.sim.after(self.order_s(), self.bus.enqueue, command.machine, order)

        for number, name in enumerate(list(waiting)):
            if number:  # the first is the message that ``step`` has asked about
                self.before(leader, command)
            leader.process.call(tell, name)

    # -- faults --------------------------------------------------------------------------------

    def kill_member(self, name: str, slot: int) -> None:
        """The machine in a slot dies, be it the job's own or the pool's."""
        job = self.jobs[name]
        machine = job.members()[slot].machine
        if machine in self.machines:
            self.machines[machine].kill()
        else:
            job.kill(machine)

    def repair(self, chance: float) -> None:
        """Some of those that died start over; the jobs' own become standbys."""
        super().repair(chance)
        for job in self.jobs.values():
            for name, machine in job.inner.machines.items():
                if name not in self.machines and not machine.alive and self.sim.chance(chance):
                    machine.start()

    def rogue(self, machine: str, name: str) -> None:
        """Somebody with a machine's key offers it to a job, and says that it is warm there."""
        job = self.jobs[name]
        if job.assigned.get(machine, (0, ""))[1] == name:
            return  # that is where it may be
        low, high = job.inner.nnodes
        offer = MachineLent(
            machine=Machine(name=machine, generation=0, endpoints=("x:9",)),
            nnodes_min=low,
            nnodes_max=high,
            pid=1,
            host="h",
            pool=POOL,
        )
        source = f"/machine/{machine}"
        job.say(source, offer)
        endpoints = {slot: (f"x:{slot + 1}",) for slot in range(low)}
        job.say(source, MachineWarming(machine=machine, generation=0, endpoints=endpoints))
        for slot in range(low):
            ready = MachineReady(
                machine=machine, generation=0, slot=slot, shadow_iterations=3, warm_s=1.0
            )
            job.say(source, ready)

    # -- what must never be ----------------------------------------------------------------------

    def planned(self, job: RealJob, plan: Plan) -> None:
        """A plan goes out: whom it counts on is nobody else's."""
        for move in plan.moves:
            name = move.joiner
            if name not in self.machines:
                continue
            member = plan.membership.members[move.slot]
            assert member.generation, f"{job.name} plans with {name}, which was not assigned to it"
            self.taken += 1
            for other in self.jobs.values():
                if other is not job and self._counts_on(other, name) and job.live(*_who(member)):
                    raise AssertionError(f"{name} is promised in {job.name} and in {other.name}")

    def _counts_on(self, job: RealJob, name: str) -> bool:
        """Whether a job has a machine of the pool in a plan or a slot, and it is there."""
        state = job.inner.planner.state
        return any(
            member.machine == name and job.live(*_who(member))
            for membership in state.current_memberships
            for member in membership.members
        )

    def check(self) -> None:
        super().check()
        for name in self.machines:
            there = [
                job.name
                for job in self.jobs.values()
                if (machine := job.inner.machines.get(name)) is not None and machine.alive
            ]
            if len(there) > 1:
                self.wrong.append(f"{name} is in {there}")


def _who(member: Member) -> tuple[str, int]:
    return member.machine, member.generation
