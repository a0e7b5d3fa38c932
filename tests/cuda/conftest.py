"""Programs on a GPU that all ranks share."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch
from tests.programs.drive import Drive, Left, Rules, remembered
from tests.support.ranks import Nursery

from trainmover.runtime import failpoints

needs_a_gpu = pytest.mark.skipif(
    not torch.cuda.is_available(),
    reason="no CUDA device; tests/unit/executor/test_staging.py tries the staging without one",
)

# Without the workspace, products of matrices may add in another order each time.
_ENVIRONMENT = {"DEVICE": "cuda", "CUBLAS_WORKSPACE_CONFIG": ":4096:8"}


@pytest.fixture(scope="session")
def rules(tmp_path_factory: pytest.TempPathFactory) -> Rules:
    return Rules(tmp_path_factory.mktemp("failpoints") / "rules.json")


def nursery_with(rules: Rules, *, preload: tuple[str, ...] = (), **more: str) -> Iterator[Nursery]:
    """A fork server with the rules and ``more`` in its environment."""
    environment = {failpoints.VARIABLE: str(rules.path), **_ENVIRONMENT, **more}
    nursery = Nursery(environment=environment, preload=preload)
    yield nursery
    nursery.close()


@pytest.fixture(scope="session")
def nursery(rules: Rules) -> Iterator[Nursery]:
    yield from nursery_with(rules)


@pytest.fixture
def drive(nursery: Nursery, rules: Rules, tmp_path: Path) -> Drive:
    return Drive(nursery, rules, tmp_path)


@pytest.fixture(scope="module")
def undisturbed(
    nursery: Nursery, rules: Rules, tmp_path_factory: pytest.TempPathFactory
) -> Callable[..., Left]:
    """What a program leaves behind without any disturbance; each one is run once a file."""
    return remembered(nursery, rules, tmp_path_factory)


def nccl_version() -> tuple[int, int]:
    """Of the library that is loaded: torch tells of the one that it was built with."""
    number = ctypes.c_int()
    ctypes.CDLL("libnccl.so.2").ncclGetVersion(ctypes.byref(number))
    return number.value // 10_000, number.value % 10_000 // 100
