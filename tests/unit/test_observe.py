"""Logs carry the trace, and the trace travels with messages."""

from __future__ import annotations

import itertools
import json
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import aclosing
from datetime import UTC, datetime

import pytest
import structlog
from opentelemetry import trace
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import SpanKind

from trainmover.bus.memory.bus import MemoryBus
from trainmover.bus.nats.bus import NatsBus
from trainmover.commands import MigrateRequest, Stop
from trainmover.errors import ConfigError
from trainmover.events.machine import MachineLost
from trainmover.tracing import observe
from trainmover.tracing.timeline import Bar

TRACEPARENT = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
_EXPORTER = InMemorySpanExporter()


@pytest.fixture
def spans() -> Iterator[InMemorySpanExporter]:
    provider = trace.get_tracer_provider()
    if not isinstance(provider, TracerProvider):  # a process has one for good
        provider = TracerProvider()
        trace.set_tracer_provider(provider)
    if _EXPORTER not in getattr(provider, "_test_exporters", ()):
        provider.add_span_processor(SimpleSpanProcessor(_EXPORTER))
        provider._test_exporters = (_EXPORTER,)  # type: ignore[attr-defined]
    _EXPORTER.clear()
    yield _EXPORTER
    _EXPORTER.clear()


@pytest.fixture
def stderr(capsys: pytest.CaptureFixture[str]) -> Iterator[Callable[[], str]]:
    before = structlog.get_config()
    yield lambda: capsys.readouterr().err
    structlog.configure(**before)
    structlog.contextvars.clear_contextvars()


def named(spans: InMemorySpanExporter, name: str) -> ReadableSpan:
    [found] = [span for span in spans.get_finished_spans() if span.name == name]
    return found


class TestLogs:
    def test_json_lines_name_service_module_and_trace(self, stderr, spans):
        observe.configure(service="planner", format="json")
        log = observe.get_logger("trainmover.somewhere")
        with observe.span("inside") as span:
            log.info("plan.sent", epoch=2)
        log.info("outside")
        inside, outside = map(json.loads, stderr().splitlines())
        assert inside["event"] == "plan.sent"
        assert inside["epoch"] == 2
        assert inside["service"] == "planner"
        assert inside["module"] == "trainmover.somewhere"
        assert inside["level"] == "info"
        assert inside["trace_id"] == f"{span.get_span_context().trace_id:032x}"
        assert inside["span_id"] == f"{span.get_span_context().span_id:016x}"
        assert "trace_id" not in outside

    def test_exceptions_stay_on_one_line(self, stderr):
        observe.configure(service="x", format="json")
        try:
            int("seven")
        except ValueError:
            observe.get_logger("m").exception("went.wrong")
        [line] = stderr().splitlines()
        assert "ValueError: invalid literal" in json.loads(line)["exception"]

    def test_auto_is_json_where_nobody_looks(self, stderr):
        observe.configure(service="x")
        observe.get_logger("m").info("hello")
        assert json.loads(stderr())["event"] == "hello"

    def test_console_is_for_people(self, stderr):
        observe.configure(service="x", format="console")
        observe.get_logger("m").info("hello")
        text = stderr()
        assert "hello" in text
        assert not text.startswith("{")

    def test_the_level_holds(self, stderr):
        observe.configure(service="x", level="warning", format="json")
        observe.get_logger("m").info("quiet")
        observe.get_logger("m").warning("loud")
        assert [json.loads(line)["event"] for line in stderr().splitlines()] == ["loud"]

    def test_an_unknown_level_is_refused(self):
        with pytest.raises(ConfigError, match="'chatty'"):
            observe.configure(service="x", level="chatty")

    def test_importing_starts_nothing(self):
        program = (
            "import threading\n"
            "import trainmover.bus.nats.bus, trainmover.runtime.service\n"
            "import trainmover.tracing.observe\n"
            "from opentelemetry import trace\n"
            "from opentelemetry.sdk.trace import TracerProvider\n"
            "assert threading.active_count() == 1\n"
            "assert not isinstance(trace.get_tracer_provider(), TracerProvider)\n"
        )
        subprocess.run([sys.executable, "-W", "error", "-c", program], check=True, timeout=60)


