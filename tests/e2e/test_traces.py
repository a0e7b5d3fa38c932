"""One trace per incident through every service, exported by the standard variables, and a file."""

from __future__ import annotations

import gzip
import json
import signal
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from tests.e2e.conftest import WORKLOADS
from tests.support.cluster import ClusterJob

pytestmark = [pytest.mark.job, pytest.mark.timeout(400)]

StartJob = Callable[..., ClusterJob]


@dataclass(frozen=True)
class Span:
    """What a receiver keeps of a span."""

    service: str
    name: str
    trace: str
    id: str
    parent: str
    start_ns: int
    end_ns: int
    attributes: dict[str, str]


class Collector:
    """A little OTLP/HTTP receiver."""

    def __init__(self) -> None:
        self.spans: list[Span] = []
        self._changed = threading.Condition()
        collector = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["content-length"]))
                if self.headers.get("content-encoding") == "gzip":
                    body = gzip.decompress(body)
                assert self.path == "/v1/traces"
                collector._take(ExportTraceServiceRequest.FromString(body))
                self.send_response(200)
                self.send_header("content-type", "application/x-protobuf")
                self.send_header("content-length", "0")
                self.end_headers()

            def log_message(self, *_: Any) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self._server.server_address[1]}"
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.05,))
        self._thread.start()

    def _take(self, request: Any) -> None:
        found = []
        for resource in request.resource_spans:
            about = {each.key: each.value.string_value for each in resource.resource.attributes}
            found += [
                Span(
                    service=about["service.name"],
                    name=span.name,
                    trace=span.trace_id.hex(),
                    id=span.span_id.hex(),
                    parent=span.parent_span_id.hex(),
                    start_ns=span.start_time_unix_nano,
                    end_ns=span.end_time_unix_nano,
                    attributes={each.key: each.value.string_value for each in span.attributes},
                )
                for scope in resource.scope_spans
                for span in scope.spans
            ]
        with self._changed:
            self.spans += found
            self._changed.notify_all()

    def until(self, trace: str, wanted: set[tuple[str, str]], *, timeout_s: float = 30) -> None:
        """Wait until a trace has these (service, name)."""
        deadline = time.monotonic() + timeout_s
        with self._changed:
            while missing := wanted - {(s.service, s.name) for s in self.of(trace)}:
                left = deadline - time.monotonic()
                assert left > 0, f"missing {missing}, have {sorted({s.name for s in self.spans})}"
                self._changed.wait(left)

    def of(self, trace: str) -> list[Span]:
        return [span for span in self.spans if span.trace == trace]

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()


@pytest.fixture
def collector(monkeypatch: pytest.MonkeyPatch) -> Iterator[Collector]:
    found = Collector()
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", found.url)
    monkeypatch.setenv("OTEL_BSP_SCHEDULE_DELAY", "200")
    yield found
    found.close()


def test_one_trace_from_the_first_suspicion_to_the_step_after(
    cluster: StartJob, collector: Collector, tmp_path: Path
) -> None:
    gate = tmp_path / "gate"
    job = cluster(
        *("--nnodes", "2:4", WORKLOADS, "ddp", "--steps", "1000000", "--pace", "0.03"),
        *("--hold-at", "20", "--gate", str(gate)),
    )
    job.until(r"job\.formed")
    job.wait_until_ready(2, standbys=2)
    moved = job.cli("migrate", "node-1", "--yes", "--no-wait")
    assert moved.returncode == 0, moved.stderr
    gate.touch()
    job.until(r"migration\.committed .*node-1 -> ")
    planned = json.loads(job.cli("migration", "show", "m-0001", "-o", "json").stdout)["trace_id"]
    agent, planner, detector = (f"trainmover-{name}" for name in ("agent", "planner", "detector"))
    collector.until(
        planned,
        {
            ("trainmover-cli", "publish tm.v1.{job}.request.migrate"),
            (planner, "planner.request"),
            (planner, "publish tm.v1.{job}.migration.approved"),
            (planner, "preparing"),
            (planner, "migration"),
            (planner, "publish tm.v1.{job}.cmd.{machine}"),
            (agent, "process tm.v1.{job}.cmd.{machine}"),
            (agent, "phase 1"),
            (agent, "phase 2: links"),
            (agent, "phase 2: state"),
            (agent, "committed"),
            (agent, "pause"),
        },
    )
    job.kill("node-0")
    job.until(r"migration\.committed .*node-0 -> ")

    file = tmp_path / "trace.json"
    shown = job.cli("migration", "show", "m-0002", "--trace", str(file), "-o", "json")
    assert shown.returncode == 0, shown.stderr
    recovery = json.loads(shown.stdout)
    failure = recovery["trace_id"]
    collector.until(
        failure,
        {
            (detector, "detector.incident"),
            (detector, "publish tm.v1.{job}.incident.opened"),
            (planner, "publish tm.v1.{job}.migration.proposed"),
            (planner, "switching"),
            (planner, "migration"),
            (agent, "process tm.v1.{job}.cmd.{machine}"),
            (agent, "phase 2: join"),  # the joiner's
            (agent, "committed"),
            (agent, "pause"),
            (detector, "publish tm.v1.{job}.incident.closed"),
        },
    )
    job.process.send_signal(signal.SIGINT)
    assert job.finish() == 130, job.output

    for trace, root in (
        (planned, "publish tm.v1.{job}.request.migrate"),
        (failure, "detector.incident"),
    ):
        spans = collector.of(trace)
        assert {span.name for span in spans if not span.parent} == {root}
        for span in spans:
            assert span.start_ns <= span.end_ns
            assert job.name not in span.name.split(".")
    joins = [span for span in collector.of(failure) if span.name == "phase 2: join"]
    assert {span.attributes["trainmover.who"] for span in joins} == {recovery["joiner"]}

    document = json.loads(file.read_text())
    names = {event["name"] for event in document["traceEvents"]}
    assert {"incident opened", "switching", "migration", "phase 2: join", "pause"} <= names
    assert document["otherData"]["trace_id"] == failure
