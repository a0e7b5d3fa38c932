"""What docs/howto/compose.md promises: one job, disturbed in every way, that loses no bit.

The tests share one running job, as operators do; each brings it into the state that it needs.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from tests.support.compose import ROOT, SLOTS, Stack
from tests.support.lines import Lines

from trainmover.errors import PermissionDeniedError
from trainmover.events.machine import MachineLost
from trainmover.tracing import observe
from trainmover_console.view import JobView, MigrationView

pytestmark = [pytest.mark.job, pytest.mark.timeout(1500)]

MACHINES = [f"node-{slot}" for slot in SLOTS]
MOST_LATE_S = 12.0  # on top of a lease: on a busy machine the bus itself is silent for seconds
LEASE_S = 3.0  # what the detector gives a machine that has fallen silent


def last(view: JobView) -> MigrationView:
    return list(view.migrations.values())[-1]


def recovered(view: JobView, machine: str, *, known: int) -> bool:
    """Whether a migration that was not ``known`` took a machine's slot, and all others resumed."""
    if len(view.migrations) <= known:
        return False
    one = last(view)
    return (
        one.leaver == machine and one.state == "committed" and len(one.pauses_s) == len(SLOTS) - 1
    )


def lose(stack: Stack, machine: str, *command: str) -> tuple[JobView, MigrationView]:
    """Run a command that costs a machine its slot; the view afterwards and what was done."""
    return lose_by(stack, machine, lambda: stack.run(*command))


def lose_by(stack: Stack, machine: str, act: Callable[[], object]) -> tuple[JobView, MigrationView]:
    """Do something to a machine that costs it its slot; the view afterwards and what was done."""
    before = stack.until_warm(1)
    assert before.machines[machine].role == "active"
    known = len(before.migrations)
    act()
    view = stack.until(
        lambda now: recovered(now, machine, known=known),
        what=f"recovered from the loss of {machine}",
    )
    assert len(view.migrations) == known + 1
    one = last(view)
    assert max(one.steps_redone.values()) <= 1
    return view, one


def step_on(stack: Stack, view: JobView, *, steps: int = 10) -> JobView:
    wanted = view.step + steps
    return stack.until(lambda now: now.step >= wanted, what=f"at step {wanted}")


def test_the_job_trains_on_the_four_machines(stack: Stack) -> None:
    view = stack.until(lambda now: now.step > 10, what="past step 10")
    assert [m.machine for m in view.membership.members] == MACHINES  # type: ignore[union-attr]
    for member in view.membership.members:  # type: ignore[union-attr]
        # A container's own address: links between machines cross the compose network.
        assert not re.match(r"127\.", member.endpoints[0]), member
    assert "gpt: running" in stack.compose("run", "--rm", "cli", "status")


@pytest.mark.parametrize("service", ["nats", "detector", "planner", "node-0", "standby"])
def test_nobody_is_privileged(stack: Stack, service: str) -> None:
    """As the kernel sees it, in the running container."""
    status = stack.compose("exec", "-T", service, "cat", "/proc/1/status")
    facts = dict(line.split(":\t", 1) for line in status.splitlines() if ":\t" in line)
    assert facts["Uid"].split() == ["10001"] * 4
    assert {int(facts[name], 16) for name in ("CapPrm", "CapEff", "CapBnd", "CapAmb")} == {0}
    assert facts["NoNewPrivs"].strip() == "1"
    mounts = stack.compose("exec", "-T", service, "cat", "/proc/1/mounts")
    [root] = [line.split() for line in mounts.splitlines() if line.split()[1] == "/"]
    assert root[3].split(",")[0] == "ro"
    assert stack.inspect(service)["State"]["Health"]["Status"] in {"healthy", "starting"}


def test_every_service_has_its_own_key_and_no_other(stack: Stack) -> None:
    """As its own file system shows, to the very user that it runs as."""
    look = (
        "import os; [print(os.path.join(at, f)) for at, _, files in os.walk('/var/lib/trainmover')"
    )
    look += " for f in files if f == 'nkey' or f.endswith('.key') or f.startswith('link-')]"
    seen = {}
    for service in ("detector", "planner", "node-0", "node-3"):
        found = stack.compose("exec", "-T", service, "python", "-c", look).split()
        assert all(path.startswith("/var/lib/trainmover/keys/") for path in found), found
        assert {Path(path).name for path in found} - {"link-gpt"} == {"nkey"}
        assert (len(found) == 2) == service.startswith("node")
        seen[service] = stack.compose("exec", "-T", service, "cat", "/var/lib/trainmover/keys/nkey")
    assert len(set(seen.values())) == len(seen)


