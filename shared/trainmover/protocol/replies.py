"""What a planner, or the leader of a pool, answered to a request."""

from __future__ import annotations

from functools import lru_cache
from typing import Any, TypeVar

from pydantic import TypeAdapter, ValidationError

from trainmover.commands import Refusal, RequestAccepted
from trainmover.errors import ProtocolError
from trainmover.job.topology import Frozen

__all__ = ["parse", "parse_as"]

Answer = TypeVar("Answer", bound=Frozen)


def parse(raw: bytes) -> RequestAccepted | Refusal:
    """The answer to a request that something be done.

    Raises:
        ProtocolError: It does not parse.
    """
    return parse_as(RequestAccepted, raw)


def parse_as(kind: type[Answer], raw: bytes) -> Answer | Refusal:
    """The answer to a question.

    Args:
        kind: What answers it.
        raw: The reply.

    Raises:
        ProtocolError: It does not parse.
    """
    try:
        reply: Answer | Refusal = _reply(kind).validate_json(raw)
    except ValidationError as error:
        raise ProtocolError(
            f"the answer does not parse as {kind.__name__} ({error.error_count()} errors). Are "
            "both sides of the same version?"
        ) from error
    return reply


@lru_cache
def _reply(kind: type[Frozen]) -> TypeAdapter[Any]:
    return TypeAdapter(kind | Refusal)  # type: ignore[arg-type] # known when it runs
