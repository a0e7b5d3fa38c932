"""What a page may ask for: approve, reject, abort; with a token, and never by accident."""

from __future__ import annotations

import hmac
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from pydantic import Field, ValidationError

from trainmover.bus.protocol import Bus
from trainmover.commands import Refusal, RequestAccepted
from trainmover.errors import BusError, ConfigError, InvalidIdError, PermissionDeniedError
from trainmover.job.topology import Frozen
from trainmover.protocol.replies import parse
from trainmover.protocol.requests import AbortRequest, ApproveRequest, RejectRequest
from trainmover.subjects import validate_id

__all__ = ["VERBS", "Reason", "Token", "act"]

_LEAST: Final = 16
VERBS: Final[Mapping[str, Any]] = {
    "approve": ApproveRequest,
    "reject": RejectRequest,
    "abort": AbortRequest,
}
"""The request that each verb becomes."""


class Reason(Frozen):
    """The body of such a request."""

    reason: str = Field(default="by the dashboard", max_length=500)
    by: str = Field(default="dashboard", max_length=100)


class Token:
    """The secret that callers who act have to know."""

    def __init__(self, text: str) -> None:
        if len(text) < _LEAST:
            raise ConfigError(
                f"the dashboard's token has {len(text)} characters; {_LEAST} are the least. "
                "Make one: head -c 18 /dev/urandom | base64"
            )
        self._text = text.encode()

    @classmethod
    def of_file(cls, path: Path) -> Token:
        """The file's first line.

        Raises:
            ConfigError: It cannot be read, or holds too little.
        """
        try:
            return cls(path.read_text(encoding="utf-8").strip())
        except OSError as error:
            raise ConfigError(f"cannot read --token-file {path}: {error.strerror}") from error

    def admits(self, header: str) -> bool:
        """Whether an ``Authorization`` header proves that the caller knows it."""
        scheme, _, given = header.partition(" ")
        return scheme.lower() == "bearer" and hmac.compare_digest(given.encode(), self._text)


async def act(bus: Bus, job: str, verb: str, migration: str, body: bytes) -> tuple[int, Frozen]:
    """Ask the planner; the HTTP status and the answer.

    Args:
        bus: Connected as a user who may ask.
        job: Job name.
        verb: One of ``VERBS``.
        migration: Id.
        body: A ``Reason`` as JSON, or nothing.
    """
    try:
        why = Reason.model_validate_json(body or b"{}")
        validate_id(migration, what="migration")
    except (ValidationError, InvalidIdError) as error:
        return 400, Refusal(
            code="malformed",
            reason=str(error).splitlines()[0],
            next_step='Send {"reason": "...", "by": "..."}.',
        )
    request = VERBS[verb](migration=migration, reason=why.reason, requested_by=why.by)
    try:
        answer = parse(await bus.request(job, verb, request, timeout_s=5.0))
    except PermissionDeniedError as error:
        return 403, Refusal(
            code="forbidden",
            reason=str(error),
            next_step="Start the dashboard with the operator's key: --operator-nkey.",
        )
    except BusError as error:
        return 503, Refusal(
            code="unreachable",
            reason=str(error),
            next_step="Training goes on. Look whether the planner runs: trainmover doctor.",
        )
    return (200 if isinstance(answer, RequestAccepted) else 409), answer