def test_services_come_without_torch(stack: Stack) -> None:
    looked = "import importlib.util as u; print(u.find_spec('torch'))"
    assert stack.compose("exec", "-T", "planner", "python", "-c", looked).strip() == "None"


def test_a_killed_machine_is_known_by_its_links(stack: Stack) -> None:
    """Those that it was linked to say so, and no lease has to run out.

    How long pauses are, ``benchmarks.pause`` says; this one must not wait for a lease.
    """
    view, one = lose(stack, "node-2", "docker", "compose", "kill", "node-2")
    assert re.search(r"were (reset|refused)|the process of rank \d ended", one.cause), one.cause
    assert one.pause_s is not None
    assert one.pause_s <= LEASE_S + MOST_LATE_S, one.as_data()
    print(f"pause after docker compose kill: {one.pause_s:.3f} s")
    step_on(stack, view)


def test_standbys_are_added_and_a_killed_machine_comes_back(stack: Stack) -> None:
    """The documented command; it replaces no machine that trains."""
    before = stack.until(lambda now: now.step > 10, what="past step 10")
    containers = {name: stack.container(name) for name in ("node-0", "node-1", "node-3")}
    stack.up(standbys=2)
    view = stack.until_warm(2)
    assert {name: stack.container(name) for name in containers} == containers
    assert len(view.migrations) == len(before.migrations)
    if before.machines["node-2"].role == "lost":
        assert view.machines["node-2"].role == "standby"
        assert view.machines["node-2"].generation > before.machines["node-2"].generation


@contextlib.contextmanager
def subscriber(stack: Stack) -> Iterator[Lines]:
    """``examples/subscribe.py`` outside of the containers, as a user who may only look."""
    script = [sys.executable, str(ROOT / "examples" / "subscribe.py"), stack.url, "gpt"]
    env = {**os.environ, **stack.keys("ops").environment()}
    before = stack.readers()
    with subprocess.Popen(script, env=env, stdout=subprocess.PIPE, text=True) as process:
        lines = Lines(process.stdout, what="the subscriber")
        try:
            while stack.readers() == before:
                assert process.poll() is None
            yield lines
        finally:
            process.kill()
            lines.end()


def test_a_reader_sees_what_an_operator_moves_and_may_not_publish(stack: Stack) -> None:
    stack.revive(standbys=2)
    stack.until_warm(1)
    with subscriber(stack) as lines:
        answer = stack.compose("run", "--rm", "cli", "migrate", "node-0", "--yes")
        assert "node-0" in answer
        lines.until(r"migration\.committed\.v1")
        seen = [line.split()[2] for line in lines.text.splitlines()]
    order = ["proposed", "approved", "preparing", "committed"]
    told = [kind.split(".")[-2] for kind in seen]
    assert [fact for fact in told if fact in order] == order

    async def publish() -> None:
        lie = MachineLost(machine="node-1", reason="I say so")
        async with stack.bus("ops") as bus:
            await bus.publish(observe.new_event(job="gpt", source="/ops", payload=lie))

    with pytest.raises(PermissionDeniedError):
        asyncio.run(publish())
    ops = [
        sys.executable,
        "-m",
        "trainmover_console.cli",
        "migrate",
        "node-1",
        "--yes",
        "--job",
        "gpt",
    ]
    env = {**os.environ, **stack.keys("ops").environment(), "TRAINMOVER_NATS_URL": stack.url}
    refused = subprocess.run(ops, env=env, capture_output=True, text=True, timeout=60, check=False)
    assert refused.returncode == 3, refused
    assert "may not publish 'tm.v1.gpt.request.migrate'" in refused.stderr


