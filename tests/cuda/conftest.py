"""Programs on a GPU that all ranks share."""

from __future__ import annotations

import ctypes
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from tests.programs.drive import Rules
from tests.support.ranks import Nursery

from trainmover.runtime import failpoints

needs_a_gpu = pytest.mark.skipif(
    not torch.cuda.is_available(),
    reason="no CUDA device; tests/unit/executor/test_staging.py tries the staging without one",
)

DETERMINISTIC = {"CUBLAS_WORKSPACE_CONFIG": ":4096:8"}
"""Without it, products of matrices may add in another order each time."""


@pytest.fixture(scope="session")
def rules(tmp_path_factory: pytest.TempPathFactory) -> Rules:
    return Rules(tmp_path_factory.mktemp("failpoints") / "rules.json")


def nursery_with(rules: Rules, *, preload: tuple[str, ...] = (), **more: str) -> Iterator[Nursery]:
    """A fork server with the rules and ``more`` in its environment."""
    environment = {failpoints.VARIABLE: str(rules.path), **DETERMINISTIC, **more}
    nursery = Nursery(environment=environment, preload=preload)
    yield nursery
    nursery.close()


@pytest.fixture(scope="session")
def nursery(rules: Rules) -> Iterator[Nursery]:
    yield from nursery_with(rules)


def nccl_version() -> tuple[int, int]:
    """Of the library that is loaded: torch tells of the one that it was built with."""
    number = ctypes.c_int()
    ctypes.CDLL("libnccl.so.2").ncclGetVersion(ctypes.byref(number))
    return number.value // 10_000, number.value % 10_000 // 100


@pytest.fixture(scope="session")
def scripts() -> Path:
    return Path(__file__).parent / "scripts"
