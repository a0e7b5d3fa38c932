"""How a request is answered, the same on every bus: a reply always comes, even from a bug."""

from __future__ import annotations

from trainmover.bus.protocol import RequestHandler
from trainmover.commands import Refusal
from trainmover.errors import RequestRefusedError, TrainMoverError
from trainmover.observe import get_logger

__all__ = ["answer"]

_log = get_logger(__name__)


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
