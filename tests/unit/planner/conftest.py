"""A scripted world around the planner's core: facts in, commands out, no bus and no clock."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from itertools import chain, repeat
from typing import Any

import pytest

from trainmover.commands import Command as MachineCommand
from trainmover.commands import MigrateRequest, Prepare, Recover
from trainmover.events import executor, incident, machine, migration
from trainmover.job.plan import Plan
from trainmover.job.topology import Frozen, Machine, Membership
from trainmover.policy import Policy
from trainmover_planner import core
from trainmover_planner.state.effects import (
    Command,
    Event,
    Fact,
    PublishFact,
    Reply,
    Request,
    SendCommand,
    Tick,
)
from trainmover_planner.state.state import State


class World:
    """Drives the core; remembers all it ever said."""

    def __init__(self, *, slots: int = 4, spare: int = 2, ranks: int = 1, **settings: Any) -> None:
        self.slots, self.spare, self.ranks = slots, spare, ranks
        deadlines = {"prepare_deadline_s": 60, "ready_deadline_s": 60, "switch_deadline_s": 30}
        settings = deadlines | settings
        self.policy = Policy(**settings)
        self.state: State = core.initial("demo", self.policy)
        self.now_s = 100.0
        self.log: list[Command] = []
        self.stream: list[tuple[float, Fact]] = []
        self.incidents = 0
        self.incarnation = 0
        self.stored: set[str] = set()

    # -- driving ---------------------------------------------------------------------------------

    def do(self, event: Event) -> list[Command]:
        if isinstance(event, Fact):
            self.stream.append((self.now_s, event))
        self.state, commands = core.step(self.state, event, self.now_s)
        self._took(commands)
        return list(commands)

    def _took(self, commands: Iterable[Command]) -> None:
        said: list[str] = []
        for command in commands:
            self.log.append(command)
            if isinstance(command, SendCommand) and not command.urgent:
                self.stored.update(said)  # it left only after these were stored
            if isinstance(command, PublishFact):
                own = Fact(command.payload, "/planner", command.id, command.trace)
                self.stream.append((self.now_s, own))
                said.append(command.id)

    def say(self, payload: Frozen, source: str = "/machine/x") -> list[Command]:
        return self.do(Fact(payload, source))

    def wait(self, seconds: float) -> list[Command]:
        """Let time pass, with a tick at every moment the core asked for."""
        until, commands = self.now_s + seconds, []
        while (at_s := core.next_wake_s(self.state)) is not None and at_s <= until:
            self.now_s = at_s
            commands += self.do(Tick())
        self.now_s = until
        return commands + self.do(Tick())

    def restart(self, *, lose: int = 0) -> list[Command]:
        """A new planner reads the stored facts, less the latest ``lose`` of the old planner's."""
        stream = list(self.stream)
        own = [index for index, (_, fact) in enumerate(stream) if fact.source == "/planner"]
        for index in reversed(own[len(own) - lose :] if lose else []):
            if stream[index][1].id in self.stored:
                break
            del stream[index]
        state = core.initial("demo", self.policy)
        for at_s, fact in stream:
            state = core.fold(state, fact, at_s)
        self.stream = stream
        self.incarnation += 1
        self.state, commands = core.resume(state, self.now_s, incarnation=self.incarnation)
        self._took(commands)
        return list(commands)

    # -- facts -----------------------------------------------------------------------------------

    def register(
        self,
        name: str,
        generation: int = 0,
        *,
        ranks: int | None = None,
        nnodes=None,
        warm_limit: int | None = None,
        labels: Mapping[str, str] | None = None,
        pool: str = "",
    ):
        count = self.ranks if ranks is None else ranks
        low, high = nnodes or (self.slots, self.slots + self.spare)
        fact = machine.MachineRegistered(
            machine=Machine(
                name=name,
                generation=generation,
                endpoints=tuple(f"{name}:{generation}{local}" for local in range(count)),
                labels=labels or {},
            ),
            nnodes_min=low,
            nnodes_max=high,
            warm_limit=warm_limit,
            pid=1,
            host="here",
        )
        return self.say(machine.MachineLent(pool=pool, **dict(fact)) if pool else fact)

    def assigned(self, name: str, job: str = "demo", *, term: int = 1) -> list[Command]:
        """The leader of a pool said which job a machine is to serve."""
        fact = machine.PoolMachineAssigned(machine=name, job=job, reason="why", term=term)
        return self.say(fact, "/pool")

    def lend(self, name: str, generation: int = 0) -> None:
        """A machine of a pool comes, and gets warm."""
        self.assigned(name)
        self.register(name, generation, pool="spares")
        self.warming(name, generation)
        self.ready(name, generation)

    def warming(self, name: str, generation: int = 0, slots: Iterable[int] | None = None):
        wanted = range(self.slots) if slots is None else slots
        endpoints = {
            slot: tuple(f"{name}:{generation}9{slot}{i}" for i in range(self.ranks))
            for slot in wanted
        }
        return self.say(
            machine.MachineWarming(machine=name, generation=generation, endpoints=endpoints)
        )

    def ready(self, name: str, generation: int = 0, slots: Iterable[int] | None = None):
        commands = []
        for slot in range(self.slots) if slots is None else slots:
            commands += self.say(
                machine.MachineReady(
                    machine=name, generation=generation, slot=slot, shadow_iterations=3, warm_s=1.0
                )
            )
        return commands

    def form(self, *, labels: Sequence[Mapping[str, str]] = ()) -> Membership:
        """All machines register, the standbys become ready, every rank says what it holds."""
        for number, where in zip(
            range(self.slots + self.spare), chain(labels, repeat({})), strict=False
        ):
            self.register(f"w-{number}", labels=where)
        for number in range(self.slots, self.slots + self.spare):
            self.warming(f"w-{number}")
            self.ready(f"w-{number}")
        self.layouts()
        assert self.state.membership is not None
        return self.state.membership

    def layouts(self) -> None:
        """Plain data parallelism: every rank with the same local rank... holds all the state."""
        membership = self.membership
        world = tuple(range(membership.layout.world_size))
        for rank in world:
            self.say(
                executor.JobLayoutKnown(
                    machine=membership.machine_of(rank), rank=rank, replicas=world
                )
            )

    @property
    def membership(self) -> Membership:
        assert self.state.membership is not None
        return self.state.membership

    def failed(self, name: str, epoch: int | None = None) -> list[Command]:
        self.incidents += 1
        at = self.membership.epoch if epoch is None else epoch
        return self.say(
            incident.IncidentOpened(
                id=f"i-{self.incidents}",
                kind="machine_failed",
                machine=name,
                epoch=at,
                confidence=1.0,
                summary=f"{name} is gone",
                detector="liveness",
            ),
            "/detector",
        )

    def advised(
        self, name: str, advice: str, *, kind: str = "hang", sure: float = 0.9, by: str = "hang"
    ) -> list[Command]:
        """A detector's opinion about a machine."""
        self.incidents += 1
        return self.say(
            incident.IncidentOpened.model_validate(
                {
                    "id": f"i-{self.incidents}",
                    "kind": kind,
                    "machine": name,
                    "slot": self.membership.slot_of_machine(name),
                    "epoch": self.membership.epoch,
                    "confidence": sure,
                    "summary": f"{name} is odd",
                    "detector": by,
                    "advice": advice,
                }
            ),
            "/detector",
        )

    def straggler(self, name: str, *, summary: str = "it is slow") -> list[Command]:
        self.incidents += 1
        return self.do(
            Fact(
                incident.IncidentOpened(
                    id=f"i-{self.incidents}",
                    kind="straggler",
                    machine=name,
                    slot=self.membership.slot_of_machine(name),
                    epoch=self.membership.epoch,
                    confidence=0.9,
                    summary=summary,
                    detector="straggler",
                    advice="move",
                ),
                "/detector",
                trace={"traceparent": "00-" + "a" * 32 + "-" + "b" * 16 + "-01"},
            )
        )

    def slowest(self, name: str, lateness: float | None) -> list[Command]:
        """The detector names the slowest machine of an interval."""
        self.incidents += 1
        return self.say(
            incident.IncidentOpened(
                id=f"i-{self.incidents}",
                kind="slowest",
                machine=name,
                slot=self.membership.slot_of_machine(name),
                epoch=self.membership.epoch,
                confidence=0.9,
                summary=f"{name} is the slowest",
                evidence={} if lateness is None else {"lateness": lateness},
                detector="straggler",
                advice="move",
            ),
            "/detector",
        )

    def broken(self, names: Iterable[str] | None = None, epoch: int | None = None):
        membership, commands = self.membership, []
        at = membership.epoch if epoch is None else epoch
        then = self.state.memberships.get(at, membership)
        for rank in range(then.layout.world_size):
            name = then.machine_of(rank)
            if names is None or name in names:
                commands += self.say(
                    executor.StepBroken(
                        machine=name, rank=rank, epoch=at, committed_step=7, reason="reset"
                    )
                )
        return commands

    def report(self, kind: type[Frozen], plan: Plan, ranks: Iterable[int] | None = None):
        """``kind`` (prepared, switched, committed, failed) for ranks of the new membership.

        Leavers end phase 1, too.
        """
        commands: list[Command] = []
        extra: dict[type[Frozen], dict[str, Any]] = {
            executor.PlanPrepared: {"prepare_s": 0.1},
            executor.PlanSwitched: {"step": 10, "phases_s": {"links": 0.001}},
            executor.PlanCommitted: {"step": 10},
            executor.PlanFailed: {"reason": "no", "step_safe": True},
        }
        after = plan.membership
        wanted = range(after.layout.world_size) if ranks is None else ranks
        reporting = [(after.machine_of(rank), rank) for rank in wanted]
        if kind is executor.PlanPrepared and ranks is None:
            slots = {move.slot: move.leaver for move in plan.moves}
            leaving = [(slots[after.layout.slot_of(r)], r) for r in sorted(plan.joining_ranks)]
            reporting += leaving
        for machine_name, rank in reporting:
            fields = {"migration": plan.id, "machine": machine_name, "rank": rank}
            commands += self.say(kind(**fields, epoch=plan.epoch, **extra[kind]))
        return commands

    def finish(self, plan: Plan) -> None:
        """The machines carry the plan out to its end."""
        self.report(executor.PlanSwitched, plan)
        self.report(executor.PlanCommitted, plan)
        assert self.state.migrations[plan.id].phase == "committed"

    def ask(self, verb: str, **fields: Any) -> dict[str, Any]:
        body = (
            MigrateRequest(**fields).model_dump_json() if verb == "migrate" else json.dumps(fields)
        )
        commands = self.do(Request(f"r-{len(self.log)}", verb, body.encode()))
        (reply,) = [command for command in commands if isinstance(command, Reply)]
        return json.loads(reply.body.model_dump_json())

    # -- looking ---------------------------------------------------------------------------------

    def sent(self, commands: Iterable[Command] | None = None) -> list[tuple[str, MachineCommand]]:
        chosen = self.log if commands is None else commands
        return [(c.machine, c.command) for c in chosen if isinstance(c, SendCommand)]

    def verbs(self, commands: Iterable[Command] | None = None) -> list[str]:
        """``machine:verb`` in order."""
        return [f"{name}:{command.verb}" for name, command in self.sent(commands)]

    def facts(self, commands: Iterable[Command] | None = None) -> list[Frozen]:
        chosen = self.log if commands is None else commands
        return [c.payload for c in chosen if isinstance(c, PublishFact)]

    def names(self, commands: Iterable[Command] | None = None) -> list[str]:
        return [type(payload).__name__ for payload in self.facts(commands)]

    def plans(self) -> list[Plan]:
        return [p.plan for p in self.facts() if isinstance(p, migration.MigrationApproved)]

    def last_plan(self) -> Plan:
        return self.plans()[-1]

    def recipients(self, verb: str, commands: Iterable[Command] | None = None) -> list[str]:
        return sorted(name for name, command in self.sent(commands) if command.verb == verb)


@pytest.fixture(scope="session")
def world_class() -> type[World]:
    return World


@pytest.fixture
def world() -> World:
    """Four slots, two ready standbys, formed."""
    fresh = World()
    fresh.form()
    return fresh


__all__ = ["Prepare", "Recover", "World"]
