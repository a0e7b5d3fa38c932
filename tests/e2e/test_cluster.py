"""What a user does by hand: run, migrate, kill, and lose every service."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import pytest
from tests.e2e.conftest import WORKLOADS
from tests.support.cluster import ClusterJob

pytestmark = [pytest.mark.job, pytest.mark.timeout(400)]

StartJob = Callable[..., ClusterJob]
LONG = "200"
"""Steps; following a toy model takes some tens of them, on a busy machine a hundred."""

GPT = ("-m", "trainmover_executor.programs.gpt")


def gated(gate: Path, step: int) -> tuple[str, ...]:
    return ("--hold-at", str(step), "--gate", str(gate))


def same_bits(job: ClusterJob, undisturbed: ClusterJob) -> None:
    assert job.finals() == undisturbed.finals()
    for disturbed, expected in zip(job.losses(), undisturbed.losses(), strict=True):
        missing = expected.keys() - disturbed.keys()
        assert len(missing) <= 1  # committed by its peers, killed before it could write the line
        assert disturbed == {step: loss for step, loss in expected.items() if step not in missing}


@pytest.mark.soak  # the demo does the same, and tests/e2e/test_demo_cli.py compares its bits
def test_moves_and_deaths_by_hand_change_no_bit(
    cluster: StartJob, undisturbed: StartJob, tmp_path: Path
) -> None:
    """A planned move, then rank 0's machine by ``kill -9``, against an undisturbed run."""
    gate = tmp_path / "gate"
    program = (WORKLOADS, "ddp", "--steps", LONG)
    job = cluster("--nnodes", "4:6", *program, *gated(gate, 20))
    job.until(r"job\.formed")
    job.wait_until_ready(4)

    moved = job.cli("migrate", "node-2", "--reason", "maintenance", "--yes", "--no-wait")
    assert moved.returncode == 0, moved.stderr
    gate.touch()
    job.until(r"migration\.committed .*node-2 -> node-[45] in slot 2")
    job.kill("node-0")
    job.until(r"migration\.committed .*node-0 -> ")
    assert job.finish() == 0, job.output

    expected = undisturbed(4, *program)
    same_bits(job, expected)


@pytest.mark.soak
def test_two_machines_move_together_and_two_die_together(
    cluster: StartJob, undisturbed: StartJob, tmp_path: Path
) -> None:
    """One switch for both moves, one plan for both deaths, and no bit changes."""
    gate, second_gate = tmp_path / "gate", tmp_path / "second"
    program = (WORKLOADS, "ddp", "--steps", LONG)
    job = cluster(
        *("--nnodes", "4:6", *program, *gated(gate, 20)),
        *("--then-hold-at", "170", "--then-gate", str(second_gate)),
    )
    job.until(r"job\.formed")
    job.wait_until_ready(4, standbys=2)
    crowd = job.cli("migrate", "node-0", "node-1", "node-2", "--yes")
    assert crowd.returncode == 3, crowd
    assert "at most a third" in crowd.stderr
    moved = job.cli("migrate", "node-1", "node-2", "--yes", "--no-wait", "-o", "json")
    assert moved.returncode == 0, moved.stderr
    gate.touch()
    job.until(r"migration\.committed .*node-1 -> .* in slot 1, node-2 -> .* in slot 2, epoch 2 ")

    job.wait_until_ready(4, standbys=2, generation=1)  # the leavers are standbys by now
    job.kill("node-0", "node-3")
    second_gate.touch()
    job.until(r"migration\.committed .*node-0 -> .* in slot 0, node-3 -> .* in slot 3, ")
    assert job.finish() == 0, job.output

    expected = undisturbed(4, *program)
    same_bits(job, expected)


@pytest.mark.soak  # the normal run tries them without agents and bus, in tests/integration
def test_machines_of_two_ranks_move_and_die(
    cluster: StartJob, undisturbed: StartJob, tmp_path: Path
) -> None:
    """The standby keeps slot 0 warm, and warms up for slot 1 when that is to move."""
    gate = tmp_path / "gate"
    program = (WORKLOADS, "ddp", "--steps", LONG)
    shape = ("--nproc-per-node", "2")
    frugal = ("--warm-limit", "1")
    job = cluster("--nnodes", "2:3", *shape, *frugal, *program, *gated(gate, 20))
    job.until(r"job\.formed")
    job.wait_until_ready(1)
    moved = job.cli("migrate", "node-1", "--yes", "--no-wait")
    assert moved.returncode == 0, moved.stderr
    gate.touch()
    job.until(r"migration\.committed .*node-1 -> ")
    job.kill("node-0")  # the leaver takes its place once it is warm
    job.until(r"migration\.committed .*node-0 -> ")
    assert job.finish() == 0, job.output

    expected = undisturbed(4, *program)
    same_bits(job, expected)


