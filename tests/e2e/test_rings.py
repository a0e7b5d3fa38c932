"""A job on machines that say where they are: its ring is named, applied, and kept over a move."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from contextlib import aclosing
from pathlib import Path
from typing import Any

import pytest
from tests.support.site import Site

from trainmover.bus.nats.bus import NatsBus
from trainmover.events.machine import MachineReady
from trainmover.events.migration import JobFinished, JobFormed, MigrationCommitted
from trainmover.job.topology import Frozen, Membership

pytestmark = [pytest.mark.job, pytest.mark.soak, pytest.mark.timeout(400)]

PROGRAM = str(Path(__file__).parents[1] / "jobs" / "workloads.py")
STEPS = "60"
SLOTS = 4
LEAVES = ("l0", "l1", "l0", "l1", "l9")
"""By turns, so that each link of the ring of the slots' numbers leaves its leaf; then a standby."""

SiteOf = Callable[[str], Site]


@pytest.fixture
def site_of(tmp_path: Path, nats_url: str) -> Iterator[SiteOf]:
    sites: list[Site] = []

    def make(job: str) -> Site:
        sites.append(Site(tmp_path / job, nats_url, job=job, slots=SLOTS))
        return sites[-1]

    yield make
    for site in sites:
        site.close()


async def played(site: Site, gate: Path, *, leaver: str | None) -> tuple[JobFormed, list[Any]]:
    """Run the program to its end; with a leaver, move it once its standby is warm."""
    site.services({}, called="the")
    program = (PROGRAM, "fsdp2", "--steps", STEPS, "--hold-at", "5", "--gate", str(gate))
    for number, leaf in enumerate(LEAVES):
        site.machine(number, *program, env={}, labels=[f"leaf={leaf}"])
    formed: list[JobFormed] = []
    memberships: list[Membership] = []
    ready, begun = set[int](), False
    async with asyncio.timeout(240), NatsBus(site.url, name="test") as bus:
        await bus.setup()
        async with aclosing(bus.events(site.job)) as facts:
            async for delivery in facts:
                fact: Frozen = delivery.payload.payload
                match fact:
                    case JobFormed():
                        formed.append(fact)
                        memberships.append(fact.membership)
                    case MachineReady(slot=slot):
                        ready.add(slot)
                        if len(ready) == SLOTS and not begun:  # a leaver gets warm later, too
                            begun = True
                            await asyncio.to_thread(begin, site, gate, leaver)
                    case MigrationCommitted():
                        memberships.append(fact.membership)
                    case JobFinished():
                        break
    assert len(memberships) == 1 + (leaver is not None), site.said()
    for member in memberships[-1].members:
        assert site.processes[member.machine].wait(timeout=60) == 0, site.said()
    return formed[0], site.finals()


def begin(site: Site, gate: Path, leaver: str | None) -> None:
    if leaver is not None:
        shown = site.cli("migrate", leaver, "--dry-run")
        assert "ring: 3 of 4 links leave their leaf (2 before; 3 is the least)" in shown
        site.cli("migrate", leaver, "--yes", "--no-wait")
    gate.touch()


async def test_a_job_keeps_the_ring_that_its_labels_gave_it(
    site_of: SiteOf, tmp_path: Path
) -> None:
    formed, moved = await played(site_of("moved"), tmp_path / "one", leaver="node-2")
    assert formed.membership.ring == (0, 2, 1, 3)
    assert [one.machine for one in formed.membership.members] == [f"node-{i}" for i in range(SLOTS)]
    same, undisturbed = await played(site_of("undisturbed"), tmp_path / "two", leaver=None)
    assert same.membership.ring == formed.membership.ring
    assert moved == undisturbed
