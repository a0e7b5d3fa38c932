"""Programs that a user would bring, on real ranks."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from tests.programs.drive import Drive, Left, Rules, remembered
from tests.support.ranks import Nursery

from trainmover.runtime import failpoints


@pytest.fixture(scope="session")
def rules(tmp_path_factory: pytest.TempPathFactory) -> Rules:
    return Rules(tmp_path_factory.mktemp("failpoints") / "rules.json")


@pytest.fixture(scope="session")
def nursery(rules: Rules) -> Iterator[Nursery]:
    nursery = Nursery(environment={failpoints.VARIABLE: str(rules.path)})
    yield nursery
    nursery.close()


@pytest.fixture
def drive(nursery: Nursery, rules: Rules, tmp_path: Path) -> Drive:
    return Drive(nursery, rules, tmp_path)


@pytest.fixture(scope="session")
def undisturbed(
    nursery: Nursery, rules: Rules, tmp_path_factory: pytest.TempPathFactory
) -> Callable[..., Left]:
    """What a program leaves behind without any disturbance; each one is run once a session."""
    return remembered(nursery, rules, tmp_path_factory)
