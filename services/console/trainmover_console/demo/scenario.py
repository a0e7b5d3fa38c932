"""When to hurt whom: the demo's script, driven by what the job says, never by the clock. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from trainmover.job.topology import Membership
from trainmover_console.view import JobView, MigrationView

__all__ = ["Act", "Scenario", "Stage"]

_STEPS_BEFORE_SLOW: Final = 25
_STEPS_BEFORE_KILL: Final = 20
_SLOT_TO_SLOW: Final = 2
_SLOT_TO_KILL: Final = 0


class Stage(StrEnum):
    """Where the demo is."""

    WARMING = "standbys warm up while training runs"
    SLOW = "a machine is slow"
    SETTLED = "the slow machine was replaced"
    KILLED = "a machine was killed"
    RECOVERED = "a standby took over; training to the end"


@dataclass(frozen=True, slots=True)
class Act:
    """What to do now: ``slow``, ``ease`` (the slow machine is gone) or ``kill`` a machine."""

    what: str
    machine: str


@dataclass(slots=True)
class Scenario:
    """The script.

    Attributes:
        stage: Where we are.
        slowed: The machine that was made slow.
        killed: The machine that was killed.
    """

    stage: Stage = Stage.WARMING
    slowed: str | None = None
    killed: str | None = None

    def advance(self, view: JobView) -> Act | None:
        """What the job's state asks for now."""
        membership = view.membership
        if membership is None or view.state != "running":
            return None
        match self.stage:
            case Stage.WARMING:
                return self._slow_when_warm(view, membership)
            case Stage.SLOW if self.move_of(view, self.slowed, kind="planned") is not None:
                self.stage = Stage.SETTLED
                return Act("ease", self.slowed or "")
            case Stage.SETTLED:
                return self._kill_when_settled(view, membership)
            case Stage.KILLED if self.move_of(view, self.killed, kind="failure") is not None:
                self.stage = Stage.RECOVERED
            case _:
                pass
        return None

    def _slow_when_warm(self, view: JobView, membership: Membership) -> Act | None:
        slots = set(range(membership.layout.slots))
        warm = bool(view.standbys) and all(slots <= one.ready_slots for one in view.standbys)
        if not warm or view.step < _STEPS_BEFORE_SLOW:
            return None
        self.stage = Stage.SLOW
        self.slowed = membership.members[_SLOT_TO_SLOW % len(slots)].machine
        return Act("slow", self.slowed)

    def _kill_when_settled(self, view: JobView, membership: Membership) -> Act | None:
        move = self.move_of(view, self.slowed, kind="planned")
        since = 0 if move is None else view.step - (move.step or 0)
        ready = any(_SLOT_TO_KILL in one.ready_slots for one in view.standbys)
        if since < _STEPS_BEFORE_KILL or not ready:
            return None
        self.stage = Stage.KILLED
        self.killed = membership.members[_SLOT_TO_KILL].machine
        return Act("kill", self.killed)

    def move_of(self, view: JobView, machine: str | None, *, kind: str) -> MigrationView | None:
        """The committed migration that took ``machine`` out."""
        for move in view.migrations.values():
            leavers = {one.leaver for one in move.moves}
            if machine in leavers and move.kind == kind and move.state == "committed":
                return move
        return None

    def problems(self, view: JobView) -> list[str]:
        """What did not go as the script wants; empty when all of it happened."""
        if self.stage is not Stage.RECOVERED:
            return [
                f"the job ended while the demo was at: {self.stage}. Give it more --steps, or read "
                "the events above."
            ]
        found = []
        named = [
            one.machine
            for one in view.incidents.values()
            if one.kind == "straggler" and one.machine
        ]
        if self.slowed not in named:
            found.append(
                f"no detector named {self.slowed} as a straggler (named: {named or 'none'})"
            )
        expected = {self.slowed, self.killed}
        found += [
            f"{one.leaver} was moved without need: {move.cause}"
            for move in view.migrations.values()
            for one in move.moves
            if move.state == "committed" and one.leaver not in expected
        ]
        return found
