"""Facts for tests, with the fields that do not matter filled in."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from typing import Literal

from trainmover.events import executor, incident, machine, migration, type_of
from trainmover.events.envelope import Envelope
from trainmover.job.plan import Move as PlannedMove
from trainmover.job.topology import Frozen, Layout, Machine, Member, Membership

START = datetime(2026, 1, 1, tzinfo=UTC)
TRACE = {"traceparent": f"00-{'ab' * 16}-{'cd' * 8}-01"}


def at(seconds: float) -> datetime:
    return START + timedelta(seconds=seconds)


def membership_of(*names: str, epoch: int = 1) -> Membership:
    members = tuple(Member(machine=n, generation=0, endpoints=("127.0.0.1:1",)) for n in names)
    return Membership(epoch=epoch, layout=Layout(slots=len(names)), members=members)


def said(payload: Frozen, *, at_s: float = 0.0, trace: Mapping[str, str] | None = None) -> Envelope:
    return Envelope(
        id="1",
        source=source_of(payload),
        job="j",
        time=START + timedelta(seconds=at_s),
        payload=payload,
        trace=trace or {},
    )


def source_of(payload: Frozen) -> str:
    """Who says a fact like this."""
    kind = type_of(payload)
    machine = kind.machine_of(payload)
    return f"/{kind.by}" if machine is None else f"/machine/{machine}"


def registered(name: str, *, generation: int = 0) -> machine.MachineRegistered:
    return machine.MachineRegistered(
        machine=Machine(name=name, generation=generation, endpoints=("127.0.0.1:1",)),
        nnodes_min=2,
        nnodes_max=3,
        pid=7,
        host="here",
    )


def ready(name: str, slot: int) -> machine.MachineReady:
    return machine.MachineReady(
        machine=name, generation=0, slot=slot, shadow_iterations=3, warm_s=1.0
    )


def progress(name: str, rank: int, step: int) -> executor.StepProgress:
    return executor.StepProgress(machine=name, rank=rank, epoch=1, step=step, step_s=0.25)


def straggler(name: str, slot: int) -> incident.IncidentOpened:
    return incident.IncidentOpened(
        id="i-1",
        kind="straggler",
        machine=name,
        slot=slot,
        epoch=1,
        confidence=0.9,
        summary=f"{name} is twice as slow as its peers",
        detector="straggler",
    )


class Move:
    """The facts of one migration."""

    def __init__(
        self,
        id: str,
        *,
        slot: int,
        leaver: str,
        joiner: str,
        after: Membership,
        kind: Literal["planned", "failure"] = "planned",
        step: int = 40,
        moves: tuple[PlannedMove, ...] = (),
    ) -> None:
        self._common = {
            "migration": id,
            "kind": kind,
            "slot": slot,
            "leaver": leaver,
            "cause": f"{leaver} is bad",
            "moves": moves,
        }
        self._joiner = {"joiner": joiner, "epoch": after.epoch}
        self.after = after
        self.step = step
        self.id = id

    def proposed(self) -> migration.MigrationProposed:
        return migration.MigrationProposed.model_validate({**self._common, "incident": "i-1"})

    def preparing(self) -> migration.MigrationPreparing:
        return migration.MigrationPreparing.model_validate({**self._common, **self._joiner})

    def aborted(self, reason: str) -> migration.MigrationAborted:
        return migration.MigrationAborted.model_validate({**self._common, "reason": reason})

    def committed(self) -> migration.MigrationCommitted:
        return migration.MigrationCommitted.model_validate(
            {
                **self._common,
                **self._joiner,
                "step": self.step,
                "membership": self.after,
                "phases_s": {"switch": 0.01},
            }
        )

    def resumed(self, name: str, rank: int, pause_s: float) -> executor.StepResumed:
        return executor.StepResumed(
            machine=name,
            rank=rank,
            epoch=self.after.epoch,
            step=self.step + 1,
            pause_s=pause_s,
            step_s=0.25,
            steps_redone=0,
            migration=self.id,
        )


FORMED = (
    *(registered(f"node-{number}") for number in range(3)),
    migration.JobFormed(membership=membership_of("node-0", "node-1"), standbys=("node-2",)),
    ready("node-2", 0),
)
"""A job of two machines, with a standby that is warm for the first slot."""

MOVE = Move(
    "m-0001",
    slot=1,
    leaver="node-1",
    joiner="node-2",
    after=membership_of("node-0", "node-2", epoch=2),
)
"""The standby takes the second slot of that job."""
