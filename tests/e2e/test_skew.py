"""Services and machines of two releases in one job, in the order in which docs/howto/upgrade.md
has people upgrade them: machines first, one after the other, then the planner and the detector.

The other release is the latest tag or, where there is none, the commit before this one; SKEW_WITH
names another.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import subprocess
import sys
from collections.abc import Awaitable, Callable, Iterator
from contextlib import AsyncExitStack, aclosing
from pathlib import Path
from typing import Any

import pytest
from tests.support.cluster import ClusterJob
from tests.support.releases import NoReleaseError, earlier, unpack
from tests.support.site import Site

from trainmover.bus.nats.bus import NatsBus
from trainmover.events.envelope import Envelope
from trainmover.events.machine import MachineReady
from trainmover.events.migration import JobFinished, JobFormed, MigrationCommitted

pytestmark = [pytest.mark.job, pytest.mark.timeout(400)]

JOB = "skew"
PROGRAM = str(Path(__file__).parents[1] / "jobs" / "upgraded.py")
STEPS = "300"
"""Following a toy model takes some tens of them, on a busy machine a hundred."""
SLOTS = 2


@pytest.fixture(scope="module")
def old(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """The environment in which Python imports the earlier release."""
    try:
        ref = earlier()
        env = unpack(ref, tmp_path_factory.mktemp("earlier"))
    except NoReleaseError as error:
        pytest.skip(f"no earlier release to run: {error}")
    sys.stdout.write(f"the earlier release is {ref}\n")
    return env


@pytest.fixture
def site(tmp_path: Path, nats_url: str) -> Iterator[Site]:
    one = Site(tmp_path / "site", nats_url, job=JOB, slots=SLOTS)
    yield one
    one.close()


Until = Callable[[Callable[[Envelope], bool]], Awaitable[Envelope]]


@pytest.fixture
async def until(site: Site) -> Any:
    """Waits for a fact; each is looked at once."""
    async with AsyncExitStack() as stack:
        bus = await stack.enter_async_context(NatsBus(site.url, name="test"))
        await bus.setup()
        facts = await stack.enter_async_context(aclosing(bus.events(JOB)))

        async def wait(wanted: Callable[[Envelope], bool], *, within_s: float = 120) -> Envelope:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(within_s):
                    async for delivery in facts:
                        if wanted(delivery.payload):
                            return delivery.payload
            raise AssertionError(f"it did not happen in {within_s:g} s:\n{site.said()}")

        yield wait


def formed(event: Envelope) -> bool:
    return isinstance(event.payload, JobFormed)


def finished(event: Envelope) -> bool:
    return isinstance(event.payload, JobFinished)


def ready(machine: str) -> Callable[[Envelope], bool]:
    """The machine is warm for every slot."""
    slots: set[int] = set()

    def look(event: Envelope) -> bool:
        if isinstance(event.payload, MachineReady) and event.payload.machine == machine:
            slots.add(event.payload.slot)
        return slots == set(range(SLOTS))

    return look


def moved(leaver: str, joiner: str) -> Callable[[Envelope], bool]:
    def look(event: Envelope) -> bool:
        fact = event.payload
        return isinstance(fact, MigrationCommitted) and (fact.leaver, fact.joiner) == (
            leaver,
            joiner,
        )

    return look


def which(env: dict[str, str]) -> Path:
    """Where Python takes the package from, in that environment."""
    line = "import trainmover_planner, trainmover; print(trainmover_planner.__file__)"
    argv = [sys.executable, "-c", line]
    done = subprocess.run(
        argv, env={**os.environ, **env}, capture_output=True, text=True, check=True
    )
    return Path(done.stdout.strip())


async def test_an_earlier_planner_moves_machines_of_this_release(
    old: dict[str, str],
    site: Site,
    until: Until,
    undisturbed: Callable[..., ClusterJob],
    tmp_path: Path,
) -> None:
    """The machines were upgraded first; the services are as they were. Not a bit changes."""
    assert which(old) != which({})
    gate = tmp_path / "gate"
    program = (PROGRAM, "--steps", STEPS)
    held = (*program, "--hold", f"20={gate}")
    site.services(old, called="old")
    for number in range(3):
        site.machine(number, *held, env={})
    formation = (await until(formed)).payload
    assert isinstance(formation, JobFormed)
    (spare,) = formation.standbys
    await until(ready(spare))
    leaver = next(one for one in ("node-1", "node-0") if one != spare)
    site.cli("migrate", leaver, "--yes", "--no-wait")
    gate.touch()
    await until(moved(leaver, spare))
    await until(finished)
    for number in range(2):
        assert site.processes[f"node-{number}"].wait(timeout=60) == 0, site.said()
    assert site.finals() == undisturbed(SLOTS, *program).finals()


@pytest.mark.soak
async def test_a_job_is_upgraded_while_it_runs(
    old: dict[str, str],
    site: Site,
    until: Until,
    undisturbed: Callable[..., ClusterJob],
    tmp_path: Path,
) -> None:
    """Machine after machine, then the services, of a job that goes on; not a bit changes."""
    first, second = tmp_path / "first", tmp_path / "second"
    program = (PROGRAM, "--steps", STEPS)
    held = (*program, "--hold", f"20={first}", "--hold", f"170={second}")
    site.services(old, called="old")
    for number in range(2):
        site.machine(number, *held, env=old)
    await until(formed)
    site.machine(2, *held, env={})
    await until(ready("node-2"))
    site.cli("migrate", "node-1", "--to", "node-2", "--yes", "--no-wait")
    first.touch()
    await until(moved("node-1", "node-2"))
    site.end("node-1")

    site.services({}, called="new")
    for name in ("planner", "detector"):
        site.end(f"old {name}")
    site.machine(3, *held, env={})
    await until(ready("node-3"))
    site.cli("migrate", "node-0", "--to", "node-3", "--yes", "--no-wait")
    second.touch()
    await until(moved("node-0", "node-3"))
    site.end("node-0")
    await until(finished)
    for number in (2, 3):
        assert site.processes[f"node-{number}"].wait(timeout=60) == 0, site.said()
    assert site.finals() == undisturbed(SLOTS, *program).finals()