class TestTraces:
    def test_an_event_is_born_in_the_current_trace(self, spans):
        payload = MachineLost(machine="w", reason="r")
        with observe.span("root") as root:
            event = observe.new_event(job="demo", source="/planner", payload=payload)
        assert f"{root.get_span_context().trace_id:032x}" in event.trace["traceparent"]
        assert event.time.utcoffset() is not None
        later = observe.new_event(job="demo", source="/planner", payload=payload)
        assert later.trace == {}
        assert later.id != event.id

    @pytest.mark.parametrize("kind", ["memory", "nats"])
    async def test_one_trace_from_fact_to_command(self, spans, kind, shared_server):
        job = f"trace-{kind}"
        bus = MemoryBus() if kind == "memory" else NatsBus(shared_server.url)
        async with bus:
            await bus.setup()
            payload = MachineLost(machine="w", reason="r")
            with observe.span("incident"):
                event = observe.new_event(job=job, source="/detector", payload=payload)
            await bus.publish(event)
            async with aclosing(bus.events(job)) as facts:
                fact = await anext(facts)
                with observe.process(fact):
                    await bus.send_command(job, "w", Stop(reason="r"), id="1")
            async with aclosing(bus.commands(job, "w")) as queue:
                command = await anext(queue)
                with observe.process(command), observe.span("effect"):
                    await command.ack()
        chain = [
            "incident",
            "publish tm.v1.{job}.machine.lost",
            "process tm.v1.{job}.machine.lost",
            "publish tm.v1.{job}.cmd.{machine}",
            "process tm.v1.{job}.cmd.{machine}",
            "effect",
        ]
        found = [named(spans, name) for name in chain]
        for parent, child in itertools.pairwise(found):
            assert child.parent is not None
            assert child.parent.span_id == parent.context.span_id
        assert len({span.context.trace_id for span in found}) == 1
        assert [span.kind for span in found[1:3]] == [SpanKind.PRODUCER, SpanKind.CONSUMER]
        assert found[2].links[0].context.span_id == found[1].context.span_id
        assert found[2].attributes["messaging.system"] == "nats"
        assert job not in "".join(chain)

    @pytest.mark.parametrize("kind", ["memory", "nats"])
    async def test_requests_carry_the_trace_too(self, spans, kind, shared_server):
        seen: list[int] = []

        async def handler(verb: str, body: bytes) -> bytes:
            seen.append(trace.get_current_span().get_span_context().trace_id)
            return b""

        bus = MemoryBus() if kind == "memory" else NatsBus(shared_server.url)
        async with bus:
            await bus.serve("traced", handler)
            with observe.span("operator") as root:
                await bus.request("traced", "migrate", MigrateRequest(machine="w"))
        assert seen == [root.get_span_context().trace_id]

    def test_a_root_begins_a_trace_and_is_linked_to_its_cause(self, spans):
        with observe.span("cause") as cause, observe.span("incident", root=True) as root:
            pass
        assert root.get_span_context().trace_id != cause.get_span_context().trace_id
        found = named(spans, "incident")
        assert found.parent is None
        assert found.links[0].context.span_id == cause.get_span_context().span_id
        with observe.span("later", parent={"traceparent": TRACEPARENT}, root=True) as later:
            assert later.get_span_context().trace_id == int(TRACEPARENT.split("-")[1], 16)

    def test_what_is_over_is_recorded_with_its_own_times(self, spans):
        end = datetime(2026, 1, 1, 12, 0, tzinfo=UTC)
        bar = Bar("w-1", "rank 0", "pause", end, 0.25, {"step": 7, "nested": {"no": 1}})
        observe.record([bar], parent={})
        observe.record([bar], parent={"traceparent": TRACEPARENT})
        found = named(spans, "pause")
        assert found.parent is not None
        assert f"{found.parent.span_id:016x}" == TRACEPARENT.split("-")[2]
        assert found.end_time == int(end.timestamp() * 1e9)
        assert found.end_time - found.start_time == 250_000_000
        assert found.attributes["trainmover.who"] == "w-1"
        assert found.attributes["trainmover.step"] == 7
        assert "trainmover.nested" not in found.attributes

    def test_the_first_trace_of_something_is_kept_and_the_oldest_forgotten(self):
        table = observe.TraceBook(limit=2)
        for name in ("a", "b", "a", "c"):
            table.keep(name, {"traceparent": f"{name}{len(table.of(name))}"})
        table.keep(None, {"traceparent": "x"})
        table.keep("d", {})
        assert (table.of("a"), table.of("b"), table.of("c")) == (
            {},
            {"traceparent": "b0"},
            {"traceparent": "c0"},
        )
        assert table.of("d") == table.of(None) == {}

    def test_headers_are_read_in_any_case(self):
        header = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
        context = trace.get_current_span(observe.extract({"TraceParent": header}))
        assert context.get_span_context().span_id == 0xB7AD6B7169203331

    def test_an_endpoint_without_the_exporter_is_told(self, monkeypatch, stderr):
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", "http://localhost:4318")
        monkeypatch.setitem(sys.modules, observe._EXPORTER, None)
        observe.configure(service="x", format="json")
        assert observe._exporter() is None
        assert "trainmover[otel]" in stderr()
