"""The HTTP side of ``trainmover metrics``: ``/metrics`` and ``/healthz``."""

from __future__ import annotations

from prometheus_client import CollectorRegistry
from prometheus_client.exposition import choose_encoder
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import Route

from trainmover_console.view.live import Watched

__all__ = ["create"]


def create(registry: CollectorRegistry, watched: Watched) -> Starlette:
    """The application. Half-read history would look like a counter that starts over: 503 then."""

    async def numbers(request: Request) -> Response:
        if not watched.current:
            return PlainTextResponse("still reading the job's facts\n", status_code=503)
        encode, kind = choose_encoder(request.headers.get("accept", ""))
        return Response(encode(registry), headers={"Content-Type": kind})

    async def health(_request: Request) -> Response:
        well = watched.connected
        text = "the bus answers\n" if well else "the bus does not answer\n"
        return PlainTextResponse(text, status_code=200 if well else 503)

    return Starlette(routes=[Route("/metrics", numbers), Route("/healthz", health)])
