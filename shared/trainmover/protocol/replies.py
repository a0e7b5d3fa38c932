"""The planner's answer to a request, read back."""

from __future__ import annotations

from typing import Any, Final

from pydantic import TypeAdapter, ValidationError

from trainmover.commands import Refusal, RequestAccepted
from trainmover.errors import ProtocolError
from trainmover.protocol.requests import PolicyStatus

__all__ = ["parse", "parse_policy"]

_REPLY: Final[TypeAdapter[RequestAccepted | Refusal]] = TypeAdapter(RequestAccepted | Refusal)
_POLICY: Final[TypeAdapter[PolicyStatus | Refusal]] = TypeAdapter(PolicyStatus | Refusal)


def parse(raw: bytes) -> RequestAccepted | Refusal:
    """What the planner answered.

    Raises:
        ProtocolError: It does not parse.
    """
    accepted: RequestAccepted | Refusal = _parse(_REPLY, raw)
    return accepted


def parse_policy(raw: bytes) -> PolicyStatus | Refusal:
    """What the planner answered about its policy.

    Raises:
        ProtocolError: It does not parse.
    """
    status: PolicyStatus | Refusal = _parse(_POLICY, raw)
    return status


def _parse(reply: TypeAdapter[Any], raw: bytes) -> Any:
    try:
        return reply.validate_json(raw)
    except ValidationError as error:
        raise ProtocolError(
            f"the planner's answer does not parse ({error.error_count()} errors). Are planner and "
            "command of the same version?"
        ) from error
