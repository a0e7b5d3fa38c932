"""Operators steer a running job from a second terminal; every act is a fact with who and why."""

from __future__ import annotations

import asyncio
import json
import re
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from tests.e2e.conftest import WORKLOADS
from tests.support.cluster import ClusterJob

from trainmover_console.demo.faults import Throttle

pytestmark = [pytest.mark.job, pytest.mark.timeout(400)]

StartJob = Callable[..., ClusterJob]
GPT = ("-m", "trainmover_executor.programs.gpt", "--steps", "100000")


@contextmanager
def slow(pid: int) -> Iterator[None]:
    """Every process under ``pid`` computes in fits and starts."""
    stop = threading.Event()

    async def throttle() -> None:
        task = asyncio.create_task(Throttle(pid).run())
        await asyncio.to_thread(stop.wait)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)

    thread = threading.Thread(target=lambda: asyncio.run(throttle()))
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join()


def facts(job: ClusterJob, *names: str) -> list[tuple[str, dict[str, Any]]]:
    """What was published so far, of these kinds."""

    async def read() -> list[tuple[str, dict[str, Any]]]:
        async with job.bus() as bus:
            left = await bus.event_count(job.name)
            found = []
            async for delivery in bus.events(job.name):
                event = delivery.payload
                name = event.type.removeprefix("dev.trainmover.").removesuffix(".v1")
                if name in names:
                    found.append((name, event.payload.model_dump(mode="json")))
                left -= 1
                if not left:
                    break
            return found

    return asyncio.run(read())


@pytest.mark.soak
def test_policy_asks_an_operator_decides_and_all_of_it_is_on_record(cluster: StartJob) -> None:
    job = cluster("--nnodes", "3:5", "--automation", "approval", *GPT)
    job.until(r"job\.formed")
    job.wait_until_ready(3, standbys=2)
    with slow(job.runtime()["processes"]["node-2"]):
        line = job.until(r"migration\.proposed ")
        assert "node-2" in line, job.output
        (found,) = facts(job, "migration.proposed")
        one = found[1]["migration"]
        status = job.cli("status")
        assert f"trainmover migration approve {one}" in status.stdout
        dry = job.cli("migration", "approve", one, "--dry-run", "-o", "json")
        assert json.loads(dry.stdout)["plan"]["moves"][0]["leaver"] == "node-2"
        done = job.cli(
            "migration", "approve", one, "--reason", "fans are out", "--by", "ada", "-o", "json"
        )
    assert done.returncode == 0, done.stderr
    moved = json.loads(done.stdout)
    assert (moved["state"], moved["decided_by"]) == ("committed", "ada")

    refused = job.cli("migration", "reject", one)
    assert refused.returncode == 3
    assert "waits for nobody" in refused.stderr
    assert (
        job.cli(
            "machine", "unquarantine", "node-2", "--reason", "fans replaced", "--by", "bob"
        ).returncode
        == 0
    )
    again = job.cli("machine", "unquarantine", "node-2")
    assert again.returncode == 3
    assert "next:" in again.stderr
    assert job.cli("automation", "pause", "--reason", "night", "--by", "bob").returncode == 0
    assert "night" in job.cli("automation", "pause").stderr
    status = job.cli("status", "-o", "json")
    assert json.loads(status.stdout)["automation"] == "paused"
    assert job.cli("automation", "resume", "--by", "bob", "--reason", "day").returncode == 0

    told = facts(
        job,
        "migration.approved",
        "machine.quarantined",
        "machine.unquarantined",
        "automation.changed",
    )
    assert [name for name, _ in told] == [
        "migration.approved",
        "machine.quarantined",
        "machine.unquarantined",
        "automation.changed",
        "automation.changed",
    ]
    approved, held, freed, paused, resumed = (fact for _, fact in told)
    assert (approved["approved_by"], approved["approval"]) == ("ada", "fans are out")
    assert (held["machine"], held["requested_by"]) == ("node-2", "policy")
    assert (freed["requested_by"], freed["reason"]) == ("bob", "fans replaced")
    assert (paused["mode"], paused["requested_by"], paused["reason"]) == ("paused", "bob", "night")
    assert (resumed["mode"], resumed["reason"]) == ("automatic", "day")
    job.process.send_signal(signal.SIGINT)
    assert job.finish() == 130


def test_a_move_is_aborted_and_training_never_notices(
    cluster: StartJob, undisturbed: StartJob, tmp_path: Path
) -> None:
    """INV-LEAVER-WHOLE, and a standby in quarantine takes no slot."""
    gate = tmp_path / "gate"
    program = (WORKLOADS, "ddp", "--steps", "40", "--hold-at", "10", "--gate", str(gate))
    job = cluster("--nnodes", "2:4", *program)
    job.until(r"job\.formed")
    job.wait_until_ready(2, standbys=2)
    held = job.cli("machine", "quarantine", "node-2", "--reason", "ECC errors", "--by", "ada")
    assert held.returncode == 0, held.stderr
    refused = job.cli("migrate", "node-1", "--to", "node-2", "--yes")
    assert (refused.returncode, "not_a_standby" in refused.stderr) == (3, True)
    refused = job.cli("machine", "quarantine", "node-1")
    assert refused.returncode == 3
    assert "trainmover migrate node-1" in refused.stderr

    started = job.cli("migrate", "node-1", "--yes", "--no-wait", "-o", "json")
    one = json.loads(started.stdout)
    assert one["plan"]["moves"][0]["joiner"] == "node-3"
    stopped = job.cli("migration", "abort", one["id"], "--reason", "wrong machine", "--by", "ada")
    assert stopped.returncode == 0, stopped.stderr
    late = job.cli("migration", "abort", one["id"])
    assert late.returncode == 3
    gate.touch()
    assert job.finish() == 0, job.output
    assert re.search(r"migration\.aborted .*wrong machine", job.output)

    expected = undisturbed(2, WORKLOADS, "ddp", "--steps", "40")
    assert job.finals() == expected.finals()
    assert job.losses() == expected.losses()
