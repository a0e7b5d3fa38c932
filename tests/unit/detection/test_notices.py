"""What Kubernetes, Slurm and callers of the endpoint announce."""

from __future__ import annotations

import asyncio
import json
import threading
import urllib.error
import urllib.request
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer

import pytest

from trainmover.errors import ConfigError, TrainMoverError
from trainmover.events.machine import MachineNoticed
from trainmover.testing import collect, memory_bench
from trainmover_gateway.notices import kubernetes, slurm
from trainmover_gateway.notices.http import serving
from trainmover_gateway.notices.watch import changes, watch


def node(name="n1", *, labels=None, taints=(), conditions=(), **spec):
    return {
        "metadata": {"name": name, "labels": labels or {}},
        "spec": {"taints": [{"key": key, "effect": "NoSchedule"} for key in taints], **spec},
        "status": {
            "conditions": [dict(zip(("type", "status"), c, strict=True)) for c in conditions]
        },
    }


@pytest.mark.parametrize(
    ("one", "kind", "words"),
    [
        (node(taints=["node.kubernetes.io/unschedulable"]), "maintenance", "cordoned"),
        (node(unschedulable=True), "maintenance", "cordoned"),
        (node(taints=["aws-node-termination-handler/spot-itn"]), "preemption", "spot"),
        (node(conditions=[("Ready", "False")]), "health", "Ready is False"),
        (node(conditions=[("GpuUnhealthy", "True")]), "health", "GpuUnhealthy is True"),
    ],
)
def test_a_node_that_will_go_or_is_ill_is_announced(one, kind, words) -> None:
    (notice,) = kubernetes.notices_of([one]).values()
    assert (notice.machine, notice.kind, notice.source) == ("n1", kind, "kubernetes")
    assert words in notice.reason


@pytest.mark.parametrize(
    "one",
    [
        node(),
        node(taints=["dedicated"]),
        node(conditions=[("Ready", "True"), ("DiskPressure", "True"), ("KernelDeadlock", "False")]),
        node(conditions=[("Ready", "Unknown")]),
    ],
)
def test_a_sound_node_is_not(one) -> None:
    assert kubernetes.notices_of([one]) == {}


def test_a_label_says_which_machine_a_node_is() -> None:
    labelled = node(labels={"trainmover.dev/machine": "node-3"}, unschedulable=True)
    assert list(kubernetes.notices_of([labelled])) == ["node-3"]


def test_outside_of_a_cluster_the_api_must_be_named(monkeypatch) -> None:
    monkeypatch.delenv("KUBERNETES_SERVICE_HOST", raising=False)
    with pytest.raises(ConfigError, match="--api"):
        kubernetes.KubernetesSource()


@pytest.fixture
def api() -> Iterator[tuple[str, list[dict]]]:
    """An API server that lists nodes to whoever has the token."""
    nodes: list[dict] = []

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self):
            allowed = self.headers["Authorization"] == "Bearer t"
            data = json.dumps({"items": nodes}).encode()
            self.send_response(200 if allowed and "labelSelector=pool" in self.path else 403)
            self.end_headers()
            self.wfile.write(data)

        def log_message(self, *_):
            return

    server = HTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}", nodes
    server.shutdown()
    server.server_close()
    thread.join()


async def test_the_api_server_is_asked(api) -> None:
    address, nodes = api
    nodes.append(node(unschedulable=True))
    source = kubernetes.KubernetesSource(api=address, selector="pool=train", token="t")
    assert list(await source()) == ["n1"]
    stranger = kubernetes.KubernetesSource(api=address, selector="pool=train", token="x")
    with pytest.raises(TrainMoverError, match="403"):
        await stranger()


def test_slurm_states() -> None:
    lines = [
        "n1|idle|none",
        "n2|drained|bad DIMM",
        "n2|drained|bad DIMM",
        "n3|draining*|kernel update",
        "n4|mixed$|none",
        "n5|down*|Not responding",
        "n6|allocated|none",
    ]
    found = slurm.notices_of(lines)
    assert {name: notice.kind for name, notice in found.items()} == {
        "n2": "maintenance",
        "n3": "maintenance",
        "n4": "maintenance",
        "n5": "health",
    }
    assert found["n2"].reason == "Slurm says drained: bad DIMM"


async def test_slurm_is_asked_by_its_command() -> None:
    source = slurm.SlurmSource(("printf", "n1|drain|x\\n"))
    assert list(await source()) == ["n1"]
    for command in (("false",), ("no-such-command-here",)):
        with pytest.raises(TrainMoverError):
            await slurm.SlurmSource(command)()


def notice(machine="m", **more) -> MachineNoticed:
    return MachineNoticed.model_validate(
        {"machine": machine, "kind": "maintenance", "reason": "r", **more}
    )


def test_only_changes_are_said() -> None:
    first = {"a": notice("a", leaves_in_s=60), "b": notice("b")}
    assert changes({}, first) == [*first.values()]
    later = {"a": notice("a", leaves_in_s=30), "c": notice("c")}
    said = changes(first, later)
    assert [(one.machine, one.cleared) for one in said] == [("c", False), ("b", True)]


async def test_a_source_that_fails_takes_nothing_back() -> None:
    answers = iter([{"a": notice("a")}, TrainMoverError("away"), {"a": notice("a")}, {}])
    over = asyncio.Event()

    async def source():
        answer = next(answers, None)
        if answer is None:
            over.set()
            await asyncio.Event().wait()
        if isinstance(answer, Exception):
            raise answer
        return answer

    async with memory_bench() as bench, bench.connect() as bus, asyncio.TaskGroup() as group:
        watching = group.create_task(watch(bus, job="j", source=source, every_s=0.001))
        await over.wait()
        watching.cancel()
        facts = await collect(bus.events("j"), 2)
        assert [one.payload.payload.cleared for one in facts] == [False, True]


async def test_the_endpoint_stores_what_is_posted() -> None:
    stored: list[MachineNoticed] = []

    async def accept(one: MachineNoticed) -> None:
        stored.append(one)

    def post(port: int, path: str, body: bytes, token: str = "t") -> int:
        request = urllib.request.Request(
            f"http://127.0.0.1:{port}{path}", body, {"Authorization": f"Bearer {token}"}
        )
        try:
            with urllib.request.urlopen(request, timeout=10) as reply:
                return reply.status
        except urllib.error.HTTPError as error:
            error.close()
            return error.code

    loop = asyncio.get_running_loop()
    good = json.dumps({"kind": "preemption", "reason": "spot", "leaves_in_s": 30}).encode()
    path = "/v1/machines/w-1/notices"
    with serving(accept, loop=loop, host="127.0.0.1", port=0, token="t") as port:
        assert await asyncio.to_thread(post, port, path, good) == 202
        assert await asyncio.to_thread(post, port, path, good, "x") == 401
        assert await asyncio.to_thread(post, port, "/v1/machines/a.b/notices", good) == 404
        assert await asyncio.to_thread(post, port, path, b"[]") == 400
        assert await asyncio.to_thread(post, port, path, b'{"kind": "party"}') == 400
        assert await asyncio.to_thread(post, port, path, b"x" * 20_000) == 413
    (one,) = stored
    assert (one.machine, one.kind, one.leaves_in_s, one.source) == ("w-1", "preemption", 30, "http")
