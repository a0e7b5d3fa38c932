"""What is injected where: every combination that makes sense, and which ones a seed draws."""

from __future__ import annotations

import itertools
import random
from dataclasses import dataclass
from typing import Literal

Scene = Literal["planned", "recovery", "steady"]
Role = Literal["leaver", "joiner", "stayer"]
Victim = Literal["leaver", "joiner", "stayer", "other", "planner", "detector", "bus"]
Fault = Literal["kill", "freeze", "pause"]

POINTS: dict[Scene, dict[Role, tuple[str, ...]]] = {
    "planned": {
        "leaver": (
            "command.taken",
            "prepare.begin",
            "lead.begin",
            "lead.current",
            "vote.cast",
            "agree.half",
            "vote.decided",
            "leave.begin",
            "leave.sent",
        ),
        "joiner": (
            "command.done",
            "prepare.begin",
            "join.begin",
            "join.state",
            "join.done",
            "commit.begin",
        ),
        "stayer": (
            "command.taken",
            "command.done",
            "prepare.begin",
            "prepare.parked",
            "vote.begin",
            "vote.cast",
            "agree.half",
            "vote.passed",
            "vote.decided",
            "switch.begin",
            "switch.done",
            "commit.begin",
        ),
    },
    "recovery": {
        "joiner": ("join.begin", "join.state", "join.done", "commit.begin"),
        "stayer": (
            "command.taken",
            "recover.begin",
            "agree.half",
            "recover.agreed",
            "recover.hand",
            "commit.begin",
        ),
    },
    "steady": {"stayer": ("vote.begin", "vote.cast", "agree.half", "vote.passed", "step.taken")},
}

SCENES: tuple[Scene, ...] = ("planned", "recovery", "planned", "recovery", "steady")
"""So that a short campaign sees every scene."""

MACHINES: dict[Role, str] = {"leaver": "node-1", "stayer": "node-0"}


@dataclass(frozen=True)
class Injection:
    """One run: while ``role`` sits at ``point`` of ``scene``, ``victim`` meets ``fault``.

    ``kill``: every process of a machine, or a service, is gone at once. ``freeze``: stopped for
    good. ``pause``: stopped for some seconds, which is what a machine believed dead may do. A
    service that is killed is started again, as its supervisor would; the bus is not.
    """

    scene: Scene
    role: Role
    point: str
    victim: Victim
    fault: Fault

    def __str__(self) -> str:
        return f"{self.scene}: {self.role} at {self.point}, {self.fault} {self.victim}"

    @property
    def match(self) -> dict[str, object]:
        """What the fail-point must be reached with."""
        if self.role == "joiner":
            return {"rank": 1} if not self.point.startswith("command") else {"machine": "node-3"}
        return {"machine": MACHINES[self.role]}


def sensible(one: Injection) -> bool:
    """Whether the combination can happen, and whether somebody is left to go on."""
    if one.scene == "recovery" and one.victim == "leaver":
        return False  # it is dead already
    if one.scene == "steady" and one.victim in {"leaver", "joiner", "detector"}:
        return False
    if one.victim == "bus":
        return one.fault == "kill" and one.scene == "planned"
    if one.victim in {"planner", "detector"}:
        return one.fault != "freeze"
    return True


EVERY: tuple[Injection, ...] = tuple(
    one
    for scene, roles in POINTS.items()
    for role, points in roles.items()
    for point in points
    for victim in ("leaver", "joiner", "stayer", "other", "planner", "detector", "bus")
    for fault in ("kill", "freeze", "pause")
    if sensible(one := Injection(scene, role, point, victim, fault))
)


def draw(seed: int, count: int) -> list[Injection]:
    """``count`` injections in an order that only the seed decides, none twice before all were."""
    generator = random.Random(seed)
    drawn: list[Injection] = []
    while len(drawn) < count:
        left = {scene: [one for one in EVERY if one.scene == scene] for scene in POINTS}
        for several in left.values():
            generator.shuffle(several)
        for scene in itertools.cycle(SCENES):
            if left[scene]:
                drawn.append(left[scene].pop())
            if not any(left.values()):
                break
    return drawn[:count]
