"""Stacks on a real engine, and the images they are made of."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from tests.support.compose import UNPACED, Stack, why_no_engine


@pytest.fixture(scope="session")
def images() -> None:
    """Build the images; where no engine is there, say why and skip."""
    if (lacking := why_no_engine()) is not None:
        pytest.skip(f"{lacking}; docs/howto/compose.md says how to run these tests")
    Stack().compose("build", timeout_s=900)


@pytest.fixture(scope="module")
def stack(images: None) -> Iterator[Stack]:
    """A job that trains, with one standby."""
    one = Stack()
    try:
        one.up(standbys=1)
        yield one
    finally:
        one.close()


@pytest.fixture
def undisturbed(images: None) -> Iterator[Stack]:
    """The same job, to be left alone, as fast as it can."""
    one = Stack()
    one.env["TRAINMOVER_PROGRAM"] = UNPACED
    try:
        one.up(standbys=0)
        yield one
    finally:
        one.close()
