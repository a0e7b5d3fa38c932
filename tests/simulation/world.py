"""One run: a job, its faults, what must hold all along, and that it trains again afterwards."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Final, Literal

from tests.simulation.checks import Checks
from tests.simulation.fabric import Fabric
from tests.simulation.machines import SimMachine
from tests.simulation.scene import Scene
from tests.simulation.services import SimDetector, SimPlanner

from trainmover.commands import MigrateRequest
from trainmover.events import migration
from trainmover.policy import Policy
from trainmover.protocol.requests import AbortRequest
from trainmover.testing.simulation import SimBus, Simulation, StoredFact, Weather

__all__ = ["Outcome", "World", "play"]

_FORMED_S: Final = 10.0
_AGAIN_S: Final = 180.0
_STEPS_AGAIN: Final = 5

_MOMENTS: Final = (
    migration.MigrationApproved,
    migration.MigrationPreparing,
    migration.MigrationReady,
    migration.MigrationSwitching,
    migration.MigrationCommitted,
    migration.MigrationAborted,
    migration.MigrationFailed,
)


@dataclass(frozen=True, slots=True)
class Outcome:
    """How a run ended.

    Attributes:
        end: ``trains``, ``finished`` or why the job failed.
        steps: Steps that passed their vote.
        epoch: The last epoch with a vote.
        faults: Faults that were injected.
        simulated_s: Length of the run in virtual seconds.
    """

    end: str
    steps: int
    epoch: int
    faults: tuple[str, ...]
    simulated_s: float


class World:
    """A job with faults.

    Args:
        seed: Decides everything.
        tracing: Keep notes.
        slots: Slots; by chance when omitted.
        spare: Standbys; by chance when omitted.
        step_s: Length of a step in seconds; by chance when omitted.
        fair: A bus without mishaps, and a program that does not end.
        policy: What is declared about moves, besides deadlines.
        sim: The time it lives in; its own when omitted.
        job: Its name.
    """

    def __init__(
        self,
        seed: int,
        *,
        tracing: bool = False,
        slots: int | None = None,
        spare: int | None = None,
        step_s: float | None = None,
        fair: bool = False,
        policy: Policy | None = None,
        sim: Simulation | None = None,
        job: str = "sim",
    ) -> None:
        sim = self.sim = sim or Simulation(seed, tracing=tracing)
        rough = sim.random.choice([0, 0, 1, 2])
        weather = Weather(
            slow=0.02 + 0.05 * rough, slow_s=0.2 + 0.4 * rough, lost=0.02 + 0.03 * rough
        )
        if fair:
            weather = Weather(slow=0.0, twice=0.0, lost=0.0)
        bus = SimBus(sim, weather)
        self.checks = Checks()
        self.scene = Scene(
            sim,
            bus,
            self.checks,
            job=job,
            step_s=step_s or sim.random.choice([0.1, 0.2, 0.4]),
            max_steps=10**6 if fair else sim.random.choice([10**6, 10**6, 10**6, 60]),
            unreachable=self._unreachable,
        )
        self.fabric = Fabric(sim, self.checks)
        bus.stored.append(self._stored)
        limits = {"prepare": 15.0, "ready": 15.0, "switch": 12.0}
        declared = (policy or Policy(cooldown_s=5.0)).model_copy(
            update={
                "form_quiet_s": 1.0,
                **{f"{name}_deadline_s": limit_s for name, limit_s in limits.items()},
            }
        )
        self.planner = SimPlanner(self.scene, declared)
        self.detector = SimDetector(self.scene)
        self.planner.start()
        self.detector.start()
        self.slots = slots or sim.random.choice([2, 3, 3, 4])
        spare = sim.random.choice([1, 1, 2, 3]) if spare is None else spare
        self.machines: dict[str, SimMachine] = {}
        for _ in range(self.slots + spare):
            self.add_machine(spare=spare)
        self.faults: list[str] = []
        self.failure: migration.JobFailed | None = None
        self.survivors: list[str] = []
        self.finished = False
        self._moments: list[tuple[type, Callable[[], None]]] = []
        self.quiet = False

    def add_machine(self, *, spare: int = 1) -> SimMachine:
        """One more machine registers."""
        name = f"w-{len(self.machines)}"
        nnodes = getattr(self, "nnodes", (self.slots, self.slots + spare))
        self.nnodes = nnodes
        machine = self.machines[name] = SimMachine(self.scene, self.fabric, name, nnodes=nnodes)
        return machine

    def _unreachable(self, name: str) -> bool:
        return self.machines[name].vanished

    def _stored(self, fact: StoredFact) -> None:
        self.sim.note("bus", "%s %s %s", fact.source, type(fact.payload).__name__, _Brief(fact))
        self.checks.fact(fact)
        match fact.payload:
            case migration.JobFailed() as failed:
                self.failure = failed
                self.survivors = [r.name for r in self.fabric.ranks if r.linked and r.committed]
            case migration.JobFinished():
                self.finished = True
            case _:
                pass
        kind = type(fact.payload)
        for moment in [one for one in self._moments if one[0] is kind]:
            self._moments.remove(moment)
            self.sim.after(self.sim.between(0.0, 0.3), moment[1])

    # -- the run ---------------------------------------------------------------------------------

    @property
    def over(self) -> bool:
        """Whether the job has ended."""
        return self.failure is not None or self.finished

    def run(self) -> Outcome:
        """Form, suffer, and train again.

        Raises:
            ViolationError: An invariant does not hold, or the job does not train again.
        """
        sim = self.sim
        if not sim.run(until_s=_FORMED_S, done=lambda: self.checks.step >= 2):
            self.checks.fail("liveness", "the job did not form")
        until_s = sim.now_s + self._plan_faults()
        sim.run(until_s=until_s, done=lambda: self.over)
        self._make_peace()
        if not self.over:
            self._await_training()
        end = "trains"
        if self.failure is not None and "in a row" in self.failure.reason:
            self.checks.fail("liveness", self.failure.reason)
        if self.failure is not None:
            end = self.failure.reason
        elif self.finished:
            end = "finished"
        return Outcome(
            end, self.checks.step, self.checks.voted_epoch, tuple(self.faults), sim.now_s
        )

    def _await_training(self) -> None:
        goal = self.checks.step + _STEPS_AGAIN

        def well() -> bool:
            return self.over or (self.checks.step >= goal and self._settled())

        if not self.sim.run(until_s=self.sim.now_s + _AGAIN_S, done=well):
            state = self.planner.state
            self.checks.fail(
                "liveness",
                f"{_AGAIN_S:g} s after the last fault: step {self.checks.step} of {goal}, "
                f"planner {state.phase} ({state.reason}), flight {state.flight}, "
                f"ranks {[(r.name, r.where, r.epoch, r.committed) for r in self.fabric.ranks]}",
            )

    def _settled(self) -> bool:
        state = self.planner.state
        return (
            self.planner.ready
            and state.flight is None
            and state.membership is not None
            and state.membership.epoch == self.checks.voted_epoch
        )

    def _make_peace(self) -> None:
        """No more faults; everything that can be repaired is, and machines are there."""
        self.quiet = True
        self.sim.note("world", "-- no more faults --")
        self._moments.clear()
        bus = self.scene.bus
        for client in sorted(bus.cut):
            bus.heal(client)
        for name, service in (("planner", self.planner), ("detector", self.detector)):
            del name
            if not service.process.alive:
                service.start()
            elif service.process.frozen:
                service.process.thaw()
        self.detector.slow.clear()
        for machine in self.machines.values():
            if machine.frozen:
                machine.thaw()
        for _ in range(self.slots):
            self.add_machine()

    # -- faults ----------------------------------------------------------------------------------

    def _plan_faults(self) -> float:
        """Schedule what goes wrong; how long it goes on, in seconds."""
        sim = self.sim
        gentle = sim.chance(0.15)
        kinds = _GENTLE if gentle else _ALL
        span_s = sim.between(4.0, 16.0)
        count = sim.random.randint(1, 7)
        for _ in range(count):
            kind = sim.random.choice(kinds)
            if kind is not _migrate and sim.chance(0.5):
                self._moments.append((sim.random.choice(_MOMENTS), self._fault(kind)))
            elif sim.chance(0.2):
                at_s = sim.between(0.0, span_s)
                sim.after(at_s, self._fault(kind))
                sim.after(at_s + sim.between(0, 0.05), self._fault(sim.random.choice(kinds)))
            else:
                sim.after(sim.between(0.0, span_s), self._fault(kind))
        for _ in range(sim.random.randint(0, 3)):
            sim.after(sim.between(0.0, span_s * 0.7), self._fault(_migrate))
        return span_s + 1.0

    def _fault(self, kind: Callable[[World], str | None]) -> Callable[[], None]:
        def happen() -> None:
            if self.quiet or self.over:
                return
            what = kind(self)
            if what:
                self.faults.append(f"{self.sim.now_s:.2f} {what}")
                self.sim.note("fault", what)

        return happen

    def members(self) -> list[str]:
        """Machines whose ranks train."""
        return [name for name, one in self.machines.items() if one.alive and one.active]

    def standbys(self) -> list[str]:
        """Machines that do not."""
        return [name for name, one in self.machines.items() if one.alive and not one.active]

    def harm(self, name: str) -> None:
        """From now on steps may break."""
        del name
        self.checks.calm = False

    def later(self, low_s: float, high_s: float, repair: Callable[[], None]) -> None:
        """Undo a fault after a while, unless peace did before."""
        self.sim.after(self.sim.between(low_s, high_s), lambda: None if self.quiet else repair())


def _pick(world: World, names: list[str]) -> SimMachine | None:
    return world.machines[world.sim.random.choice(names)] if names else None


def _kill_member(world: World) -> str | None:
    machine = _pick(world, world.members())
    if machine is None:
        return None
    world.harm(machine.name)
    reset = world.sim.chance(0.8)
    machine.kill(reset=reset)
    if world.sim.chance(0.5):
        world.later(0.2, 4.0, lambda: _restart(machine))
    return f"kill member {machine.name}" + ("" if reset else " (power)")


def _restart(machine: SimMachine) -> None:
    if not machine.alive:
        machine.start()


def _kill_standby(world: World) -> str | None:
    machine = _pick(world, world.standbys())
    if machine is None:
        return None
    if any(rank.where in ("joining", "inheriting", "left") for rank in machine.ranks.values()):
        world.harm(machine.name)  # its ranks may have been voted in
    machine.kill()
    if world.sim.chance(0.7):
        world.later(0.2, 4.0, lambda: _restart(machine))
    return f"kill standby {machine.name}"


def _freeze(world: World) -> str | None:
    machine = _pick(world, world.members() + world.standbys())
    if machine is None or machine.frozen:
        return None
    world.harm(machine.name)
    machine.freeze()
    world.later(0.3, 9.0, lambda: machine.thaw() if machine.alive and machine.frozen else None)
    return f"freeze {machine.name}"


def _crash_rank(world: World) -> str | None:
    machine = _pick(world, world.members())
    if machine is None or machine.frozen:
        return None
    world.harm(machine.name)
    world.sim.random.choice(machine.active).end(signal=11)
    return f"crash a rank of {machine.name}"


def _cut_machine(world: World) -> str | None:
    machine = _pick(world, list(world.machines))
    if machine is None:
        return None
    world.harm(machine.name)
    world.scene.bus.cut.add(machine.name)
    world.later(0.3, 8.0, lambda: world.scene.bus.heal(machine.name))
    return f"cut {machine.name} off the bus"


def _cut_service(world: World) -> str | None:
    name = world.sim.random.choice(["planner", "detector"])
    world.scene.bus.cut.add(name)
    world.later(0.3, 8.0, lambda: world.scene.bus.heal(name))
    return f"cut {name} off the bus"


def _cut_everybody(world: World) -> str | None:
    clients = ["planner", "detector", "operator", *world.machines]
    world.scene.bus.cut.update(clients)

    def heal() -> None:
        for client in clients:
            world.scene.bus.heal(client)

    world.later(0.2, 6.0, heal)
    return "bus outage"


def _kill_service(world: World, name: Literal["planner", "detector"]) -> str | None:
    service = getattr(world, name)
    if not service.process.alive:
        return None
    service.kill()
    world.later(0.1, 3.0, service.start)
    return f"kill {name}"


def _freeze_service(world: World, name: Literal["planner", "detector"]) -> str | None:
    process = getattr(world, name).process
    if not process.alive or process.frozen:
        return None
    process.freeze()
    world.later(0.2, 6.0, process.thaw)
    return f"freeze {name}"


def _migrate(world: World) -> str | None:
    membership = world.planner.state.membership
    if membership is None:
        return None
    names = [member.machine for member in membership.members]
    chosen = world.sim.random.sample(names, 1 if world.sim.chance(0.8) else min(2, len(names)))
    world.planner.ask("migrate", MigrateRequest(machine=chosen[0], others=tuple(chosen[1:])))
    return f"operator moves {', '.join(chosen)}"


def _abort(world: World) -> str | None:
    flight = world.planner.state.flight
    if flight is None:
        return None
    world.planner.ask("abort", AbortRequest(migration=flight.id))
    return f"operator aborts {flight.id}"


def _slow(world: World) -> str | None:
    machine = _pick(world, world.members())
    if machine is None:
        return None
    world.detector.slow.append(machine.name)
    world.later(
        1.0,
        6.0,
        lambda: (
            world.detector.slow.remove(machine.name)
            if machine.name in world.detector.slow
            else None
        ),
    )
    return f"{machine.name} is slow"


def _add(world: World) -> str | None:
    return f"{world.add_machine().name} is added"


_GENTLE: Final = [
    _migrate,
    _migrate,
    _abort,
    _slow,
    _kill_standby,
    partial(_kill_service, name="planner"),
    partial(_kill_service, name="detector"),
    partial(_freeze_service, name="planner"),
    _add,
]
_ALL: Final = [
    _kill_member,
    _kill_member,
    _kill_member,
    _crash_rank,
    _freeze,
    _kill_standby,
    _cut_machine,
    _cut_service,
    _cut_everybody,
    partial(_kill_service, name="planner"),
    partial(_freeze_service, name="planner"),
    partial(_kill_service, name="detector"),
    partial(_freeze_service, name="detector"),
    _migrate,
    _abort,
    _slow,
    _add,
]


class _Brief:
    """A fact in one line, formatted only when it is read."""

    def __init__(self, fact: StoredFact) -> None:
        self._fact = fact

    def __str__(self) -> str:
        fields = self._fact.payload.model_dump(
            exclude={"membership", "plan", "machine_", "phases_s", "evidence", "layout"},
            exclude_defaults=True,
        )
        return " ".join(f"{name}={value}" for name, value in fields.items())


def play(seed: int, *, tracing: bool = False) -> tuple[World, Outcome]:
    """One whole run.

    Raises:
        ViolationError: Something that must hold does not.
    """
    world = World(seed, tracing=tracing)
    return world, world.run()
