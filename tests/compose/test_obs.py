"""Profiles ``dashboard`` and ``obs``: they look with a key that can change nothing."""

from __future__ import annotations

import time
from collections.abc import Iterator

import httpx
import pytest
from tests.support.compose import Stack
from tests.support.ports import free_port

pytestmark = [pytest.mark.job, pytest.mark.timeout(900)]

READ = (
    "import urllib.request as r; print(r.urlopen('http://127.0.0.1:9478/metrics').read().decode())"
)


@pytest.fixture(scope="module")
def looking(images: None) -> Iterator[tuple[Stack, str]]:
    """A bus and what looks at it; nobody trains."""
    port = free_port()
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("DASHBOARD_PORT", str(port))
        stack = Stack()
    try:
        services = ("keys", "nats", "setup", "metrics", "dashboard")
        stack.compose("--profile", "obs", "up", "-d", *services, timeout_s=180)
        yield stack, f"http://127.0.0.1:{port}"
    finally:
        stack.compose("--profile", "obs", "down", "-v", "--timeout", "3", timeout_s=120)
        stack.close()


def until_it_answers(url: str, *, timeout_s: float = 90) -> httpx.Response:
    deadline = time.monotonic() + timeout_s
    while True:
        try:
            answer = httpx.get(f"{url}/healthz", timeout=5)
            if answer.status_code == 200:
                return answer
        except httpx.TransportError:
            pass
        assert time.monotonic() < deadline, f"nobody answers at {url}"
        time.sleep(0.5)


def numbers_of(stack: Stack, *, timeout_s: float = 90) -> str:
    """What ``metrics`` says, once it answers: each service starts in its own time."""
    deadline = time.monotonic() + timeout_s
    while not (text := stack.compose("exec", "-T", "metrics", "python", "-c", READ, check=False)):
        assert time.monotonic() < deadline, stack.compose("logs", "metrics")
    return text


def test_the_page_is_there_and_cannot_act(looking: tuple[Stack, str]) -> None:
    _, url = looking
    assert until_it_answers(url).text == "the bus answers\n"
    assert httpx.get(f"{url}/api/job").json()["job"] == "gpt"
    refused = httpx.post(f"{url}/api/migrations/m-1/approve")
    assert refused.json()["code"] == "read_only"


def test_there_are_numbers_to_scrape(looking: tuple[Stack, str]) -> None:
    stack, url = looking
    until_it_answers(url)
    text = numbers_of(stack)
    assert 'trainmover_bus_up{training_job="gpt"} 1.0' in text
    assert 'trainmover_job_state{is="forming",training_job="gpt"} 1.0' in text
