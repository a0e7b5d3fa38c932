"""The fact that announces each phase of a migration."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from trainmover.events import migration as events
from trainmover.job.topology import Frozen
from trainmover.protocol.table import Phase

if TYPE_CHECKING:
    from trainmover.protocol.migration import Migration

__all__ = ["of_phase"]


_OF_PHASE: Final[dict[Phase, type[Frozen]]] = {
    Phase.PROPOSED: events.MigrationProposed,
    Phase.APPROVED: events.MigrationApproved,
    Phase.PREPARING: events.MigrationPreparing,
    Phase.READY: events.MigrationReady,
    Phase.SWITCHING: events.MigrationSwitching,
    Phase.COMMITTED: events.MigrationCommitted,
    Phase.REJECTED: events.MigrationRejected,
    Phase.ABORTED: events.MigrationAborted,
    Phase.FAILED: events.MigrationFailed,
}


def of_phase(state: Migration) -> Frozen:
    """The payload for the phase ``state`` is in; the same state always gives the same payload."""
    fields: dict[str, Any] = {
        "migration": state.id,
        "kind": state.kind,
        "slot": state.slot,
        "leaver": state.leaver,
        "cause": state.cause,
        "moves": state.moves,
        "incident": state.incident,
        "requested_by": state.requested_by,
        "forecast": state.forecast,
        "approved_by": state.decided_by or "policy",
        "approval": state.approval,
        "rejected_by": state.decided_by or "policy",
        "aborted_by": state.decided_by or "planner",
        "code": state.code,
        "reason": state.reason,
        "joiner": state.joiner,
        "step": state.step,
        "phases_s": dict(state.phases_s),
    }
    if state.plan is not None:
        fields |= {
            "plan": state.plan,
            "epoch": state.plan.epoch,
            "membership": state.plan.membership,
        }
    model = _OF_PHASE[state.phase]
    return model(**{name: fields[name] for name in model.model_fields})
