"""Logs and traces: structlog to stderr, OpenTelemetry spans whose context travels on the bus.

Nothing happens at import. ``configure`` is called once by a service's runner; without it logs go
to structlog's defaults and spans cost nothing.
"""

from __future__ import annotations

import atexit
import contextlib
import importlib
import logging
import os
import sys
import threading
import uuid
from collections.abc import Iterable, Iterator, Mapping, MutableMapping
from datetime import UTC, datetime, timedelta
from typing import Any, Final, Literal, Protocol, TextIO

import structlog
from opentelemetry import trace
from opentelemetry.context import Context
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor, SpanExporter
from opentelemetry.trace import Link, Span, SpanKind
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

from trainmover.errors import ConfigError
from trainmover.events.catalog import type_of
from trainmover.events.envelope import Envelope
from trainmover.job.topology import Frozen
from trainmover.tracing.timeline import Bar

__all__ = [
    "LogFormat",
    "TraceBook",
    "Traced",
    "configure",
    "continued",
    "current_trace",
    "extract",
    "get_logger",
    "message_template",
    "messaging_attributes",
    "new_event",
    "process",
    "publishing",
    "record",
    "span",
    "trace_headers",
]

LogFormat = Literal["auto", "json", "console"]

_EPOCH: Final = datetime.fromtimestamp(0, UTC)
_PLAIN: Final = (str, bool, int, float)
_FLUSH_S: Final = 2.0
_PROPAGATOR: Final = TraceContextTextMapPropagator()
_EXPORTER: Final = "opentelemetry.exporter.otlp.proto.http.trace_exporter"
_ENDPOINTS: Final = ("OTEL_EXPORTER_OTLP_ENDPOINT", "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT")


def configure(
    *,
    service: str,
    level: str = "info",
    format: LogFormat = "auto",  # noqa: A002
    stream: TextIO | None = None,
) -> None:
    """Set up logs and traces of this process; calling it again changes the logs only.

    Args:
        service: Name of the service ("planner"), put on every line and span.
        level: Least severe level that is shown: debug, info, warning, error.
        format: ``json`` one object per line, ``console`` for people, ``auto`` console when
            stderr is a terminal.
        stream: Where log lines go; ``sys.stderr`` when None.

    Raises:
        ConfigError: The level does not exist.
    """
    stream = stream or sys.stderr
    number = logging.getLevelNamesMapping().get(level.upper())
    if number is None:
        raise ConfigError(f"log level {level!r} does not exist: debug, info, warning or error")
    pretty = format == "console" or (format == "auto" and stream.isatty())
    renderer: structlog.typing.Processor = (
        structlog.dev.ConsoleRenderer(colors=stream.isatty())
        if pretty
        else structlog.processors.JSONRenderer()
    )
    exceptions: tuple[structlog.typing.Processor, ...] = (
        () if pretty else (structlog.processors.format_exc_info,)
    )
    structlog.configure(
        processors=[
            structlog.contextvars.merge_contextvars,
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="iso", utc=True),
            _add_trace,
            *exceptions,
            renderer,
        ],
        wrapper_class=structlog.make_filtering_bound_logger(number),
        logger_factory=structlog.PrintLoggerFactory(stream),
        cache_logger_on_first_use=False,
    )
    structlog.contextvars.bind_contextvars(service=service)
    _start_tracing(service)


def get_logger(name: str) -> structlog.stdlib.BoundLogger:
    """A logger: ``log.info("plan.sent", migration=..., epoch=...)``.

    Args:
        name: The module's ``__name__``, put on every line as ``module``.
    """
    logger: structlog.stdlib.BoundLogger = structlog.get_logger(module=name)
    return logger


def current_trace() -> dict[str, str]:
    """W3C headers of the current span; empty outside of a recorded trace."""
    carrier: dict[str, str] = {}
    _PROPAGATOR.inject(carrier)
    return carrier


def extract(headers: Mapping[str, str] | None) -> Context:
    """The trace context in ``headers``, whatever their capitalisation; empty when there is none."""
    return _PROPAGATOR.extract({name.lower(): value for name, value in (headers or {}).items()})


