"""The planner's answer to a request, read back."""

from __future__ import annotations

from typing import Any, Final

from pydantic import TypeAdapter, ValidationError

from trainmover.commands import Refusal, RequestAccepted
from trainmover.errors import ProtocolError
from trainmover.protocol.requests import PolicyStatus, PoolStatus, StandbysStatus

__all__ = ["parse", "parse_policy", "parse_pool", "parse_standbys"]

_REPLY: Final[TypeAdapter[RequestAccepted | Refusal]] = TypeAdapter(RequestAccepted | Refusal)
_POLICY: Final[TypeAdapter[PolicyStatus | Refusal]] = TypeAdapter(PolicyStatus | Refusal)
_STANDBYS: Final[TypeAdapter[StandbysStatus | Refusal]] = TypeAdapter(StandbysStatus | Refusal)
_POOL: Final[TypeAdapter[PoolStatus | Refusal]] = TypeAdapter(PoolStatus | Refusal)


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


def parse_standbys(raw: bytes) -> StandbysStatus | Refusal:
    """What the planner answered about its standbys.

    Raises:
        ProtocolError: It does not parse.
    """
    status: StandbysStatus | Refusal = _parse(_STANDBYS, raw)
    return status


def parse_pool(raw: bytes) -> PoolStatus | Refusal:
    """What the leader of a pool answered.

    Raises:
        ProtocolError: It does not parse.
    """
    status: PoolStatus | Refusal = _parse(_POOL, raw)
    return status


def _parse(reply: TypeAdapter[Any], raw: bytes) -> Any:
    try:
        return reply.validate_json(raw)
    except ValidationError as error:
        raise ProtocolError(
            f"the planner's answer does not parse ({error.error_count()} errors). Are planner and "
            "command of the same version?"
        ) from error