@pytest.mark.soak  # the normal run tries them without agents and bus, in tests/integration
@pytest.mark.parametrize(
    ("workload", "shape"),
    [
        ("fsdp2", ("--nnodes", "4:6")),
        ("tp_fsdp2", ("--nnodes", "2:4", "--nproc-per-node", "2")),
    ],
)
def test_sharded_jobs_survive_a_move_and_a_crash(
    cluster: StartJob, undisturbed: StartJob, tmp_path: Path, workload: str, shape: tuple[str, ...]
) -> None:
    """A crash redoes at most the running step although nobody computes with the same state."""
    gate, second_gate = tmp_path / "gate", tmp_path / "second"
    slots = shape[1].split(":")[0]
    program = (WORKLOADS, workload, "--steps", "115")
    then = ("--then-hold-at", "100", "--then-gate", str(second_gate))
    job = cluster(*shape, *program, *gated(gate, 10), *then)
    job.until(r"job\.formed")
    job.wait_until_ready(int(slots), standbys=2)
    moved = job.cli("migrate", "node-1", "--yes", "--no-wait")
    assert moved.returncode == 0, moved.stderr
    gate.touch()
    job.until(r"migration\.committed")
    job.wait_until_followed(0, epoch=2)
    status = job.cli("status")
    assert "state survives a machine by:" in status.stdout, status.stdout
    job.kill("node-0")
    second_gate.touch()
    job.until(r"migration\.committed .*node-0 -> ")
    assert job.finish() == 0, job.output

    ranks = int(slots) * int(shape[3] if len(shape) > 2 else 1)
    expected = undisturbed(ranks, *program)
    same_bits(job, expected)


def test_state_without_a_replica_is_said_to_be_lost(cluster: StartJob) -> None:
    """Nobody kept the state of a crashed machine: no silent restart, a clear end."""
    never = ("--redundancy", "checkpoint")
    job = cluster(
        "--nnodes", "2:3", *never, WORKLOADS, "fsdp2", "--steps", "100000", "--pace", "0.02"
    )
    job.until(r"job\.formed")
    job.wait_until_ready(2)
    job.kill("node-1")
    assert job.finish() == 1
    assert "The state of rank 1 is lost" in job.output
    assert "latest checkpoint" in job.output


def test_training_outlives_every_service_and_the_launcher_starts_them_again(
    cluster: StartJob, undisturbed: StartJob, tmp_path: Path
) -> None:
    """INV-NO-BUS-ON-PATH: detector, planner and bus die, the job goes on, and a move as well."""
    gate = tmp_path / "gate"
    program = (WORKLOADS, "ddp", "--steps", "60")
    job = cluster("--nnodes", "2:3", *program, *gated(gate, 20))
    job.until(r"job\.formed")
    job.wait_until_ready(2)
    job.kill("detector", "planner", "bus")
    job.until(r"warning: .*bus.* gone")
    for _ in range(3):
        job.until(r"the (detector|planner|bus) runs again")
    assert len(re.findall("is gone", job.output)) == 3
    assert "raining continues" in job.output
    moved = job.cli("migrate", "node-1", "--yes", "--no-wait")
    assert moved.returncode == 0, moved
    gate.touch()
    job.until(r"migration\.committed")
    assert job.finish() == 0, job.output
    assert len(re.findall(r"service\.restarted", job.output)) == 3

    expected = undisturbed(2, *program)
    assert job.finals() == expected.finals()


def test_refusals_change_nothing_and_say_what_to_do(cluster: StartJob, tmp_path: Path) -> None:
    gate = tmp_path / "gate"
    job = cluster("--nnodes", "2:3", WORKLOADS, "ddp", "--steps", "30", *gated(gate, 10))
    job.until(r"job\.formed")
    job.wait_until_ready(2)

    for arguments, code, hint in [
        (("node-9",), "unknown_machine", "trainmover status"),
        (("node-2",), "not_in_slot", "trainmover status"),
        (("node-0", "--to", "node-1"), "not_a_standby", "standby"),
    ]:
        refused = job.cli("migrate", *arguments, "--yes")
        assert refused.returncode == 3, refused
        assert code in refused.stderr
        assert hint in refused.stderr

    planned = job.cli("migrate", "node-0", "--dry-run", "-o", "json")
    assert planned.returncode == 0, planned
    assert '"node-2"' in planned.stdout

    accepted = job.cli("migrate", "node-0", "--yes", "--no-wait")
    assert accepted.returncode == 0, accepted
    again = job.cli("migrate", "node-0", "--yes", "--no-wait")
    assert again.returncode == 3, again
    other = job.cli("migrate", "node-1", "--yes", "--no-wait")
    assert other.returncode == 3, other
    gate.touch()
    job.until(r"migration\.committed")
    assert job.finish() == 0, job.output
    assert "m-0002" not in job.output