@contextlib.contextmanager
def span(
    name: str,
    *,
    kind: SpanKind = SpanKind.INTERNAL,
    parent: Mapping[str, str] | None = None,
    root: bool = False,
    **attributes: str | int | float | bool,
) -> Iterator[Span]:
    """A span around a block; errors that leave the block are recorded on it.

    Args:
        name: Low-cardinality name, never with an id in it.
        kind: The OpenTelemetry kind.
        parent: Trace headers to continue; the current span when omitted or empty.
        root: Without a parent begin a new trace, linked to the current span.
        attributes: Attributes, written with ``_`` where OpenTelemetry has ``.``.
    """
    context = extract(parent) if parent else None
    links = []
    if root and context is None:
        cause = trace.get_current_span().get_span_context()
        context, links = Context(), [Link(cause)] if cause.is_valid else []
    tracer = trace.get_tracer("trainmover")
    named = {key.replace("_", "."): value for key, value in attributes.items()}
    with tracer.start_as_current_span(
        name, context=context, kind=kind, attributes=named, links=links
    ) as one:
        yield one


class Traced(Protocol):
    """A message that came over the bus; see ``bus.protocol.Delivery``."""

    @property
    def payload(self) -> Any:
        """The decoded message."""

    @property
    def trace(self) -> Mapping[str, str]:
        """W3C trace headers of the sender, may be empty."""


@contextlib.contextmanager
def process(delivery: Traced, *, linked: bool = True) -> Iterator[Span]:
    """Continue the sender's trace while a message is handled.

    Args:
        delivery: What ``Bus.events`` or ``Bus.commands`` yielded.
        linked: Also link the producer's span, for viewers that group by link.
    """
    payload = delivery.payload
    headers = payload.trace if isinstance(payload, Envelope) else delivery.trace
    context = extract(headers)
    producer = trace.get_current_span(context).get_span_context()
    template = message_template(payload)
    with trace.get_tracer("trainmover").start_as_current_span(
        f"process {template}",
        context=context,
        kind=SpanKind.CONSUMER,
        attributes=messaging_attributes(template, "process"),
        links=[Link(producer)] if linked and producer.is_valid else [],
    ) as one:
        yield one


@contextlib.contextmanager
def continued(headers: Mapping[str, str] | None, name: str) -> Iterator[Span]:
    """A consumer span that continues the trace in ``headers`` (a request that came in)."""
    with trace.get_tracer("trainmover").start_as_current_span(
        name, context=extract(headers), kind=SpanKind.CONSUMER
    ) as one:
        yield one


@contextlib.contextmanager
def publishing(
    template: str, *, parent: Mapping[str, str] | None = None
) -> Iterator[dict[str, str]]:
    """A producer span around a publish; yields the trace headers that the message carries.

    Args:
        template: Subject without ids.
        parent: Trace headers to continue; the current span when omitted or empty.
    """
    context = extract(parent) if parent else None
    with trace.get_tracer("trainmover").start_as_current_span(
        f"publish {template}",
        context=context,
        kind=SpanKind.PRODUCER,
        attributes=messaging_attributes(template, "publish"),
    ):
        yield current_trace()


def record(bars: Iterable[Bar], *, parent: Mapping[str, str]) -> None:
    """Spans for what is over already, in the trace of ``parent``; none without one.

    Args:
        bars: What happened.
        parent: Trace headers, as an event carries them.
    """
    if not parent:
        return
    context = extract(parent)
    tracer = trace.get_tracer("trainmover")
    for bar in bars:
        details = {f"trainmover.{k}": v for k, v in bar.details.items() if isinstance(v, _PLAIN)}
        began_ns = (bar.start - _EPOCH) // timedelta(microseconds=1) * 1000
        one = tracer.start_span(
            bar.name,
            context=context,
            start_time=began_ns,
            attributes={"trainmover.who": bar.who, "trainmover.lane": bar.lane, **details},
        )
        one.end(end_time=began_ns + round(bar.seconds * 1e9))


