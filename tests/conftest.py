"""Fixtures that several test folders share."""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterator
from pathlib import Path

import hypothesis
import pytest
import structlog
from tests.support.cluster import ClusterJob
from tests.support.ports import free_port

from trainmover.bus.embedded import EmbeddedServer
from trainmover.testing import running_server

hypothesis.settings.register_profile("any host", deadline=None)
hypothesis.settings.load_profile("any host")

_LONGEST = ("compose/test_compose.py", "e2e", "deploy", "chaos", "compose", "integration")
"""What takes minutes; of the two that build images, the second finds them built."""

_LONG = (*_LONGEST, "paper", "programs")
"""Folders that `make test` leaves out and `make test-all` has: jobs that take a minute each."""

_SHOWN = ("change_no_bit[counter]", "change_no_bit[epochs]", "change_no_bit[gan]")
"""Of these what a newcomer should see all the same: a crash and a move of real ranks."""


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """The longest files come first: what is left for the end can be shared out evenly."""

    def path(item: pytest.Item) -> str:
        return str(item.path.relative_to(Path(__file__).parent))

    def place(item: pytest.Item) -> int:
        return next(
            (i for i, one in enumerate(_LONGEST) if path(item).startswith(one)), len(_LONGEST)
        )

    items.sort(key=place)
    for item in items:
        if path(item).startswith(_LONG) and not item.name.endswith(_SHOWN):
            item.add_marker(pytest.mark.long)


@pytest.fixture(scope="session", autouse=True)
def _ctrl_c_reaches_children() -> None:
    """A shell starts background jobs with SIGINT ignored, and every child inherits that."""
    signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture(autouse=True)
def _logs_as_before() -> Iterator[None]:
    """Commands that a test calls in this process log to its captured stderr, and that closes."""
    yield
    structlog.reset_defaults()
    structlog.contextvars.clear_contextvars()


@pytest.fixture(scope="session")
def shared_server() -> Iterator[EmbeddedServer]:
    """One server for all tests that do not disturb it; give each test its own job name."""
    with running_server() as server:
        yield server


@pytest.fixture
def nats_server() -> Iterator[EmbeddedServer]:
    """A server of the test's own, free to be killed and to come back where it was."""
    with EmbeddedServer(port=free_port()) as server:
        yield server


@pytest.fixture
def nats_url(nats_server: EmbeddedServer) -> str:
    """Address of an empty server of the test's own."""
    return nats_server.url


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Callable[..., ClusterJob]]:
    """Starts jobs under ``trainmover run``, which end with the test."""
    jobs: list[ClusterJob] = []

    def start(*arguments: str) -> ClusterJob:
        jobs.append(ClusterJob(tmp_path / f"home-{len(jobs)}", *arguments))
        return jobs[-1]

    yield start
    for job in jobs:
        job.close()


@pytest.fixture
def undisturbed(cluster: Callable[..., ClusterJob]) -> Callable[..., ClusterJob]:
    """Runs a program to its end on so many ranks of one machine: bits know no machines."""

    def run(ranks: int, *program: str) -> ClusterJob:
        job = cluster("--nnodes", "1", "--nproc-per-node", str(ranks), *program)
        assert job.finish() == 0, job.output
        return job

    return run
