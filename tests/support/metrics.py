"""The metrics that `trainmover metrics` has, by running its exporter."""

from __future__ import annotations

import functools
import re
from datetime import UTC, datetime

from prometheus_client import CollectorRegistry, generate_latest
from tests.unit import factories as make

from trainmover.events.migration import JobFormed
from trainmover_console.metrics.exporter import JobCollector
from trainmover_console.view.live import Watched

__all__ = ["exported"]


@functools.cache
def exported() -> dict[str, frozenset[str]]:
    """Labels by name, of everything that a job with a bit of everything has."""
    move = make.Move(
        "m-1",
        slot=1,
        leaver="node-1",
        joiner="node-2",
        after=make.membership_of("node-0", "node-2", epoch=2),
    )
    facts = [
        make.registered("node-0"),
        JobFormed(membership=make.membership_of("node-0", "node-1"), standbys=("node-2",)),
        make.straggler("node-1", 1),
        move.proposed(),
        move.committed(),
        move.resumed("node-0", 0, 0.1),
        make.progress("node-0", 0, 3),
    ]
    seen = Watched("j")
    for number, fact in enumerate(facts):
        seen.apply(make.said(fact, at_s=number))
    seen.planner, seen.unprotected = True, 0
    registry = CollectorRegistry()
    registry.register(JobCollector(seen, clock=lambda: datetime.now(UTC)))
    text = generate_latest(registry).decode()
    found = {"trainmover_rank_lateness_seconds": {"rank", "machine"}}
    for line in text.splitlines():
        if family := re.match(r"# TYPE (\w+)", line):
            found.setdefault(family[1], set())
        elif not line.startswith("#"):
            name, labels = line.split(" ", 1)[0].partition("{")[::2]
            found.setdefault(name, set()).update(re.findall(r"(\w+)=", labels))
    return {name: frozenset({*labels, "training_job"}) for name, labels in found.items()}
