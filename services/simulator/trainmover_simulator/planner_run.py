"""The same history through the planner's real core: the one that runs beside real jobs.

Machines are modelled: each does what it is told, after the time that the system's model gives for
it. What the planner decides, in which order, and which standby it takes, is its own.
"""

from __future__ import annotations

import heapq
import itertools
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from trainmover.commands import MigrateRequest
from trainmover.events import executor, incident, machine, migration
from trainmover.job.plan import Plan
from trainmover.job.topology import Frozen, Machine, Membership
from trainmover.policy import Policy
from trainmover_planner import core
from trainmover_planner.state.effects import (
    Event,
    Fact,
    PublishFact,
    Request,
    Tick,
)
from trainmover_planner.state.state import State
from trainmover_simulator.failures import DAY_S, Failure
from trainmover_simulator.replay import Job
from trainmover_simulator.scenario import Scenario
from trainmover_simulator.systems import System

__all__ = ["Decisions", "decide"]

_BEGINS_S = 100.0


@dataclass(slots=True)
class Decisions:
    """What the planner did.

    Attributes:
        recoveries: Recoveries that were committed.
        moves: Planned moves that were committed.
        standbys_used: Standbys that took a slot.
        fetched: Machines that the scheduler gave to a job that waited for them.
        restarts: Times that the planner gave the job up, and it started again.
        still_s: How long all ranks stood still, in seconds.
    """

    recoveries: int = 0
    moves: int = 0
    standbys_used: int = 0
    fetched: int = 0
    restarts: int = 0
    still_s: float = 0.0


def decide(
    system: System,
    scenario: Scenario,
    job: Job,
    failures: Sequence[Failure],
    *,
    told: Callable[[float, Frozen], None] | None = None,
) -> Decisions:
    """Let the planner go through a history; one rank stands for each machine.

    Args:
        system: Whose times are taken; one that knows standbys.
        scenario: What surrounds the job.
        job: Its size and length.
        failures: What happens to its machines.
        told: Given each fact, of the planner and of the machines, and the second of it.
    """
    run = _Run(system, scenario, job, told=told)
    run.form(warm=True)
    for failure in failures:
        run.at(_BEGINS_S + failure.at_s, run.fail, failure)
    run.play(_BEGINS_S + job.days * DAY_S)
    return run.decisions


