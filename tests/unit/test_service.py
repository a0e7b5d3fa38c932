"""The service runner: options, signals, exit codes, health; each in a real process."""

from __future__ import annotations

import argparse
import asyncio
import json
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from trainmover.bus.embedded import EmbeddedServer
from trainmover.bus.nats.bus import NatsBus
from trainmover.runtime.service import ServiceOptions, add_common_options

HEAD = """
import argparse, asyncio, os, sys
from trainmover.errors import ConfigError
from trainmover.runtime.service import ServiceOptions, add_common_options, run_service

def run(main, **more):
    parser = argparse.ArgumentParser()
    add_common_options(parser)
    run_service(ServiceOptions.from_args("probe", parser.parse_args()), main, **more)

def say(text):
    print(text, flush=True)

"""


def start(tmp_path: Path, body: str, *arguments: str) -> subprocess.Popen[str]:
    script = tmp_path / "service.py"
    script.write_text(HEAD + body)
    return subprocess.Popen(
        [sys.executable, "-W", "error", str(script), "--job", "demo", *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def finish(process: subprocess.Popen[str]) -> tuple[int, str, str]:
    out, err = process.communicate(timeout=30)
    return process.returncode, out, err


WAITS = """
async def main(bus, options):
    say("ready")
    try:
        await asyncio.Event().wait()
    finally:
        await asyncio.sleep(0.05)
        say("cleaned up " + str(bus.connected))
run(main)
"""


class TestOptions:
    def parse(self, *arguments: str) -> ServiceOptions:
        parser = argparse.ArgumentParser()
        add_common_options(parser)
        return ServiceOptions.from_args("probe", parser.parse_args(arguments))

    def test_flags(self):
        options = self.parse("--job", "demo", "--nats", "nats://h:1", "--log-level", "debug")
        assert options == ServiceOptions(
            name="probe", job="demo", nats="nats://h:1", log_level="debug"
        )

    def test_the_environment_fills_in(self, monkeypatch: pytest.MonkeyPatch):
        monkeypatch.setenv("TRAINMOVER_JOB", "from-env")
        monkeypatch.setenv("TRAINMOVER_NATS_URL", "nats://e:2")
        assert self.parse().job == "from-env"
        assert self.parse("--job", "flag").nats == "nats://e:2"

    @pytest.mark.parametrize(
        ("environment", "arguments", "shown"),
        [
            ({}, [], "the following arguments are required: --job"),
            ({}, ["--job", "a.b"], "job name 'a.b' cannot be used"),
            ({"TRAINMOVER_JOB": "a b"}, [], "job name 'a b' cannot be used"),
            ({"TRAINMOVER_LOG_LEVEL": "chatty"}, ["--job", "a"], "'chatty' is none of debug"),
            ({}, ["--job", "a", "--log-format", "xml"], "'xml' is none of auto"),
        ],
    )
    def test_mistakes_are_told_with_the_usage(
        self,
        monkeypatch: pytest.MonkeyPatch,
        capsys: pytest.CaptureFixture[str],
        environment: dict[str, str],
        arguments: list[str],
        shown: str,
    ):
        monkeypatch.delenv("TRAINMOVER_JOB", raising=False)
        for name, value in environment.items():
            monkeypatch.setenv(name, value)
        with pytest.raises(SystemExit) as ended:
            self.parse(*arguments)
        assert ended.value.code == 2
        assert shown in capsys.readouterr().err


class TestSignals:
    @pytest.mark.parametrize(("number", "code"), [(signal.SIGTERM, 0), (signal.SIGINT, 130)])
    def test_it_cleans_up_with_the_bus_still_there(
        self, tmp_path: Path, nats_url: str, number: signal.Signals, code: int
    ):
        process = start(tmp_path, WAITS, "--nats", nats_url)
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        process.send_signal(number)
        returned, out, err = finish(process)
        assert (returned, out) == (code, "cleaned up True\n"), err
        assert "Traceback" not in err

    def test_a_second_signal_ends_a_main_that_does_not_listen(self, tmp_path: Path, nats_url: str):
        stubborn = """
async def main(bus, options):
    while True:
        try:
            say("ready")
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            pass
run(main)
"""
        process = start(tmp_path, stubborn, "--nats", nats_url)
        assert process.stdout is not None
        for _ in range(2):
            assert process.stdout.readline() == "ready\n"
            process.send_signal(signal.SIGTERM)
        assert finish(process)[0] == 128 + signal.SIGTERM

    def test_it_stops_quickly_with_a_dead_bus(self, tmp_path: Path, nats_server: EmbeddedServer):
        process = start(tmp_path, WAITS, "--nats", nats_server.url)
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        nats_server.kill()
        began = time.monotonic()
        process.send_signal(signal.SIGTERM)
        code, out, err = finish(process)
        assert (code, out.startswith("cleaned up")) == (0, True), err
        assert time.monotonic() - began < 3

    def test_a_signal_while_waiting_for_the_bus(self, tmp_path: Path):
        process = start(tmp_path, WAITS, "--nats", "nats://127.0.0.1:1", "--log-format", "json")
        assert process.stderr is not None
        assert "waits_for_bus" in process.stderr.readline()
        process.send_signal(signal.SIGTERM)
        assert finish(process)[0] == 0


class TestExitCodes:
    @pytest.mark.parametrize(
        ("body", "expected"),
        [
            ("return None", (0, "", False)),
            ("return 7", (7, "", False)),
            ("raise ConfigError('the disk is full.')", (1, "the disk is full.", False)),
            (
                "async with asyncio.TaskGroup() as g: g.create_task(fails())",
                (1, "trainmover probe: from a task", False),
            ),
            ("raise KeyError('bug')", (1, "service.broke", True)),
        ],
    )
    def test_codes(self, tmp_path: Path, nats_url: str, body, expected):
        code, shown, traceback = expected
        script = (
            "async def fails(): raise ConfigError('from a task')\n"
            f"async def main(bus, options):\n    {body}\n"
            "run(main)\n"
        )
        returned, _, err = finish(start(tmp_path, script, "--nats", nats_url))
        assert returned == code
        assert shown in err
        assert ("Traceback" in err) is traceback

    def test_no_bus(self, tmp_path: Path):
        arguments = ("--nats", "nats://127.0.0.1:1", "--bus-wait", "0.5")
        code, _, err = finish(start(tmp_path, WAITS, *arguments))
        assert code == 1
        last = err.splitlines()[-1]
        assert last.startswith(
            "trainmover probe: gave up after 0.5 s: no bus at nats://127.0.0.1:1"
        )
        assert "Traceback" not in err

    def test_a_bus_that_comes_late(self, tmp_path: Path):
        with EmbeddedServer() as server:
            url = server.url
            server.kill()
            process = start(
                tmp_path, "async def main(bus, options): say('in')\nrun(main)", "--nats", url
            )
            assert process.stderr is not None
            assert "waits_for_bus" in process.stderr.readline()
            server.start()
            code, out, err = finish(process)
        assert (code, out) == (0, "in\n"), err


class TestBeside:
    def test_periodic_runs_beside_main(self, tmp_path: Path, nats_url: str):
        body = """
ticks = []
done = asyncio.Event()
async def tick(bus):
    ticks.append(bus.connected)
    if len(ticks) == 3:
        done.set()
async def main(bus, options):
    await done.wait()
    say(ticks)
run(main, periodic=tick, period_s=0.01)
"""
        code, out, err = finish(start(tmp_path, body, "--nats", nats_url))
        assert (code, out) == (0, "[True, True, True]\n"), err

    async def test_health_is_answered_over_the_bus(self, tmp_path: Path, nats_url: str):
        process = start(tmp_path, WAITS, "--nats", nats_url)
        try:
            assert process.stdout is not None
            line = await asyncio.to_thread(process.stdout.readline)
            assert line == "ready\n"
            async with NatsBus(nats_url) as bus:
                reply = await bus.client.request("$SRV.PING.trainmover-probe", timeout=5)
            assert json.loads(reply.data)["name"] == "trainmover-probe"
        finally:
            process.terminate()
            code, _, _ = await asyncio.to_thread(finish, process)
        assert code == 0
