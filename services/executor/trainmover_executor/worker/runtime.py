"""The runtime of one rank: what outlives a migration inside the training process.

It owns the links, the latch and the process groups, and performs the three membership changes:
``switch`` (planned, stayer), ``recover`` (after a failure, survivor) and ``promote`` (joiner).
Called by the training thread at step boundaries only.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Sequence
from typing import Any, Final, NamedTuple

import structlog
import torch.distributed as dist

from trainmover.errors import ConfigError, ProtocolError
from trainmover.events.executor import PlanCommitted, StepProgress
from trainmover.job.plan import Plan
from trainmover.job.topology import Frozen, Membership
from trainmover.runtime import failpoints
from trainmover_executor.clock.memory import ClockMemory
from trainmover_executor.clock.writer import CollectiveClock
from trainmover_executor.collectives.communicator.base import Communicator
from trainmover_executor.collectives.communicator.choice import choice_of
from trainmover_executor.collectives.engine import GroupEngine
from trainmover_executor.collectives.latch import Latch
from trainmover_executor.collectives.linked.communicator import LinkCommunicator
from trainmover_executor.collectives.linked.control import ControlCommunicator
from trainmover_executor.collectives.process_group import TrainMoverProcessGroup, register_backend
from trainmover_executor.collectives.sandbox.recording import Mark, Recording, RecordingCommunicator
from trainmover_executor.collectives.sandbox.replay import Replay, ReplayingCommunicator
from trainmover_executor.collectives.sandbox.stand_ins import SandboxCommunicator
from trainmover_executor.collectives.saves import BackgroundSaves
from trainmover_executor.decisions.effects import Joins, Recovers, Switched
from trainmover_executor.decisions.shell import RankDecisions
from trainmover_executor.decisions.state import WorkerState
from trainmover_executor.feed.beside.drawer import Drawers
from trainmover_executor.messages.worker import Done, WorkerSpec
from trainmover_executor.worker.control_thread import ControlThread
from trainmover_executor.worker.launched import advice, command_of
from trainmover_executor.worker.prepare_links import STATE_GROUP
from trainmover_executor.worker.to_standbys.places import Places

__all__ = ["CONTROL_GROUP", "Progress", "Runtime", "current_runtime"]

log = structlog.get_logger(__name__)

CONTROL_GROUP: Final = "_control"
_DEFAULT_TIMEOUT_S: Final = 1800.0

_runtime: Runtime | None = None


def current_runtime() -> Runtime:
    """The runtime of this process.

    Raises:
        ConfigError: The process was not started by a machine agent.
    """
    if _runtime is None:
        spec = getattr(sys.modules.get("__main__"), "__spec__", None)
        command = command_of(sys.argv, module=None if spec is None else spec.name)
        raise ConfigError(advice(os.environ, command))
    return _runtime


class Progress(NamedTuple):
    """How far a rank is; see ``StepProgress``, which takes longer to make."""

    epoch: int
    step: int
    step_s: float
    loss: float | None


class Runtime:
    """See the module's docstring.

    Attributes:
        spec: What this process was started as.
        latch: Tripped by the first communication error of an epoch.
        clock: Clock of collectives.
        decisions: What this rank decides about plans, votes and broken steps.
        sandboxed: True until a standby is promoted.
        progress: How far this rank is; the control thread tells once a second.
        fatal: Why the program must not go on, where that was found out when no error could be
            raised; empty while there is no such reason.
        saves: Checkpoints that are written in the background.
        drawers: What the program draws from besides ``session.steps``.
        places: Where this rank is, for the standbys of the same rank; at one of them, where the
            active rank is.
    """

    def __init__(self, spec: WorkerSpec) -> None:
        self.spec = spec
        self.sandboxed = spec.role == "standby"
        self.decisions = RankDecisions(
            WorkerState.first(
                machine=spec.machine,
                rank=spec.rank,
                epoch=spec.membership.epoch,
                standby=self.sandboxed,
            )
        )
        self.latch = Latch(self.decisions)
        memory = ClockMemory.attach(spec.clock_fd)
        self.clock = CollectiveClock(rank=spec.rank, memory=memory)
        self.clock.enter_epoch(spec.membership.epoch)
        self.progress: Progress | None = None
        self.fatal = ""
        self._recording = Recording()
        self._replay = Replay(self._recording)
        self.saves = BackgroundSaves()
        self.drawers = Drawers()
        self.places = Places()
        self._choice = choice_of(os.environ)
        self._on_promotion: list[Callable[[], None]] = []
        self._on_first_step: list[Callable[[], None]] = []
        self._groups: dict[str, TrainMoverProcessGroup] = {}
        self._outside: list[tuple[GroupEngine, Communicator]] = []
        self._communicators: list[LinkCommunicator] = []
        self._sent_progress: Progress | None = None
        self._control_thread = ControlThread(
            spec,
            latch=self.latch,
            clock=self.clock,
            decisions=self.decisions,
            recording=self._recording,
            places=self.places,
            progress=self._fresh_progress,
        )
        self.table = self._control_thread.table
        everyone = range(spec.membership.layout.world_size)
        self.control = ControlCommunicator(
            self.table, group=CONTROL_GROUP, ranks=everyone, timeout_s=_DEFAULT_TIMEOUT_S
        )
        self._communicators.append(self.control)
        self._vote_clock = self.clock.group(CONTROL_GROUP, everyone)

    @property
    def rank(self) -> int:
        """Global rank."""
        return self.spec.rank

    @property
    def membership(self) -> Membership:
        """The membership this rank is at."""
        return self.table.membership

    @property
    def epoch(self) -> int:
        """The epoch this rank is at."""
        return self.table.epoch

    def start(self) -> None:
        """Become this process's runtime: connect to the agent, register the torch backend."""
        global _runtime  # noqa: PLW0603 - one runtime a process, as torch has one default group
        _runtime = self
        register_backend(self._create_group)
        self._control_thread.start()

    def on_promotion(self, listener: Callable[[], None]) -> None:
        """Have ``listener`` called when this standby becomes a joiner."""
        self._on_promotion.append(listener)

    def on_first_step(self, listener: Callable[[], None]) -> None:
        """Have ``listener`` called when the first step of this process's program begins."""
        self._on_first_step.append(listener)

    def report(self, message: Frozen) -> None:
        """Have the agent publish an event payload, or hear a control message; never waits."""
        self._control_thread.post(message)

    def finish(self) -> None:
        """The program ended normally: say so to neighbours and agent."""
        state = self.decisions.state
        if state.unconfirmed is not None:
            # A machine was replaced behind the last step: no vote commits that migration any more.
            self.report_commit(state.unconfirmed)
        self._control_thread.leave(Done(rank=self.rank, step=state.committed))

    def report_commit(self, plan: Plan) -> None:
        """Say that ``plan`` is complete here: there is no way back from its epoch."""
        self.report(
            PlanCommitted(
                migration=plan.id,
                machine=self.spec.machine,
                rank=self.rank,
                epoch=plan.epoch,
                step=self.decisions.state.committed,
            )
        )

    def flush(self) -> None:
        """Return when the agent was told all that was reported: this process is about to end."""
        self._control_thread.flush()

    def reach(self, point: str) -> None:
        """This rank is at a fail-point; nothing, but for tests."""
        if failpoints.ARMED:
            where = {"rank": self.rank, "machine": self.spec.machine, "epoch": self.epoch}
            failpoints.reach(point, **where, step=self.decisions.state.committed)

    def wait_for_news(self, *, timeout_s: float | None = None) -> Plan | None:
        """At a standby: wait until a plan needs it, or the active rank has shown another place.

        Returns:
            The plan; None when there is a place that ``places.seen`` has not returned yet, or the
            time is over.
        """
        return self.decisions.wait_to_join_or(lambda: self.places.fresh, timeout_s=timeout_s)

    def open_endpoint(self) -> None:
        """Answer link handshakes from now on."""
        self._control_thread.open()

    # -- groups ----------------------------------------------------------------------------------

    def _create_group(self, options: Any, _backend_options: Any) -> dist.ProcessGroup:
        ranks = options.global_ranks_in_group or range(options.group_size)
        sandbox = SandboxCommunicator(rank=options.group_rank)
        links = LinkCommunicator(
            self.table,
            group=options.group_id,
            ranks=ranks,
            timeout_s=options.timeout.total_seconds(),
        )
        real, counting = self._choice(links)
        self._communicators += counting
        first: Communicator = real
        if self.sandboxed:
            first = ReplayingCommunicator(
                rank=options.group_rank, group=options.group_id, replay=self._replay
            )
        elif not self._recording.complete:
            first = RecordingCommunicator(real, group=options.group_id, recording=self._recording)
        engine = GroupEngine(
            group=options.group_id,
            ranks=ranks,
            communicator=first,
            real=real,
            sandbox=sandbox,
            latch=self.latch,
            clock=self.clock,
        )
        group = TrainMoverProcessGroup(
            rank=options.group_rank,
            size=options.group_size,
            name=options.group_id,
            ranks=ranks,
            engine=engine,
        )
        self._groups[options.group_id] = group
        return group

    def drain(self) -> None:
        """Return when no operation of any group is running."""
        for group in self._groups.values():
            group.engine.drain()

    @property
    def recording(self) -> Recording:
        """Of this rank's set-up and first step; at a standby the active rank's."""
        return self._recording

    # -- the recording of the first step -----------------------------------------------------------

    def begin_step(self) -> None:
        """A step begins here, or a shadow iteration of a standby."""
        while self._on_first_step:
            self._on_first_step.pop()()
        if self.sandboxed:
            self._replay.begin_step()
        elif not self._recording.complete:
            self._recording.begin_step()
            if self._recording.complete:
                for group in self._groups.values():
                    group.engine.leave_sandbox()

    def commit_step(self) -> None:
        """The step is committed."""
        self._recording.add(Mark.COMMIT)

    # -- agreement -------------------------------------------------------------------------------

    def agree(self, values: Sequence[int], *, best: Callable[[int, int], int]) -> list[int]:
        """All-reduce a few integers over all ranks, on this thread.

        Args:
            values: As many at each rank.
            best: ``min`` or ``max``.

        Raises:
            LinkBrokenError: The links broke before everybody had answered.
        """
        entered = self._vote_clock.enter("vote", size=8 * len(values))
        complete = False
        try:
            agreed = self.control.agree(values, best=best)
            complete = True
        finally:
            self._vote_clock.leave(entered, complete=complete)
        return agreed

    # -- membership changes ----------------------------------------------------------------------

    def switch(self, plan: Plan) -> int:
        """Phase 2 of a planned move at a stayer: only links to changed ranks are replaced.

        Returns:
            Number of links replaced by ones that phase 1 had dialled.
        """
        changed = self.membership.changed_ranks(plan.membership)
        replaced = self.table.switch(plan.membership)
        self.decisions.take(Switched(plan))
        self._rewind()
        self._control_thread.rewatch(changed)
        return replaced

    def commit(self) -> None:
        """The first vote of an epoch passed: close the way back."""
        self.table.retire()

    def reset(self, event: Joins | Recovers, *, watch: bool = True) -> None:
        """Drop every link and start over at a plan's epoch: after a failure, or as a joiner.

        Args:
            event: Which of the two, and the plan.
            watch: Watch the neighbours at once; a joiner of a planned move does so when it joined,
                because until then its neighbours watch the leaver.
        """
        self.drain()
        self.saves.give_up()
        if not self.sandboxed:
            self._recording.add(Mark.VOID)
        membership = event.plan.membership
        changed = self.membership.changed_ranks(membership)
        self.table.reset(membership)
        self.decisions.take(event)
        self._rewind()
        if event.plan.kind == "failure":  # the ranks agree while the link for state is made
            for joiner, source in event.plan.sources.items():
                if joiner != source and self.rank in {joiner, source}:
                    self.table.call_ahead(STATE_GROUP, joiner + source - self.rank)
        if watch:
            self._control_thread.rewatch(changed)

    def rewatch(self) -> None:
        """Watch the neighbours of now."""
        self._control_thread.rewatch(frozenset())

    def unwatch(self, ranks: frozenset[int]) -> None:
        """Part from those of ``ranks`` that this rank watches, or that watch it."""
        self._control_thread.unwatch(ranks)

    def enter_sandbox(self) -> None:
        """Run collectives in the sandbox until ``leave_sandbox``, at an active rank."""
        engines = [group.engine for group in self._groups.values()]
        self._outside = [(engine, engine.communicator) for engine in engines]
        for engine in engines:
            engine.enter_sandbox()

    def leave_sandbox(self) -> None:
        """Run them as before ``enter_sandbox``."""
        for engine, communicator in self._outside:
            engine.communicator = communicator
        self._outside.clear()

    def raise_fatal(self) -> None:
        """End the program if it must not go on.

        Raises:
            ProtocolError: With the reason.
        """
        if self.fatal:
            raise ProtocolError(self.fatal)

    def promote(self) -> None:
        """Leave the sandbox: from now on the groups talk to their peers."""
        if self.sandboxed:
            self.sandboxed = False
            self._recording.close()  # of the rank it replaces; what came is served to others
            for listener in self._on_promotion:
                listener()
        for group in self._groups.values():
            group.engine.leave_sandbox()

    def _rewind(self) -> None:
        self.clock.enter_epoch(self.epoch)
        for communicator in self._communicators:
            communicator.rewind()
        for group in self._groups.values():
            group.engine.rewind()
        self._vote_clock.rewind()

    def _fresh_progress(self) -> StepProgress | None:
        latest = self.progress
        if latest is None or latest is self._sent_progress:
            return None
        self._sent_progress = latest
        return StepProgress(machine=self.spec.machine, rank=self.rank, **latest._asdict())