class TraceBook:
    """Traces of what goes on for a while, by its id; the oldest are forgotten.

    Args:
        limit: How many are kept.
    """

    def __init__(self, *, limit: int = 256) -> None:
        self._limit = limit
        self._traces: dict[str, Mapping[str, str]] = {}

    def of(self, id: str | None) -> Mapping[str, str]:
        """Trace headers, empty when there are none."""
        return self._traces.get(id or "", {})

    def keep(self, id: str | None, trace: Mapping[str, str]) -> None:
        """Remember the first trace of ``id``."""
        if id and trace and id not in self._traces:
            self._traces[id] = trace
            while len(self._traces) > self._limit:
                del self._traces[next(iter(self._traces))]


def trace_headers(headers: Mapping[str, str] | None) -> dict[str, str]:
    """The W3C trace headers among ``headers``, in lower case."""
    lower = {name.lower(): value for name, value in (headers or {}).items()}
    return {name: lower[name] for name in ("traceparent", "tracestate") if lower.get(name)}


def message_template(payload: object) -> str:
    """Where a message of this kind travels, without any id: span and metric names use it."""
    if isinstance(payload, Envelope):
        return type_of(payload.payload).template
    return "tm.v1.{job}.cmd.{machine}"


def messaging_attributes(template: str, operation: str) -> dict[str, str]:
    """Attributes of the OpenTelemetry messaging conventions."""
    return {
        "messaging.system": "nats",
        "messaging.operation.type": "send" if operation == "publish" else operation,
        "messaging.operation.name": operation,
        "messaging.destination.template": template,
    }


def new_event(*, job: str, source: str, payload: Frozen, id: str | None = None) -> Envelope:
    """An envelope said now, in the current trace.

    Args:
        job: The job it is about.
        source: Who says it, for example ``/planner``.
        payload: The event model.
        id: A stable id when the same fact may be said twice (a retry after a crash); random when
            omitted.
    """
    return Envelope(
        id=id or str(uuid.uuid4()),
        source=source,
        job=job,
        time=datetime.now(UTC),
        payload=payload,
        trace=current_trace(),
    )


class _Flush:
    """Sends what a provider still holds when the process ends; gives up after two seconds.

    The SDK does not keep to the limit it is given while a collector that is down is retried, so a
    thread of its own sends. It waits for the end from the beginning: since Python 3.12 an
    interpreter that ends starts none.
    """

    def __init__(self, provider: TracerProvider) -> None:
        self._provider = provider
        self._ends, self._thread = self._start()

    def finish(self) -> None:
        if not self._thread.is_alive():  # a forked process has no threads
            self._ends, self._thread = self._start()
        self._ends.set()
        self._thread.join(_FLUSH_S)

    def _start(self) -> tuple[threading.Event, threading.Thread]:
        ends = threading.Event()
        thread = threading.Thread(target=self._run, args=(ends,), name="tm-flush", daemon=True)
        thread.start()
        return ends, thread

    def _run(self, ends: threading.Event) -> None:
        ends.wait()
        self._provider.force_flush()


def _add_trace(
    _logger: Any, _method: str, event: MutableMapping[str, Any]
) -> MutableMapping[str, Any]:
    context = trace.get_current_span().get_span_context()
    if context.is_valid:
        event["trace_id"] = trace.format_trace_id(context.trace_id)
        event["span_id"] = trace.format_span_id(context.span_id)
    return event


def _start_tracing(service: str) -> None:
    if isinstance(trace.get_tracer_provider(), TracerProvider):
        return  # the process (or a test) has its own already
    resource = Resource.create({"service.name": f"trainmover-{service}"})
    provider = TracerProvider(resource=resource, shutdown_on_exit=False)
    exporter = _exporter()
    if exporter is not None:
        provider.add_span_processor(BatchSpanProcessor(exporter))
        atexit.register(_Flush(provider).finish)
    trace.set_tracer_provider(provider)


def _exporter() -> SpanExporter | None:
    """The OTLP exporter, where it was asked for by the standard variables and is installed."""
    if not any(os.environ.get(name) for name in _ENDPOINTS):
        return None
    try:
        module = importlib.import_module(_EXPORTER)
    except ModuleNotFoundError:
        get_logger(__name__).warning(
            "traces.no_exporter", next_step="pip install 'trainmover[otel]'"
        )
        return None
    exporter: SpanExporter = module.OTLPSpanExporter()
    return exporter
