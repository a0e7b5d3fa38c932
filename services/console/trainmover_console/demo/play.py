"""Both runs of the demo, the faults in between, and the verdict."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from trainmover.errors import MalformedEventError
from trainmover.events.envelope import Envelope
from trainmover.telemetry.lateness import LatenessTable
from trainmover.telemetry.records import decode_batch
from trainmover_console.demo.compare import Comparison, compare
from trainmover_console.demo.faults import Throttle
from trainmover_console.demo.metrics import RunMetrics, read_run
from trainmover_console.demo.scenario import Act, Scenario
from trainmover_console.view import JobView, MigrationView
from trainmover_console.view.summary import summarise, worth_showing
from trainmover_launcher.cluster import LocalCluster, Notice
from trainmover_launcher.ledger import Ending
from trainmover_launcher.spec import ClusterSpec

__all__ = ["Demo", "DemoSpec", "Line", "Outcome", "RunState"]

_HELD_LIMIT_S: Final = 30.0
"""A held job waits for a machine that the demo does not have."""

_MOVE_KEYS: Final = (
    *("id", "cause", "kind", "slot", "leaver", "joiner", "moves", "epoch", "step"),
    *("pause_s", "steps_redone", "phases_s", "trace_id"),
)

PROGRAM: Final = "trainmover_executor.programs.gpt"


@dataclass(frozen=True, slots=True, kw_only=True)
class DemoSpec:
    """What to play.

    Attributes:
        job: Name of the first run's job; the second adds ``-reference``.
        folder: Where metrics and logs go.
        limit_s: Seconds after which a run is given up.
        environment: Variables for the machines.
    """

    job: str
    steps: int
    seed: int
    nnodes_min: int
    nnodes_max: int
    folder: Path
    limit_s: float
    environment: dict[str, str]

    def cluster(self, *, reference: bool) -> ClusterSpec:
        """The cluster of one of the two runs."""
        name = "reference" if reference else "run"
        return ClusterSpec(
            job=f"{self.job}-reference" if reference else self.job,
            nnodes_min=self.nnodes_min,
            nnodes_max=self.nnodes_min if reference else self.nnodes_max,
            program=(PROGRAM, "--steps", str(self.steps), "--seed", str(self.seed)),
            as_module=True,
            metrics_dir=self.folder / name / "metrics",
            log_dir=self.folder / name / "logs",
            environment=self.environment,
        )


@dataclass(frozen=True, slots=True)
class Line:
    """One line of the story."""

    time_s: float
    text: str
    level: str = "info"


@dataclass(slots=True)
class RunState:
    """One run while it goes on; displays read it.

    Attributes:
        title: What this run is.
        launched_s: When its processes had been started, unix seconds; 0 before.
        scenario: The script, None for the undisturbed run.
    """

    title: str
    steps: int
    view: JobView
    lateness: LatenessTable
    scenario: Scenario | None = None
    launched_s: float = 0.0
    lines: list[Line] = field(default_factory=list)

    def tell(self, text: str, *, level: str = "info") -> None:
        """Add a line."""
        self.lines.append(Line(time.time(), text, level))


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """Both runs and what they prove.

    Attributes:
        problems: What did not go as it should; empty exactly when the verdict is ``pass``.
        restart_s: From the launch of the reference run's processes to the first step that all of
            its ranks completed: what a restart costs at the least, without noticing the failure,
            without loading a checkpoint and without redoing the steps since it was written.
    """

    spec: DemoSpec
    run: RunState
    reference: RunState
    run_metrics: RunMetrics
    reference_metrics: RunMetrics
    comparison: Comparison
    problems: tuple[str, ...]
    restart_s: float | None

    @property
    def passed(self) -> bool:
        """The verdict."""
        return not self.problems

    @property
    def moves(self) -> list[MigrationView]:
        """Committed migrations, oldest first."""
        return [one for one in self.run.view.migrations.values() if one.state == "committed"]

    def gap(self, move: MigrationView) -> tuple[float, float] | None:
        """From the last step before a switch to the first after it, at the slowest stayer.

        In unix seconds, and unlike the pause with the time of that step itself.
        """
        if move.step is None or self.run.view.membership is None:
            return None
        layout = self.run.view.membership.layout
        moved = {rank for one in move.moves for rank in layout.ranks_of(one.slot)}
        stayers = set(range(layout.world_size)) - moved
        # Metrics count steps from 0, migrations count completed steps.
        return self.run_metrics.gap_before(move.step - 1, ranks=stayers)

    def as_data(self) -> dict[str, Any]:
        """JSON-ready; what ``trainmover demo --json`` prints."""
        return {
            "verdict": "pass" if self.passed else "fail",
            "bitwise_equal": self.comparison.equal,
            "problems": list(self.problems),
            "migrations": [self._move_as_data(move) for move in self.moves],
            "median_step_s": self.run_metrics.median_step_s,
            "undisturbed_median_step_s": self.reference_metrics.median_step_s,
            "restart_s": self.restart_s,
            "comparison": self.comparison.as_data(),
            "steps": self.spec.steps,
            "seed": self.spec.seed,
            "slots": self.spec.nnodes_min,
            "machines": self.spec.nnodes_max,
        }

    def _move_as_data(self, move: MigrationView) -> dict[str, Any]:
        data = move.as_data()
        gap = self.gap(move)
        gap_s = None if gap is None else gap[1] - gap[0]
        return {**{key: data[key] for key in _MOVE_KEYS}, "gap_s": gap_s}


class Demo:
    """Plays the demo.

    Args:
        spec: What to play.
        display: Given each run's state when it starts; what it returns runs beside the run.
    """

    def __init__(
        self,
        spec: DemoSpec,
        *,
        display: Callable[[RunState], contextlib.AbstractAsyncContextManager[None]],
    ) -> None:
        self._spec = spec
        self._display = display
        self._cluster: LocalCluster | None = None
        self._stopped: str | None = None

    @property
    def interrupted(self) -> bool:
        """Whether somebody asked for the end."""
        return self._stopped is not None

    def stop(self, reason: str) -> None:
        """End whatever runs; at once when called again."""
        self._stopped = reason
        if self._cluster is not None:
            self._cluster.stop(reason)

    async def play(self) -> Outcome | None:
        """Both runs; None when it was interrupted.

        Raises:
            TrainMoverError: A run could not be started.
        """
        spec = self._spec
        run = self._state("disturbed run", scenario=Scenario())
        ending = await self._perform(spec.cluster(reference=False), run)
        problems = _problems(run, ending)
        if self.interrupted:
            return None
        reference = self._state("undisturbed run, same seed", scenario=None)
        ending = await self._perform(spec.cluster(reference=True), reference)
        if self.interrupted:
            return None
        if not ending.ok:
            problems.append(f"the undisturbed run failed: {ending.reason}")
        return self._judge(run, reference, problems)

    def _state(self, title: str, *, scenario: Scenario | None) -> RunState:
        return RunState(
            title=title,
            steps=self._spec.steps,
            view=JobView(self._spec.job),
            lateness=LatenessTable(self._spec.nnodes_min),
            scenario=scenario,
        )

    async def _perform(self, spec: ClusterSpec, state: RunState) -> Ending:
        acts: asyncio.Queue[Act] = asyncio.Queue()

        def observe(event: Envelope) -> None:
            state.view.apply(event)
            if worth_showing(event):
                state.tell(summarise(event))
            if state.scenario is not None and (act := state.scenario.advance(state.view)):
                acts.put_nowait(act)

        def telemetry(_machine: str, data: bytes) -> None:
            with contextlib.suppress(MalformedEventError):
                state.lateness.add(decode_batch(data))

        def started(_url: str) -> None:
            state.launched_s = time.time()

        def notify(notice: Notice) -> None:
            state.tell(notice.text, level=notice.level)

        assert spec.metrics_dir is not None  # noqa: S101 - see DemoSpec.cluster
        spec.metrics_dir.mkdir(parents=True)
        cluster = LocalCluster(
            spec, notify=notify, observe=observe, telemetry=telemetry, started=started
        )
        self._cluster = cluster
        if self._stopped is not None:
            cluster.stop(self._stopped)
        try:
            async with self._display(state), asyncio.TaskGroup() as tasks:
                beside = [
                    tasks.create_task(self._act(cluster, state, acts)),
                    tasks.create_task(_limit(cluster, state, self._spec.limit_s)),
                ]
                try:
                    return await cluster.run()
                finally:
                    for task in beside:
                        task.cancel()
        finally:
            self._cluster = None

    async def _act(self, cluster: LocalCluster, state: RunState, acts: asyncio.Queue[Act]) -> None:
        async with asyncio.TaskGroup() as tasks:
            throttle: asyncio.Task[None] | None = None
            while True:
                act = await acts.get()
                match act.what:
                    case "slow":
                        agent = cluster.pid_of(act.machine)
                        if agent is not None:
                            state.tell(f"demo: {act.machine} is now slow", level="act")
                            throttle = tasks.create_task(Throttle(agent).run())
                    case "ease" if throttle is not None:
                        throttle.cancel()
                    case "kill":
                        pids = cluster.kill_machine(act.machine)
                        text = f"demo: kill -9 of all {len(pids)} processes of {act.machine}"
                        state.tell(text, level="act")

    def _judge(self, run: RunState, reference: RunState, problems: list[str]) -> Outcome:
        metrics = read_run(self._spec.folder / "run" / "metrics")
        undisturbed = read_run(self._spec.folder / "reference" / "metrics")
        comparison = compare(
            metrics,
            undisturbed,
            ranks=self._spec.nnodes_min,
            steps=self._spec.steps,
            may_lack=frozenset(_unrecorded(run.view, metrics)),
        )
        first = comparison.first
        if first is not None:
            where = "" if first.step is None else f" at step {first.step}"
            problems.append(f"the runs part{where}, rank {first.rank}: {first.kind} {first.detail}")
        elif not comparison.equal:
            problems.append("no step was compared")
        began, stepped = reference.launched_s, undisturbed.first_step_time_s
        return Outcome(
            spec=self._spec,
            run=run,
            reference=reference,
            run_metrics=metrics,
            reference_metrics=undisturbed,
            comparison=comparison,
            problems=tuple(problems),
            restart_s=None if stepped is None or not began else stepped - began,
        )


def _problems(run: RunState, ending: Ending) -> list[str]:
    problems = []
    if not ending.ok:
        problems.append(f"the disturbed run failed: {ending.reason}")
    if run.scenario is not None:
        problems += run.scenario.problems(run.view)
    return problems


def _unrecorded(view: JobView, metrics: RunMetrics) -> Iterator[tuple[int, int]]:
    """The one step per rank that a killed machine may have committed without writing it down."""
    if view.membership is None:
        return
    for move in view.migrations.values():
        if move.kind == "failure" and move.state == "committed":
            for one in move.moves:
                for rank in view.membership.layout.ranks_of(one.slot):
                    lines = metrics.steps.get(rank, ())
                    written = [line.step for line in lines if line.machine == one.leaver]
                    if written:
                        yield rank, max(written) + 1


async def _limit(cluster: LocalCluster, state: RunState, limit_s: float) -> None:
    """Give the run up when it takes too long, or is held for a machine that will not come."""
    held_since: float | None = None
    deadline = time.monotonic() + limit_s
    while True:
        await asyncio.sleep(1.0)
        now = time.monotonic()
        held_since = (held_since or now) if state.view.state == "held" else None
        if held_since is not None and now - held_since > _HELD_LIMIT_S:
            cluster.stop(f"the job was held for {_HELD_LIMIT_S:g} s: {state.view.reason}")
            return
        if now > deadline:
            cluster.stop(f"the {state.title} was not over after {limit_s:g} s")
            return
