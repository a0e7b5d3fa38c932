"""Tables that several commands show: machines, migrations."""

from __future__ import annotations

from rich.table import Table

from trainmover_console.cli import output
from trainmover_console.view import JobView

__all__ = ["machines_table", "migrations_table"]


def machines_table(view: JobView) -> Table:
    """The machines of a job: slots first, in their order."""
    rows = []
    for _, one in sorted(view.machines.items(), key=lambda item: _order(item[1].slot, item[0])):
        ready = ",".join(map(str, sorted(one.ready_slots))) if one.role == "standby" else None
        step_s = None if one.step_s is None else f"{one.step_s:.3f}"
        rows.append((one.name, one.role, one.slot, one.step, step_s, ready, one.host, one.note))
    columns = ("machine", "role", "slot", "step", "step s", "ready for", "host", "note")
    return output.table(columns, rows)


def migrations_table(view: JobView) -> Table:
    """The migrations of a job, oldest first."""
    rows = []
    for one in view.migrations.values():
        pause = None if one.pause_s is None else f"{one.pause_s:.3f}"
        redone = max(one.steps_redone.values(), default=0)
        slots = ", ".join(str(move.slot) for move in one.moves)
        who = ", ".join(f"{move.leaver} -> {move.joiner or '?'}" for move in one.moves)
        rows.append((one.id, one.state, one.kind, slots, who, pause, redone, one.cause))
    columns = ("migration", "state", "kind", "slot", "move", "pause s", "redone", "cause")
    return output.table(columns, rows)


def _order(slot: int | None, name: str) -> tuple[int, int, int, str]:
    digits = "".join(filter(str.isdigit, name))
    return (0 if slot is not None else 1, slot or 0, int(digits) if digits else 0, name)
