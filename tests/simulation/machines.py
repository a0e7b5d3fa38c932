"""A machine: the real agent core, a modelled shell around it, and modelled ranks."""

from __future__ import annotations

import itertools
from collections.abc import Callable

from tests.simulation.fabric import Fabric
from tests.simulation.ranks import SimRank
from tests.simulation.scene import Scene

from trainmover.commands import Command
from trainmover.events.migration import JobFailed, JobFinished
from trainmover.job.topology import Frozen, Member
from trainmover.testing.simulation import SimOutbox, SimProcess, StoredFact
from trainmover_executor.agent.core import core, effects
from trainmover_executor.agent.core.state import AgentState, Identity
from trainmover_executor.messages.worker import Done, Warmed

__all__ = ["SimMachine"]


class SimMachine:
    """One host; after its death it may be started again under the same name.

    Args:
        scene: Where it lives.
        fabric: Its links.
        name: Its name.
        nnodes: (slots, slots plus standbys), as its launcher was told.
        pool: The pool that it is from, if it is.
        exited: Called with the exit code when its agent has ended by itself.
    """

    def __init__(
        self,
        scene: Scene,
        fabric: Fabric,
        name: str,
        *,
        nnodes: tuple[int, int],
        pool: str = "",
        exited: Callable[[int], object] = lambda _: None,
    ) -> None:
        self.scene, self.fabric, self.name = scene, fabric, name
        self.pool, self.exited = pool, exited
        self._nnodes = nnodes
        self._boots = itertools.count()
        self._ports = itertools.count(1)
        self._ids = itertools.count(1)
        self.skew_s = scene.sim.between(-0.2, 0.2)
        self.agent = SimProcess(scene.sim)
        self.ranks: dict[str, SimRank] = {}
        self.vanished = False
        self.exit_code: int | None = None
        self.start()

    # -- what happens to it ----------------------------------------------------------------------

    def start(self) -> None:
        """Power on: a fresh agent."""
        sim = self.scene.sim
        self.vanished = False
        self.exit_code = None
        self.agent = SimProcess(sim)
        self._boot = next(self._boots)
        self._outbox = SimOutbox(self.agent, self.scene.bus, self.name)
        low, high = self._nnodes
        me = Identity(
            job=self.scene.job,
            pool=self.pool,
            machine=self.name,
            nnodes_min=low,
            nnodes_max=high,
            ranks=1,
            pid=1,
            host=self.name,
            warm_limit=sim.random.choice([None, None, None, 1, 2]),
        )
        # As the shell does: tenths of a second, so that no incarnation repeats a number.
        self._state = AgentState(me=me, generation=int(10 * sim.now_s) - 1)
        sim.note(self.name, "starts")
        self.scene.bus.obey(self.agent, self.name, self._obey)
        self.scene.bus.follow(
            self.agent, self.name, self._watch_job, skip=len(self.scene.bus.facts)
        )
        self._feed(effects.Begin())
        self.agent.after(sim.between(0.0, 0.5), self._beat)

    def kill(self, *, reset: bool = True) -> None:
        """Every process dies; with ``reset`` the kernel lives and ends their links."""
        self.scene.sim.note(self.name, "is killed" if reset else "loses power")
        self.vanished = not reset
        self.agent.die()
        for rank in list(self.ranks.values()):
            rank.end(signal=9, reset=reset)
        self.ranks.clear()

    def freeze(self) -> None:
        """Every process is stopped."""
        self.scene.sim.note(self.name, "is frozen")
        self.agent.freeze()
        for rank in self.ranks.values():
            rank.freeze()

    def thaw(self) -> None:
        """Every process goes on."""
        self.scene.sim.note(self.name, "thaws")
        for rank in list(self.ranks.values()):
            rank.thaw()
        self.agent.thaw()

    @property
    def alive(self) -> bool:
        """Whether its agent runs, frozen or not."""
        return self.agent.alive

    @property
    def frozen(self) -> bool:
        """Whether it was stopped."""
        return self.agent.frozen

    @property
    def generation(self) -> int:
        """The incarnation that its agent is in."""
        return self._state.generation

    @property
    def active(self) -> list[SimRank]:
        """Ranks that take part in training."""
        return [rank for rank in self.ranks.values() if rank.linked and rank.alive]

    # -- the agent's shell -----------------------------------------------------------------------

    def _beat(self) -> None:
        self.scene.telemetry(self.name, self._state.generation, self._state.epoch)
        self.agent.after(0.5, self._beat)

    def _obey(self, command: Command) -> None:
        self.scene.sim.note(self.name, "is told %s", _brief(command))
        self._feed(effects.Commanded(command))

    def _watch_job(self, fact: StoredFact) -> None:
        if isinstance(fact.payload, JobFinished | JobFailed):
            self._feed(effects.JobOver(failed=isinstance(fact.payload, JobFailed)))

    def _feed(self, event: effects.Event) -> None:
        if not self.agent.alive:
            return
        self._state, actions = core.step(self._state, event)
        for action in actions:
            self._carry_out(action)

    def _carry_out(self, action: effects.Action) -> None:
        match action:
            case effects.Publish(fact=fact, urgent=urgent):
                self._publish(fact, urgent=urgent)
            case effects.Forward() | effects.Spawn() | effects.End():
                self._act_on_ranks(action)
            case effects.Log(event=event, fields=fields):
                if event in (
                    "command.ignored",
                    "plan.refused",
                    "incarnation.ending",
                    "worker.exited",
                ):
                    self.scene.sim.note(self.name, "%s %s", event, fields)
            case _:
                self._act_alone(action)

    def _act_on_ranks(self, action: effects.Forward | effects.Spawn | effects.End) -> None:
        match action:
            case effects.Forward(key=key, message=message):
                if (rank := self.ranks.get(key)) is not None:
                    rank.after(self.scene.sim.between(0.0002, 0.002), rank.obey, message)
            case effects.Spawn():
                self._spawn(action)
            case effects.End(keys=keys, grace_s=grace_s):
                for rank in [self.ranks[key] for key in keys if key in self.ranks]:
                    late_s = self.scene.sim.between(0.0, min(0.3, grace_s) or 0.005)
                    rank.sim.after(late_s, self._signal, rank, 15 if grace_s else 9)

    def _act_alone(self, action: effects.Action) -> None:
        match action:
            case effects.Bind(generation=generation, slots=slots):
                ports = {slot: (f"{self.name}:{next(self._ports)}",) for slot in slots}
                self.agent.after(0.0, self._feed, effects.Bound(generation, ports))
            case effects.After(delay_s=delay_s, event=event):
                self.agent.after(delay_s, self._feed, event)
            case effects.Exit(exit_code=code):
                self.scene.sim.note(self.name, "exits with %d", code)
                self.exit_code = code
                self.scene.checks.calm = False  # its last facts may be lost with it
                self.agent.after(2.0, self._gone, code)
            case _:
                pass

    def _gone(self, code: int) -> None:
        self.agent.die()
        self.exited(code)

    @staticmethod
    def _signal(rank: SimRank, number: int) -> None:
        rank.end(signal=number)

    def _publish(self, fact: Frozen, *, urgent: bool) -> None:
        bus, sim = self.scene.bus, self.scene.sim
        id = f"{self._boot}.{next(self._ids)}"
        stored = StoredFact(sim.now_s + self.skew_s, f"/machine/{self.name}", id, fact)
        self._outbox.put(lambda: bus.store(stored), urgent=urgent)

    def _spawn(self, order: effects.Spawn) -> None:
        sim, key = self.scene.sim, order.key
        agent = self.agent
        member = Member(machine=self.name, generation=order.generation, endpoints=("x:1",))

        def say(event: effects.Event) -> None:
            agent.after(sim.between(0.0005, 0.005), self._feed_if, agent, event)

        def ended(code: int | None, signal: int | None) -> None:
            self.ranks.pop(key, None)
            say(effects.Exited(key=key, exit_code=code, signal=signal, last_words=words))

        words = self.scene.last_words
        rank = SimRank(
            sim,
            self.fabric,
            member=member,
            rank=order.rank,
            membership=order.membership,
            standby=order.role == "standby",
            step_s=self.scene.step_s,
            max_steps=self.scene.max_steps,
            report=lambda fact: say(effects.Reported(key, fact)),
            warmed=lambda: say(
                effects.Said(key, Warmed(rank=order.rank, shadow_iterations=3, warm_s=1.0))
            ),
            finished=lambda step: say(effects.Said(key, Done(rank=order.rank, step=step))),
            ended=ended,
        )
        rank.unreachable = self.scene.unreachable  # type: ignore[method-assign]
        self.ranks[key] = rank
        if self.agent.frozen:
            rank.freeze()

    def _feed_if(self, agent: SimProcess, event: effects.Event) -> None:
        if agent is self.agent:
            self._feed(event)


def _brief(command: Command) -> str:
    plan = getattr(command, "plan", None)
    if plan is not None:
        members = ",".join(f"{m.machine}.{m.generation}" for m in plan.membership.members)
        moves = "; ".join(map(str, plan.moves))
        return f"{command.verb} {plan.id} epoch {plan.epoch} [{members}] {moves}"
    return f"{command.verb} {command.model_dump(exclude={'verb', 'membership'})}"
