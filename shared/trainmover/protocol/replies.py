"""The planner's answer to a request, read back."""

from __future__ import annotations

from typing import Final

from pydantic import TypeAdapter, ValidationError

from trainmover.commands import Refusal, RequestAccepted
from trainmover.errors import ProtocolError

__all__ = ["parse"]

_REPLY: Final[TypeAdapter[RequestAccepted | Refusal]] = TypeAdapter(RequestAccepted | Refusal)


def parse(raw: bytes) -> RequestAccepted | Refusal:
    """What the planner answered.

    Raises:
        ProtocolError: It does not parse.
    """
    try:
        return _REPLY.validate_json(raw)
    except ValidationError as error:
        raise ProtocolError(
            f"the planner's answer does not parse ({error.error_count()} errors). Are planner and "
            "command of the same version?"
        ) from error
