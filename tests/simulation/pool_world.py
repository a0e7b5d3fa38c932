"""A pool in virtual time: real leaders and real machines of a pool, jobs that are told in a page.

A job of this world does what matters to a pool: machines register and warm up, a lost machine's
slot waits for one, an open plan promises one standby, and a standby is let go only if no plan
counts on it. ``pool_jobs`` has the real planner, agents and detector in its place, at a tenth of
the pace.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any

from trainmover.commands import Assign, Command, Lead
from trainmover.events.machine import PoolMachineSeen
from trainmover.policy.sharing import JobShare, Sharing
from trainmover.protocol.requests import StandbysStatus
from trainmover.testing.simulation import SimBus, SimProcess, Simulation, StoredFact, Weather
from trainmover_executor.pooled import core as pooled
from trainmover_pool import core
from trainmover_pool import state as pool

KEPT_S = 10.0
LEASE_S = 3.0
AGENT = ("--", "train.py")


def share(priority: int = 0, wanted: int = 1, quota: int | None = None) -> JobShare:
    return JobShare(priority=priority, wanted=wanted, quota=quota, agent=AGENT)


@dataclass
class Agent:
    """One life of an agent: in one job, on one machine."""

    machine: str
    job: str
    serial: int
    alive: bool = True
    ended: Callable[[int], None] = lambda _: None
    died: Callable[[], object] = lambda: None

    def die(self) -> None:
        if self.alive:
            self.alive = False
            self.died()

    def end(self, code: int) -> None:
        if self.alive:
            self.alive = False
            self.ended(code)


@dataclass
class Job:
    """What a planner knows and does, as far as a pool can notice."""

    world: World
    name: str
    slots: list[Agent | None]
    standbys: dict[str, tuple[Agent, bool]] = field(default_factory=dict)
    gone: set[str] = field(default_factory=set)
    promised: tuple[int, Agent] | None = None
    up: bool = True
    broken: bool = False

    def register(self, agent: Agent) -> None:
        sim = self.world.sim
        if agent.alive and not self.broken:
            self.gone.discard(agent.machine)
            self.standbys[agent.machine] = (agent, False)
            sim.after(sim.between(1.0, 6.0), self.warm, agent)
        elif self.broken:
            agent.end(1)

    def warm(self, agent: Agent) -> None:
        if agent.alive and self.standbys.get(agent.machine, (None, False))[0] is agent:
            self.standbys[agent.machine] = (agent, True)
            self.plan()

    def lose(self, slot: int, agent: Agent) -> None:
        """A detector found out."""
        if self.slots[slot] is agent:
            self.slots[slot] = None
            self.gone.add(agent.machine)
            self.plan()

    def plan(self) -> None:
        empty = [slot for slot, agent in enumerate(self.slots) if agent is None]
        ready = [agent for agent, warm in self.standbys.values() if warm]
        if self.promised is None and empty and ready:
            agent = ready[0]
            del self.standbys[agent.machine]
            self.promised = (empty[0], agent)
            self.world.promises(self, agent)
            sim = self.world.sim
            sim.after(sim.between(0.3, 2.0), self.switch, empty[0], agent)

    def switch(self, slot: int, agent: Agent) -> None:
        self.promised = None
        if agent.alive:
            self.slots[slot] = agent
        else:
            self.gone.add(agent.machine)
        self.plan()

    def ask_release(self, machine: str, answer: Callable[[str], object]) -> None:
        """``answer`` gets why not, or nothing where it is let go."""
        answer(self.release(machine))

    def ask_status(
        self, machines: Iterable[str], answer: Callable[[StandbysStatus], object]
    ) -> None:
        if self.up:
            answer(self.status(machines))

    def release(self, machine: str) -> str:
        if any(agent is not None and agent.machine == machine for agent in self.slots):
            return "it has a slot"
        if self.promised is not None and self.promised[1].machine == machine:
            return "a plan counts on it"
        if machine not in self.standbys and machine not in self.gone:
            return "nobody knows it"
        agent, _ = self.standbys.pop(machine, (None, False))
        self.gone.add(machine)
        if agent is not None:
            sim = self.world.sim
            sim.after(sim.between(0.01, 1.0), agent.end, 0)
        return ""

    def status(self, machines: Iterable[str]) -> StandbysStatus:
        empty = sum(agent is None for agent in self.slots)
        able = any(warm for _, warm in self.standbys.values())
        held = bool(empty) and self.promised is None and not able
        roles: dict[str, str] = dict.fromkeys(self.gone, "gone")
        roles |= {name: "ready" if warm else "warming" for name, (_, warm) in self.standbys.items()}
        if self.promised is not None:
            roles[self.promised[1].machine] = "promised"
        roles |= {agent.machine: "slot" for agent in self.slots if agent is not None}
        return StandbysStatus(
            phase="held" if held else "running",
            missing=empty if held else 0,
            standbys=len(self.standbys),
            ready=sum(warm for _, warm in self.standbys.values()),
            machines={name: roles[name] for name in machines if name in roles},
        )


class PoolMachine:
    """A real ``pooled.core`` and its shell."""

    def __init__(self, world: World, name: str) -> None:
        self.world, self.name, self.lives = world, name, 0
        self.start()

    def start(self) -> None:
        world = self.world
        self.lives += 1
        self.process = SimProcess(world.sim)
        self.agent: Agent | None = None
        self.state = pooled.PooledState(
            machine=self.name, run=f"{self.name}-{self.lives}", since_s=world.sim.now_s
        )
        world.bus.obey(self.process, self.name, self.hear)
        self.beat(self.lives)

    def beat(self, life: int) -> None:
        if life == self.lives and self.process.alive:
            self.process.call(self.say)
            self.world.sim.after(2.0, self.beat, life)

    def say(self) -> None:
        sim = self.world.sim
        self.state, fact = pooled.word(self.state, sim.now_s)
        id = f"{fact.run}:{fact.offer}"
        stored = StoredFact(sim.now_s, f"/machine/{self.name}", id, fact)
        sim.after(self.world.bus.weather.latency_s(sim), self.world.bus.store, stored)

    def hear(self, command: Command) -> None:
        self.feed(pooled.Ordered(command))

    def feed(self, event: pooled.Event) -> None:
        self.state, actions = pooled.step(self.state, event, self.world.sim.now_s)
        for action in actions:
            if isinstance(action, pooled.StartAgent):
                self.world.assigned[action.job] += 1
                self.serve(action.job)
        self.world.check()
        self.say()

    def serve(self, name: str) -> None:
        sim, world = self.world.sim, self.world
        job, process = world.jobs[name], self.process
        agent = Agent(self.name, name, world.serial())
        agent.ended = lambda code: process.call(self.ended, agent, code)
        self.agent = agent
        sim.after(sim.between(0.5, 3.0), job.register, agent)

    def ended(self, agent: Agent, code: int) -> None:
        if self.agent is agent:
            self.agent = None
            self.feed(pooled.Ended(code))

    def kill(self) -> None:
        self.process.die()
        if self.agent is not None:
            self.agent.die()


class Leader:
    """A real ``trainmover_pool.core`` and its shell."""

    def __init__(self, world: World, term: int) -> None:
        self.world, self.term = world, term
        self.process = SimProcess(world.sim)
        self.state = pool.State(pool="p", term=term)
        self.sent = 0
        sim, facts = world.sim, world.bus.facts
        skip = next(
            (n for n, f in enumerate(facts) if world.stored_s[f.id] > sim.now_s - KEPT_S),
            len(facts),
        )
        world.bus.follow(self.process, f"leader-{term}", self.read, skip=skip)
        for fact in facts[skip:]:
            self.read(fact, decide=False)
        self.process.after(0.1, self.begin)

    def begin(self) -> None:
        self.step(pool.Declared(self.world.sharing))
        for name in self.world.jobs:
            self.ask(name)
        self.tick()

    def tick(self) -> None:
        self.step(pool.Tick())
        self.process.after(1.0, self.tick)

    def read(self, fact: StoredFact, *, decide: bool = True) -> None:
        assert isinstance(fact.payload, PoolMachineSeen)
        age_s = self.world.sim.now_s - self.world.stored_s[fact.id]
        seen = pool.MachineSeen(fact.payload, age_s)
        if decide:
            self.step(seen)
        else:
            self.state = core.fold(self.state, seen, self.world.sim.now_s)

    def ask(self, name: str) -> None:
        sim, asked_s, job = self.world.sim, self.world.sim.now_s, self.world.jobs[name]

        def reach() -> None:
            job.ask_status(list(self.state.machines), told)

        def told(status: StandbysStatus) -> None:
            self.process.after(self.world.latency_s(), answer, status)

        def answer(status: StandbysStatus) -> None:
            self.step(pool.JobSeen(name, status, sim.now_s - asked_s))

        sim.after(self.world.latency_s(), reach)
        self.process.after(2.0, self.ask, name)

    def step(self, event: pool.Event) -> None:
        self.state, commands = core.step(self.state, event, self.world.sim.now_s)
        for command in commands:
            self.world.before(self, command)
            self.process.call(self.carry_out, command)  # who is frozen says it late
        self.world.check()

    def carry_out(self, command: pool.Command) -> None:
        self.sent += 1
        sim, bus = self.world.sim, self.world.bus
        match command:
            case pool.Leading(machine=name):
                order: Command = Lead(term=self.term)
                sim.after(self.world.order_s(), bus.enqueue, name, order)
            case pool.Assigning(machine=name):
                order = Assign(
                    term=self.term, job=command.job, run=command.run, offer=command.offer
                )
                self.world.assign(self, command, order)
            case pool.Recalling(machine=name, job=job):
                self.world.recalled[job] += 1
                sim.after(self.world.latency_s(), self.recall, name, job)

    def recall(self, machine: str, job: str) -> None:
        def answer(refusal: str) -> None:
            told = pool.Released(machine, job, refusal)
            self.process.after(self.world.latency_s(), self.step, told)

        self.world.jobs[job].ask_release(machine, answer)


class World:
    """Jobs, machines of a pool, and whoever leads it.

    Args:
        seed: Decides everything random.
        jobs: What each job gets, and how many slots it has.
        machines: How many the pool has.
        orders_late_s: How long a leader's order takes at most, beside what every message takes.
    """

    def __init__(
        self,
        seed: int,
        jobs: dict[str, tuple[JobShare, int]],
        machines: int,
        *,
        settle_s: float = 20.0,
        orders_late_s: float = 0.0,
    ) -> None:
        self.orders_late_s = orders_late_s
        self.sim = Simulation(seed)
        self.bus = PoolBus(self.sim, Weather(slow_s=1.0))
        self.stored_s: dict[str, float] = {}
        self.bus.stored.append(lambda fact: self.stored_s.update({fact.id: self.sim.now_s}))
        shares = {name: given for name, (given, _) in jobs.items()}
        self.sharing = Sharing(jobs=shares, settle_s=settle_s)
        self._serial = 0
        self.jobs = {name: self.make_job(name, slots) for name, (_, slots) in jobs.items()}
        self.assigned: Counter[str] = Counter()
        self.recalled: Counter[str] = Counter()
        self.wrong: list[str] = []
        self.machines: dict[str, PoolMachine] = {}
        self.term = 0
        self.leaders: list[Leader] = []
        self.before: Callable[[Leader, pool.Command], Any] = lambda *_: None
        for number in range(machines):
            self.machines[f"m-{number}"] = PoolMachine(self, f"m-{number}")
        self.take_over()

    def make_job(self, name: str, slots: int) -> Job:
        agents: list[Agent | None] = [
            Agent(f"{name}-{n}", name, self.serial()) for n in range(slots)
        ]
        return Job(self, name, agents)

    def assign(self, leader: Leader, command: pool.Assigning, order: Command) -> None:
        """A leader's order goes out."""
        del leader
        self.sim.after(self.order_s(), self.bus.enqueue, command.machine, order)

    # -- who leads -----------------------------------------------------------------------------

    @property
    def leader(self) -> Leader:
        return self.leaders[-1]

    def take_over(self) -> None:
        self.term += 7  # a revision of the bucket
        self.leaders.append(Leader(self, self.term))

    def depose(self, *, freeze: bool = False) -> None:
        """The leader dies, or is frozen and goes on when the next one leads already."""
        old = self.leader
        if old.process.frozen or not old.process.alive:
            return
        if freeze:
            old.process.freeze()
            self.sim.after(self.sim.between(LEASE_S, 12.0), self.thaw, old)
        else:
            old.process.die()
        # On one host, a leader whose process is gone is not waited for.
        self.sim.after(LEASE_S if freeze else self.sim.between(0.05, LEASE_S), self.take_over)

    def thaw(self, old: Leader) -> None:
        """It still does all that it found in its inbox, and finds out that it leads no more."""
        old.process.thaw()
        old.process.die()

    # -- what happens --------------------------------------------------------------------------

    def serial(self) -> int:
        self._serial += 1
        return self._serial

    def latency_s(self) -> float:
        return self.bus.weather.latency_s(self.sim)

    def order_s(self) -> float:
        """How long an order takes: a machine may be cut off, and find it later."""
        return self.latency_s() + self.sim.between(0.0, self.orders_late_s)

    def lose(self, job: Job, slot: int) -> None:
        """The machine in a slot dies."""
        agent = job.slots[slot]
        if agent is None:
            return
        if agent.machine in self.machines:
            self.machines[agent.machine].kill()
        agent.alive = False
        self.sim.after(self.sim.between(0.3, 1.5), job.lose, slot, agent)

    def crash(self, name: str) -> None:
        """A machine of the pool dies, whatever it does."""
        agent = self.machines[name].agent
        for job in self.jobs.values():
            for slot, one in enumerate(job.slots):
                if one is not None and one is agent:
                    self.lose(job, slot)
        self.machines[name].kill()

    def repair(self, chance: float) -> None:
        """Some of those that died start over."""
        for machine in self.machines.values():
            if not machine.process.alive and self.sim.chance(chance):
                machine.start()

    def promises(self, job: Job, agent: Agent) -> None:
        """A plan counts on this agent: nobody else's may."""
        others = [
            one.name
            for one in self.jobs.values()
            if one is not job
            and agent.alive
            and any(
                other is not None and other.machine == agent.machine and other.alive
                for other in (*one.slots, one.promised and one.promised[1])
            )
        ]
        if others:
            self.wrong.append(f"{agent.machine} is promised in {job.name} and in {others}")

    def check(self) -> None:
        """What must never be."""
        serving = Counter(
            one.agent.job
            for one in self.machines.values()
            if one.process.alive and one.agent is not None and one.agent.alive
        )
        for name, given in self.sharing.jobs.items():
            if given.quota is not None and serving[name] > given.quota:
                self.wrong.append(f"{name} has {serving[name]} of {given.quota} machines")

    def served(self, job: str) -> int:
        return sum(
            one.agent is not None and one.agent.alive and one.agent.job == job
            for one in self.machines.values()
        )

    def missing(self, job: str) -> int:
        return sum(agent is None or not agent.alive for agent in self.jobs[job].slots)

    def run(self, seconds: float, done: Callable[[], bool] | None = None) -> bool:
        found = self.sim.run(until_s=self.sim.now_s + seconds, done=done)
        assert not self.wrong, self.wrong[:5]
        return found


class PoolBus(SimBus):
    """Orders of several leaders may say the same: each is an order of its own."""

    def enqueue(self, machine: str, command: Command, *, id: str = "") -> None:
        self._orders = getattr(self, "_orders", 0) + 1
        super().enqueue(machine, command, id=id or f"o-{self._orders}")
