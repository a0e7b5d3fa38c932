"""What a command that follows a migration says where that does not come to its end."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from types import SimpleNamespace
from typing import Any

import pytest
from tests.unit import factories as make

from trainmover.errors import ProtocolError
from trainmover.events.migration import JobFailed, JobFinished, MigrationProposed
from trainmover_console.cli import requests

_PROPOSED = MigrationProposed(
    migration="m-1", kind="planned", slot=0, leaver="w-0", cause="because", requested_by="ops"
)


class Bus:
    """Tells a few facts, and nothing more: as one that went with its job."""

    def __init__(self, *facts: Any) -> None:
        self._facts = facts

    async def events(self, job: str) -> AsyncIterator[Any]:
        del job
        for fact in self._facts:
            yield SimpleNamespace(payload=make.said(fact))
        await asyncio.Event().wait()


@pytest.mark.parametrize(
    ("facts", "told"),
    [
        ((_PROPOSED, JobFinished(epoch=1, step=9)), "was proposed when the job finished"),
        ((JobFinished(epoch=1, step=9),), "was not announced when the job finished"),
        (
            (_PROPOSED, JobFailed(code="program", reason="a bug", next_step="mend it")),
            "was proposed when the job failed",
        ),
    ],
)
async def test_a_job_that_is_over_is_not_waited_for(facts: tuple[Any, ...], told: str) -> None:
    with pytest.raises(ProtocolError, match=told):
        async with asyncio.timeout(5):
            await requests.follow(Bus(*facts), "job", "m-1", timeout_s=60)  # type: ignore[arg-type]
