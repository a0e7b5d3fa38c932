"""The dashboard's HTTP side.

======================================  ===========================================================
``GET /``                               the page, whole: styles and script are in it
``GET /api/job``                        the job now, JSON
``GET /api/stream``                     the same as server-sent events, whenever it changed
``GET /api/migrations/{id}``            one migration told in full, JSON
``GET /migrations/{id}``                the same as a page
``POST /api/migrations/{id}/{verb}``    approve, reject, abort; ``Authorization: Bearer TOKEN``
``GET /healthz``                        200 while the bus answers, else 503
======================================  ===========================================================
"""

from __future__ import annotations

import secrets
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from functools import cache
from importlib.resources import files
from typing import Final

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import (
    HTMLResponse,
    JSONResponse,
    PlainTextResponse,
    Response,
    StreamingResponse,
)
from starlette.routing import Route

from trainmover.bus.protocol import Bus
from trainmover.commands import Refusal
from trainmover.errors import BusError, ConfigError
from trainmover.events.envelope import Envelope
from trainmover.job.topology import Frozen
from trainmover_console.dashboard.acts import VERBS, Token, act
from trainmover_console.dashboard.feed import Feed
from trainmover_console.report.page import render
from trainmover_console.report.report import Report

__all__ = ["History", "create"]

_MOST_BODY: Final = 8192
_HEADERS: Final = {
    "Cache-Control": "no-store",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
}

History = Callable[[], Awaitable[Sequence[Envelope]]]
"""Every fact of the job until now."""


def create(feed: Feed, *, history: History, acting: Bus | None, token: Token | None) -> Starlette:
    """The application.

    Args:
        feed: What it shows.
        history: Reads the facts that a report is made of.
        acting: A bus whose user may ask the planner; None makes it a dashboard to look at.
        token: What callers who act have to know; None for nobody.
    """
    app = Starlette(
        routes=[
            Route("/", _page),
            Route("/healthz", _health),
            Route("/api/job", _job),
            Route("/api/stream", _stream),
            Route("/api/migrations/{id}", _report_data),
            Route("/api/migrations/{id}/{verb}", _act, methods=["POST"]),
            Route("/migrations/{id}", _report_page),
        ]
    )
    app.state.feed = feed
    app.state.history = history
    app.state.acting = acting
    app.state.token = token
    return app


async def _page(request: Request) -> Response:
    state = request.app.state
    nonce = secrets.token_urlsafe(16)
    page = _assets()
    for name, value in (
        ("%NONCE%", nonce),
        ("%JOB%", state.feed.watched.job),
        ("%ACTS%", "yes" if state.token is not None else "no"),
    ):
        page = page.replace(name, value)
    policy = (
        f"default-src 'none'; style-src 'nonce-{nonce}'; script-src 'nonce-{nonce}'; "
        "connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    )
    return HTMLResponse(page, headers={**_HEADERS, "Content-Security-Policy": policy})


@cache
def _assets() -> str:
    """The page with its styles and script put in."""
    folder = files("trainmover_console.dashboard") / "assets"
    page, style, script = (
        (folder / name).read_text(encoding="utf-8") for name in ("page.html", "page.css", "page.js")
    )
    return page.replace("%STYLE%", style).replace("%SCRIPT%", script)


async def _health(request: Request) -> Response:
    connected = request.app.state.feed.watched.connected
    text = "the bus answers\n" if connected else "the bus does not answer\n"
    return PlainTextResponse(text, status_code=200 if connected else 503)


async def _job(request: Request) -> Response:
    state = request.app.state.feed.state()
    return Response(state, media_type="application/json", headers=_HEADERS)


async def _stream(request: Request) -> Response:
    feed: Feed = request.app.state.feed

    async def events() -> AsyncIterator[str]:
        yield "retry: 1000\n\n"
        async for state in feed.states():
            yield f"event: job\ndata: {state}\n\n"

    headers = {**_HEADERS, "X-Accel-Buffering": "no"}
    return StreamingResponse(events(), media_type="text/event-stream", headers=headers)


async def _report_data(request: Request) -> Response:
    found = await _report(request)
    if isinstance(found, Response):
        return found
    return JSONResponse(found.as_data(), headers=_HEADERS)


async def _report_page(request: Request) -> Response:
    found = await _report(request)
    if isinstance(found, Response):
        return found
    policy = "default-src 'none'; style-src 'unsafe-inline'; frame-ancestors 'none'"
    headers = {**_HEADERS, "Content-Security-Policy": policy}
    return HTMLResponse(render(found), headers=headers)


async def _report(request: Request) -> Report | Response:
    state = request.app.state
    try:
        facts = await state.history()
        return Report.of(facts, request.path_params["id"], job=state.feed.watched.job)
    except ConfigError as error:
        return _refuse(404, "unknown_migration", str(error), "The page lists those that there are.")
    except BusError as error:
        return _refuse(503, "unreachable", str(error), "Try again when the bus answers.")


async def _act(request: Request) -> Response:
    """Every refusal says why and what next; whoever lacks the token learns nothing else."""
    state = request.app.state
    verb = request.path_params["verb"]
    if verb not in VERBS:
        return _refuse(404, "unknown_verb", f"{verb!r} is none of {', '.join(VERBS)}", "Use one.")
    if state.token is None or state.acting is None:
        step = "Start it with --token-file, or use the command line."
        return _refuse(403, "read_only", "This dashboard is one to look at.", step)
    if not state.token.admits(request.headers.get("authorization", "")):
        step = "Send the header 'Authorization: Bearer TOKEN'."
        return _refuse(401, "no_token", "Acting needs the dashboard's token.", step)
    body = b""
    async for part in request.stream():
        body += part
        if len(body) > _MOST_BODY:
            return _refuse(413, "malformed", f"over {_MOST_BODY} bytes", "Give a shorter reason.")
    job = state.feed.watched.job
    status, answer = await act(state.acting, job, verb, request.path_params["id"], body)
    return _answer(status, answer)


def _refuse(status: int, code: str, reason: str, next_step: str) -> Response:
    return _answer(status, Refusal(code=code, reason=reason, next_step=next_step))


def _answer(status: int, answer: Frozen) -> Response:
    return JSONResponse(answer.model_dump(mode="json"), status_code=status, headers=_HEADERS)
