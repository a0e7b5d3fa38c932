"""A fact as one line for people."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from trainmover.events import executor, incident, machine, migration, operator
from trainmover.events.envelope import Envelope
from trainmover.job.plan import Move
from trainmover.job.topology import Frozen
from trainmover_console.view.standbys import problem_words

__all__ = ["summarise", "worth_showing"]

_WORDS: Final[Mapping[type[Frozen], str]] = {
    migration.JobHeld: "{0.reason}",
    migration.JobFailed: "{0.reason} {0.next_step}",
    migration.JobFinished: "after {0.step} steps",
    migration.MigrationProposed: "{leaving}: {0.cause}",
    migration.MigrationApproved: "{moves}",
    migration.MigrationRejected: "{leavers} stays: {0.reason}",
    migration.MigrationPreparing: "{pairs}, epoch {0.epoch}",
    migration.MigrationReady: "{pairs}, epoch {0.epoch}",
    migration.MigrationSwitching: "{pairs}, epoch {0.epoch}",
    migration.MigrationCommitted: "{moves}, epoch {0.epoch} after step {0.step}",
    migration.MigrationAborted: "{leavers}: {0.reason}",
    migration.MigrationFailed: "{leavers}: {0.reason}",
    machine.MachineRegistered: "{0.machine.name} on {0.host}, pid {0.pid}",
    machine.MachineLent: "{0.machine.name} of pool {0.pool} on {0.host}, pid {0.pid}",
    machine.MachineReady: "{0.machine} can take slot {0.slot} (warm in {0.warm_s:.1f} s)",
    machine.MachineDataDiffers: (
        "{0.machine} would be given other data than rank {0.rank}, at {0.where}: batch {0.batch} "
        "of {0.loader}: {0.what}"
    ),
    machine.MachineLost: "{0.machine}: {0.reason}",
    machine.MachineQuarantined: "{0.machine} by {0.requested_by}: {0.reason}",
    machine.MachineReleased: "{0.machine} for {0.requested_by}: {0.reason}",
    machine.PoolMachineAssigned: "{0.machine} to {0.job}: {0.reason}",
    machine.PoolMachineRecalled: "{0.machine} from {0.job}: {0.reason}",
    machine.PoolMachineSeen: "{0.machine} is {0.phase}",
    machine.MachineNoticed: "{0.machine}: {0.kind}: {0.reason}",
    operator.MachineUnquarantined: "{0.machine} by {0.requested_by}: {0.reason}",
    operator.AutomationChanged: "{0.mode} by {0.requested_by}: {0.reason}",
    operator.DrainStarted: "{0.drain} by {0.requested_by}: {0.reason}: {0.forecast}",
    operator.DrainChanged: "{0.drain} by {0.requested_by}: paused: {0.paused}: {0.reason}",
    operator.DrainEnded: "{0.drain} is {0.outcome}: {0.reason}",
    operator.PolicyChanged: "from {0.source}",
    operator.PolicyRefused: "{0.source} is not in force: {0.problems[0]}",
    operator.PolicyCompared: (
        "{0.incident}: the shadow policy would {0.would} on {0.machine}; in force: {0.decision}"
    ),
    operator.ServiceRestarted: "{0.service} (start {0.starts}): {0.reason}",
    machine.LinkLost: (
        "rank {0.rank} lost its link to rank {0.peer_rank} on {0.peer_machine} ({0.kind})"
    ),
    executor.PlanPrepared: "rank {0.rank} in {0.prepare_s:.3f} s",
    executor.PlanSwitched: "rank {0.rank} after step {0.step}",
    executor.PlanCommitted: "rank {0.rank} at step {0.step}",
    executor.PlanFailed: "rank {0.rank}: {0.reason}",
    executor.StateFollowed: "rank {0.rank} by rank {0.follower} on {0.machine}",
    executor.StepProgress: "rank {0.rank} at step {0.step}, {0.step_s:.3f} s a step",
    executor.StepBroken: "rank {0.rank} after step {0.committed_step}: {0.reason}",
    executor.StepResumed: "rank {0.rank} at step {0.step} after a pause of {0.pause_s:.3f} s",
    executor.WorkerCosts: "rank {0.rank} on {0.machine}",
    executor.WorkerFinished: "rank {0.rank} on {0.machine} after {0.step} steps",
    incident.IncidentUpdated: "{0.summary}",
    incident.IncidentClosed: "{0.reason}",
}
"""Templates; the payload is argument 0, the moves of a migration are in ``_move_words``.

Where words depend on more, see ``_special``.
"""

_QUIET: Final = (
    executor.JobLayoutKnown,
    executor.PlanCommitted,
    executor.PlanPrepared,
    executor.PlanSwitched,
    executor.StateFollowed,
    executor.StepProgress,
    executor.WorkerCosts,
    executor.WorkerFinished,
    incident.IncidentUpdated,
    machine.LinkLost,
    machine.MachineReady,
    machine.MachineWarming,
)


def summarise(event: Envelope) -> str:
    """``migration.committed   node-2 -> node-4 in slot 2, epoch 2 after step 41``."""
    name = event.type.removeprefix("dev.trainmover.").rsplit(".", 1)[0]
    payload = event.payload
    words = _special(payload)
    if words is None:
        template = _WORDS.get(type(payload))
        words = payload.model_dump_json() if template is None else _fill(template, payload)
    return f"{name:<21} {words}"


def worth_showing(event: Envelope) -> bool:
    """Whether a person who watches the job wants this line (ranks report a lot)."""
    payload = event.payload
    if isinstance(payload, machine.MachineWarmingFailed):
        return payload.attempts == 1  # it is tried again and again
    return not isinstance(payload, _QUIET)


def _fill(template: str, payload: Frozen) -> str:
    return template.format(payload, **_move_words(payload))


def _move_words(payload: Frozen) -> dict[str, str]:
    """The moves of a fact about a migration; those of an older planner name only the first."""
    fact: Any = payload
    if not hasattr(fact, "migration") or not hasattr(fact, "leaver"):
        return {}
    only = Move(slot=fact.slot, leaver=fact.leaver, joiner=getattr(fact, "joiner", ""))
    moves = fact.moves or (only,)
    return {
        "leaving": ", ".join(f"{move.leaver} is to leave slot {move.slot}" for move in moves),
        "leavers": ", ".join(move.leaver for move in moves),
        "pairs": ", ".join(f"{move.leaver} -> {move.joiner}" for move in moves),
        "moves": ", ".join(map(str, moves)),
    }


def _special(payload: Frozen) -> str | None:
    match payload:
        case migration.JobFormed(membership=membership, standbys=standbys):
            names = ", ".join(member.machine for member in membership.members)
            return f"{names}; standbys: {', '.join(standbys) or 'none'}"
        case machine.MachineWarming(machine=name, endpoints=endpoints):
            return f"{name} warms up for slots {', '.join(map(str, sorted(endpoints)))}"
        case machine.MachineWarmingFailed(machine=name, slot=slot, error=error, where=where):
            why = problem_words(error, where)
            return (
                f"{name} is not ready for slot {slot}: {why}, next try in {payload.retry_in_s:g} s"
            )
        case machine.WorkerExited(machine=name, rank=rank, exit_code=code, signal=number):
            how = f"exit code {code}" if number is None else f"signal {number}"
            return f"rank {rank} on {name}: {how}"
        case incident.IncidentOpened():
            return f"{payload.kind} {payload.machine or 'nobody'}: {payload.summary}"
        case _:
            return None