class _Run:
    def __init__(
        self,
        system: System,
        scenario: Scenario,
        job: Job,
        *,
        told: Callable[[float, Frozen], None] | None,
    ) -> None:
        self._told = told
        self.system, self.scenario, self.job = system, scenario, job
        self.decisions = Decisions()
        self.now_s = 0.0
        self.state: State = core.initial("simulated", Policy(form_quiet_s=0.0))
        self._queue: list[tuple[float, int, Callable[..., None], tuple[Any, ...]]] = []
        self._serial = itertools.count()
        self._stepped_s = 0.0
        self._newest: Plan | None = None
        self._down_since_s: float | None = None
        self._generations: dict[str, int] = {}
        self._warm: set[str] = set()
        self._awaited: set[int] = set()
        self._incidents: list[str] = []

    # -- time ------------------------------------------------------------------------------------

    def at(self, at_s: float, call: Callable[..., None], *args: Any) -> None:
        heapq.heappush(self._queue, (at_s, next(self._serial), call, args))

    def play(self, until_s: float) -> None:
        """Let time pass, with a tick whenever the core asks for one."""
        while True:
            wake_s = core.next_wake_s(self.state)
            next_s = self._queue[0][0] if self._queue else until_s
            if wake_s is not None and wake_s < min(next_s, until_s):
                self.now_s = max(wake_s, self.now_s)
                self._do(Tick())
            elif next_s < until_s:
                self.now_s, _, call, args = heapq.heappop(self._queue)
                call(*args)
            else:
                return

    def _do(self, event: Event) -> None:
        self._stepped_s = max(self.now_s, self._stepped_s + 1e-9)
        self.state, commands = core.step(self.state, event, self._stepped_s)
        for command in commands:
            # Commands are carried out by `_begin`, which knows the plan, for all machines at once.
            if isinstance(command, PublishFact):
                if self._told is not None:
                    self._told(self.now_s, command.payload)
                self._hear(command.payload)

    def _say(self, payload: Frozen, source: str = "/machine/x") -> None:
        if self._told is not None:
            self._told(self.now_s, payload)
        self._do(Fact(payload, source, str(next(self._serial))))

    # -- machines --------------------------------------------------------------------------------

    @property
    def membership(self) -> Membership:
        """Who fills the slots, or will when the plan under way is through."""
        assert self.state.membership is not None  # noqa: S101 - the job formed
        return self.state.membership if self._newest is None else self._newest.membership

    def form(self, *, warm: bool) -> None:
        """All machines register; standbys are warm, or will be."""
        slots, spare = self.job.machines, self.job.standbys
        for number in range(slots + spare):
            self._register(f"node-{number}")
        for number in range(slots, slots + spare):
            name = f"node-{number}"
            ready_s = self.now_s + (0.0 if warm else self.scenario.warm_s)
            self.at(ready_s, self._is_warm, name, self._generations[name])
        self._do(Tick())
        for rank in range(slots):
            alike = executor.Span.of(range(slots))
            name = self.membership.machine_of(rank)
            self._say(executor.JobLayoutKnown(machine=name, rank=rank, alike=alike))

    def _register(self, name: str) -> None:
        generation = self._generations[name] = self._generations.get(name, -1) + 1
        self._say(
            machine.MachineRegistered(
                machine=Machine(
                    name=name, generation=generation, endpoints=(f"{name}.local:30000",)
                ),
                nnodes_min=self.job.machines,
                nnodes_max=self.job.machines + self.job.standbys,
                pid=1,
                host=name,
            )
        )

    def _is_warm(self, name: str, generation: int) -> None:
        if self._generations[name] != generation:
            return
        self._warm.add(name)
        self._is_ready(name)

    def _is_ready(self, name: str) -> None:
        self._warming(name)
        at = self._generations[name]
        for slot in range(self.job.machines):
            self._say(
                machine.MachineReady(
                    machine=name, generation=at, slot=slot, shadow_iterations=3, warm_s=1.0
                )
            )

    def _warming(self, name: str) -> None:
        slots = range(self.job.machines)
        self._say(
            machine.MachineWarming(
                machine=name,
                generation=self._generations[name],
                endpoints=dict.fromkeys(slots, (f"{name}.local:31000",)),
            )
        )

    def _comes(self, name: str, *, warm_s: float) -> None:
        """A machine is there; it is warm a while later."""
        self._register(name)
        self.at(self.now_s + warm_s, self._is_warm, name, self._generations[name])

    def _fetched(self, name: str) -> None:
        """A machine of the scheduler, for a job that waits: it takes a slot as it is."""
        self.decisions.fetched += 1
        self._register(name)
        self._warming(name)

    def _ahead(self, name: str) -> None:
        """A machine of the scheduler for a planned move, asked for in time: it is warm, too."""
        self._register(name)
        self._is_ready(name)

    # -- what happens to them --------------------------------------------------------------------

    def fail(self, failure: Failure) -> None:
        """Machines of a job leave."""
        if self.state.over:
            return  # it is being started again already
        names = [self.membership.members[slot].machine for slot in failure.slots]
        if failure.kind == "planned":
            for _ in range(len(names) - len(self._warm)):
                self._ahead(f"fetched-{next(self._serial)}")
            request = MigrateRequest(
                machine=names[0], others=tuple(names[1:]), reason="maintenance"
            )
            body = request.model_dump_json()
            self._do(Request(f"r-{next(self._serial)}", "migrate", body.encode()))
            return
        if self._down_since_s is None:
            self._down_since_s = self.now_s
        for name in names:
            self.at(self.now_s + self.scenario.detect_s, self._found_dead, name, self.now_s)

    def _found_dead(self, name: str, since_s: float) -> None:
        id = f"i-{next(self._serial)}"
        self._incidents.append(id)
        self._say(
            incident.IncidentOpened(
                id=id,
                kind="machine_failed",
                machine=name,
                epoch=self.membership.epoch,
                confidence=1.0,
                summary=f"{name} is gone since {since_s:g}",
                detector="liveness",
                advice="recover",
            ),
            "/detector",
        )

    def _back(self, name: str) -> None:
        self._comes(name, warm_s=self.scenario.warm_s)

    # -- what the planner says -------------------------------------------------------------------

    def _hear(self, payload: Frozen) -> None:
        match payload:
            case migration.MigrationApproved(plan=plan):
                self._newest = plan
                self.at(self.now_s, self._begin, plan)
            case migration.MigrationCommitted():
                self.at(self.now_s, self._committed, self._newest)
            case migration.JobHeld(slots=slots):
                for slot in set(slots) - self._awaited:
                    self._awaited.add(slot)
                    name = f"fetched-{next(self._serial)}"
                    self.at(self.now_s + self.scenario.infra_s, self._fetched, name)
            case migration.JobFailed():
                scenario = self.scenario
                self.decisions.restarts += 1
                # Whatever was on its way belongs to the job that ended.
                self._queue = [one for one in self._queue if one[2] == self.fail]
                heapq.heapify(self._queue)
                self.at(self.now_s + scenario.infra_s + self.system.restart_s, self._again)
            case _:
                pass

    def _again(self) -> None:
        """The job begins anew, from a checkpoint, with machines that are well."""
        self.state = core.initial("simulated", Policy(form_quiet_s=0.0))
        self._newest = None
        self._warm.clear()
        self._awaited.clear()
        self._incidents.clear()
        self.form(warm=False)
        self._trains()

    def _begin(self, plan: Plan) -> None:
        """The machines take a plan; how long they need is the system's."""
        if plan is not self._newest:
            return
        joiners = {move.joiner for move in plan.moves}
        if plan.kind == "planned":
            self._report(executor.PlanPrepared, plan, prepare_s=1.0)
            took_s = self.system.planned_s
            self._down_since_s = self.now_s
        else:
            warm = joiners <= self._warm and self.system.standby_s is not None
            took_s = (self.system.standby_s or 0.0) if warm else self.system.crash_s
        self.at(self.now_s + took_s, self._end, plan)

    def _end(self, plan: Plan) -> None:
        if plan is not self._newest:
            return
        self._report(executor.PlanSwitched, plan, step=10, phases_s={"links": 1.0})
        self._report(executor.PlanCommitted, plan, step=10)

    def _committed(self, plan: Plan) -> None:
        if plan.kind == "planned":
            self.decisions.moves += 1
        else:
            self.decisions.recoveries += 1
        for move in plan.moves:
            if move.joiner in self._warm:
                self._warm.discard(move.joiner)
                self.decisions.standbys_used += 1
                self.at(self.now_s + self.scenario.refill_s, self._back, move.leaver)
        if self._newest is not plan:
            return
        self._newest = None
        self._awaited.clear()
        for id in self._incidents:
            self._say(incident.IncidentClosed(id=id, reason="the machine left"), "/detector")
        self._incidents.clear()
        self._trains()

    def _trains(self) -> None:
        if self._down_since_s is not None:
            self.decisions.still_s += self.now_s - self._down_since_s
            self._down_since_s = None

    def _report(self, kind: type[Frozen], plan: Plan, **fields: object) -> None:
        after = plan.membership
        reporting = [(after.machine_of(r), r) for r in range(after.layout.world_size)]
        if kind is executor.PlanPrepared:
            reporting += _leaving(plan)
        for name, rank in reporting:
            self._say(
                kind.model_validate(
                    {
                        "migration": plan.id,
                        "machine": name,
                        "rank": rank,
                        "epoch": plan.epoch,
                        **fields,
                    }
                )
            )


def _leaving(plan: Plan) -> Iterable[tuple[str, int]]:
    leavers = {move.slot: move.leaver for move in plan.moves}
    layout = plan.membership.layout
    return [(leavers[layout.slot_of(rank)], rank) for rank in sorted(plan.joining_ranks)]
