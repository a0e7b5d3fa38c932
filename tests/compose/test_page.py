"""What docs/howto/compose.md has beside the story of ``test_compose``: profiles, a cluster."""

from __future__ import annotations

import subprocess
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.docs.pages import fences
from tests.support.compose import ROOT, SLOTS, Stack
from tests.support.lines import Lines
from tests.support.ports import free_port

pytestmark = [pytest.mark.job, pytest.mark.walk, pytest.mark.timeout(900)]

PAGE = ROOT / "docs" / "howto" / "compose.md"
CLUSTER = ("-f", "docker-compose.yml", "-f", "deploy/compose.cluster.yml")


@pytest.fixture
def own(images: None) -> Iterator[Stack]:
    """A stack of the test's own."""
    one = Stack()
    try:
        yield one
    finally:
        one.close()


def test_what_else_the_page_has(stack: Stack) -> None:
    view = stack.until(lambda now: now.step > 20, what="past step 20")
    assert "step" in stack.compose("logs", "node-0")
    stack.compose("run", "--rm", "cli", "migration", "ls")
    with subprocess.Popen(
        ["docker", "compose", "run", "--rm", "-T", "cli", "event", "tail", "--from-start"],
        cwd=ROOT,
        env=stack.env,
        stdout=subprocess.PIPE,
        text=True,
    ) as tail:
        lines = Lines(tail.stdout, what="event tail")
        lines.until(r"job\.formed")
        tail.terminate()
        lines.end()

    stack.env["TRAINMOVER_STANDBYS"] = "32"
    assert "keys" in stack.compose("up", "keys", "--exit-code-from", "keys", "--no-deps")
    stack.compose("kill", "-s", "HUP", "nats")
    stack.up(standbys=2)
    stack.until_warm(2)

    stack.env["DASHBOARD_PORT"] = str(free_port())
    stack.compose("--profile", "dashboard", "up", "-d", "--wait", "--no-recreate", "dashboard")
    with urllib.request.urlopen(f"http://127.0.0.1:{stack.env['DASHBOARD_PORT']}/") as page:
        assert b"gpt" in page.read()
    after = stack.until(lambda now: now.step > view.step, what=f"past step {view.step}")
    assert after.membership == view.membership


def test_a_program_of_your_own(own: Stack, tmp_path: Path) -> None:
    """With the override that the page shows."""
    (override,) = (text for language, text in fences(PAGE) if language == "yaml")
    mounted = tmp_path / "override.yml"
    mounted.write_text(override.replace("./examples", str(ROOT / "examples")))
    own.files = ("-f", "docker-compose.yml", "-f", str(mounted))
    own.env |= {"TRAINMOVER_JOB": "mine", "TRAINMOVER_PROGRAM": "-- /src/train_gpt.py --steps 200"}
    own.up(standbys=0)
    own.until(lambda now: now.state == "finished", what="finished", timeout_s=300)
    own.compose("down")
    own.compose("down", "-v")


def test_a_bus_of_three_loses_one(own: Stack) -> None:
    own.files = CLUSTER
    own.up(standbys=1)
    before = own.until_warm(1)
    own.compose("kill", "nats-2")
    own.compose("kill", "node-2")
    after = own.until(
        lambda now: any(one.state == "committed" for one in now.migrations.values()),
        what="recovered with a bus of two",
    )
    assert after.step >= before.step
    assert [one.slot for one in after.migrations.values()] == [SLOTS[2]]