def test_replicas_take_over_from_a_planner_and_a_detector_that_die(stack: Stack) -> None:
    """At once with a machine, so that nobody but the replicas can have it replaced."""
    stack.revive(standbys=2)
    stack.until_warm(1)
    leaders = {stack.leader(service) for service in ("planner", "detector")}
    now = stack.until(lambda now: now.step > 10, what="past step 10")
    leaver = now.membership.machine_of(2)  # type: ignore[union-attr]
    machine = stack.project + "-" + (leaver if leaver.startswith("standby") else f"{leaver}-1")
    view, one = lose(stack, leaver, "docker", "kill", *leaders, machine)
    assert one.pause_s is not None
    assert one.pause_s <= LEASE_S + MOST_LATE_S, one.as_data()
    assert leaders.isdisjoint({stack.leader(service) for service in ("planner", "detector")})
    print(f"pause when planner and detector die with the machine: {one.pause_s:.3f} s")
    step_on(stack, view)


def test_a_frozen_machine_is_replaced_and_stays_out(stack: Stack) -> None:
    stack.revive(standbys=2)
    view, one = lose_by(stack, "node-1", lambda: stack.pause("node-1"))
    assert one.pause_s is not None
    assert one.pause_s <= LEASE_S + MOST_LATE_S, one.as_data()
    step_on(stack, view)
    stack.compose("unpause", "node-1")
    assert_ended(stack, "node-1")
    after = step_on(stack, view, steps=20)
    assert after.membership == view.membership  # it came back and changed nothing


def test_a_machine_that_is_cut_off_is_replaced_and_stays_out(stack: Stack) -> None:
    stack.revive(standbys=2)
    network, container = f"{stack.project}_default", stack.container("node-3")
    cut = ("docker", "network", "disconnect", network, container)
    view, one = lose(stack, "node-3", *cut)
    assert one.pause_s is not None
    assert one.pause_s <= LEASE_S + MOST_LATE_S, one.as_data()
    step_on(stack, view)
    stack.run("docker", "network", "connect", "--alias", "node-3", network, container)
    assert_ended(stack, "node-3")
    after = step_on(stack, view, steps=20)
    assert after.membership == view.membership


def test_a_restart_of_the_bus_is_not_noticed_by_the_job(stack: Stack) -> None:
    before = stack.until(lambda now: now.step > 10, what="past step 10")
    stack.compose("restart", "-t", "2", "nats")
    after = step_on(stack, before, steps=20)
    assert after.membership == before.membership
    assert len(after.migrations) == len(before.migrations)
    members = {one.machine for one in after.membership.members}  # type: ignore[union-attr]
    # A busy test machine makes stragglers of its own.
    fresh = [
        one
        for id, one in after.incidents.items()
        if id not in before.incidents and one.kind != "straggler"
    ]
    assert not [one for one in fresh if one.machine in members]


def assert_ended(stack: Stack, service: str) -> None:
    """The machine was told that its slot is somebody else's, and left."""
    code = stack.run("docker", "wait", stack.container(service), timeout_s=60)
    assert code.strip() == "0", stack.compose("logs", "--tail", "20", service)


def test_no_bit_changed(stack: Stack, tmp_path: Path, request: pytest.FixtureRequest) -> None:
    """Every loss of every rank, through all of that, is the undisturbed run's."""
    view = stack.until(lambda now: now.step >= 30, what="at step 30")
    stack.compose("kill")
    disturbed = stack.metrics(tmp_path / "disturbed").steps
    alone: Stack = request.getfixturevalue("undisturbed")
    # A step more than is compared: a rank writes down what it committed in front of its next vote.
    alone.until(lambda now: now.step > view.step, what=f"past step {view.step}", timeout_s=600)
    alone.compose("kill")
    reference = alone.metrics(tmp_path / "undisturbed").steps

    compared = 0
    for rank in SLOTS:
        expected = {line.step: line.loss_hex for line in reference[rank] if line.step < view.step}
        assert expected.keys() == set(range(view.step)), f"rank {rank} of the undisturbed run"
        # Whoever computed it: also a machine that was cut off and could not know it was replaced.
        written = [line for line in disturbed[rank] if line.step < view.step]
        different = [line for line in written if line.loss_hex != expected[line.step]]
        assert not different, f"rank {rank}"
        # What its peers committed, and a machine was killed before it could write down.
        unwritten = expected.keys() - {line.step for line in written}
        assert len(unwritten) <= sum(one.slot == rank for one in view.migrations.values())
        compared += len(written)
    print(f"{compared} losses equal over {len(view.migrations)} recoveries")
