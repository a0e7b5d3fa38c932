"""How a request is answered, the same on every bus: a reply always comes, even from a bug."""

from __future__ import annotations

from pydantic import ValidationError

from trainmover.bus.protocol import RequestHandler
from trainmover.commands import DepartureRequest, MigrateRequest, Refusal
from trainmover.errors import RequestRefusedError, TrainMoverError
from trainmover.tracing.observe import get_logger

__all__ = ["answer", "answer_departure"]

_log = get_logger(__name__)


async def answer_departure(handler: RequestHandler, machine: str, body: bytes) -> bytes:
    """Reply of ``handler`` to a machine that asks to be replaced: a move of it and of no other."""
    try:
        asked = DepartureRequest.model_validate_json(body)
    except ValidationError as error:
        refusal = Refusal(code="malformed", reason=str(error), next_step="")
        return refusal.model_dump_json().encode()
    move = MigrateRequest(
        machine=machine,
        reason=asked.reason,
        requested_by=f"machine {machine}",
        dry_run=asked.dry_run,
    )
    return await answer(handler, "migrate", move.model_dump_json().encode())


async def answer(handler: RequestHandler, verb: str, body: bytes) -> bytes:
    """Reply of ``handler``; whatever it raises becomes a ``Refusal``.

    Args:
        handler: The service's handler.
        verb: Last token of the request's subject.
        body: Request body.
    """
    try:
        return await handler(verb, body)
    except RequestRefusedError as error:
        refusal = Refusal(code=error.code, reason=str(error), next_step=error.next_step)
    except TrainMoverError as error:
        refusal = Refusal(code="failed", reason=str(error), next_step="")
    except Exception as error:  # noqa: BLE001 - the asker must not wait for a time-out
        _log.exception("request.handler_broke", verb=verb)
        refusal = Refusal(
            code="internal",
            reason=f"{type(error).__name__}: {error}",
            next_step="This is a bug: see the log of the service that answered.",
        )
    return refusal.model_dump_json().encode()
