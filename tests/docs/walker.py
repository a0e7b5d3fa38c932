"""Does what the documentation says, in a shell and a folder of its own."""

from __future__ import annotations

import asyncio
import contextlib
import os
import re
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from tests.support.lines import Lines
from tests.support.looking import view_when

from trainmover.bus.credentials import Credentials
from trainmover.bus.nats.bus import NatsBus
from trainmover.subjects import EVENT_STREAM
from trainmover_console.view import JobView

_PATIENCE_S = 90.0


def bare(command: str) -> str:
    """A documented command without the comment behind it, in single spaces."""
    return " ".join(re.sub(r"\s#\s.*$", "", command).split())


@dataclass(frozen=True)
class Say:
    """A documented command that ends by itself.

    Attributes:
        command: As it is documented, but for comments.
        says: It writes something like this (a regular expression), to either stream.
        code: How it ends.
        answer: What is typed where it asks; it runs in a terminal then.
    """

    command: str
    says: str = ""
    code: int = 0
    answer: str = ""


@dataclass(frozen=True)
class Watch:
    """A documented command that goes on until Ctrl-C.

    Attributes:
        command: As it is documented, but for comments.
        says: It writes a line like this once it is up; empty where it reads silently.
        then: Steps that are taken while it runs.
        shows: It writes a line like this after that.
        stay: Leave it running beside what follows; else it is ended with Ctrl-C.
    """

    command: str
    says: str = ""
    then: tuple[Step, ...] = ()
    shows: str = ""
    stay: bool = False


Step = Say | Watch | Callable[["Walker"], None]


def commands(steps: tuple[Step, ...]) -> set[str]:
    """The documented commands among ``steps``, and among those that are taken meanwhile."""
    said = {step.command for step in steps if isinstance(step, Say | Watch)}
    return said.union(*(commands(step.then) for step in steps if isinstance(step, Watch)))


class Walker:
    """One reader of the documentation.

    Args:
        folder: Where the commands are run.

    Attributes:
        swaps: What this reader has in place of what a page names: addresses, ids, ports.
        credentials: Of a user that may look, where the bus asks for them.
        env: Of every command; ``export`` changes it.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.swaps: dict[str, str] = {}
        self.credentials = Credentials()
        path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
        home = str(folder / "home")
        self.env = {**os.environ, "PATH": path, "TRAINMOVER_HOME": home, "NO_COLOR": "1"}
        self._beside: list[_Beside] = []
        self._ends = contextlib.ExitStack()

    def walk(self, *steps: Step) -> None:
        """Take one step after the other."""
        for step in steps:
            match step:
                case Say():
                    self._say(step)
                case Watch():
                    self._watch(step)
                case _:
                    step(self)

    @property
    def url(self) -> str:
        """The bus of this reader's job."""
        return self.swaps["nats://head:4222"]

    def until(self, reached: Callable[[JobView], bool], *, what: str) -> JobView:
        """The job's view once ``reached`` holds for it."""
        view = JobView("gpt")

        async def wait() -> None:
            async with asyncio.timeout(_PATIENCE_S), self._bus() as bus:
                await view_when(bus, view, reached)

        try:
            asyncio.run(wait())
        except TimeoutError:
            wrote = "\n".join(one.wrote for one in self._beside)
            raise AssertionError(f"not {what} in {_PATIENCE_S} s:\n{wrote}") from None
        return view

    def _bus(self) -> NatsBus:
        return NatsBus(self.url, name="test", credentials=self.credentials)

    def readers(self) -> set[str]:
        """Who reads the job's facts now."""

        async def names() -> set[str]:
            async with self._bus() as bus:
                found = await bus.client.jetstream().consumers_info(EVENT_STREAM)
                return {one.name for one in found}

        return asyncio.run(names())

    def close(self) -> None:
        """End everything that stayed, the newest first."""
        self._ends.close()

    def _swapped(self, command: str) -> str:
        for page, mine in self.swaps.items():
            command = command.replace(page, mine)
        return command

    def _say(self, step: Say) -> None:
        command = self._swapped(step.command)
        export = step.command.startswith("export ")
        if step.answer:
            command = f"script --quiet --return --command {shlex.quote(command)} /dev/null"
        done = subprocess.run(
            ["bash", "-c", f"{command} && env -0" if export else command],
            cwd=self.folder,
            env=self.env,
            input=step.answer or None,
            capture_output=True,
            text=True,
            timeout=_PATIENCE_S,
            check=False,
        )
        wrote = done.stdout + done.stderr
        assert done.returncode == step.code, f"{command}: {done.returncode}\n{wrote}"
        assert re.search(step.says, wrote), f"{command}: no {step.says!r} in\n{wrote}"
        if export:
            self.env = dict(each.split("=", 1) for each in done.stdout.split("\0") if "=" in each)

    def _watch(self, step: Watch) -> None:
        known = set[str]() if step.says else self.readers()
        one = _Beside(self._swapped(step.command), folder=self.folder, env=self.env)
        self._beside.append(one)
        self._ends.callback(one.end)
        if step.says:
            one.until(step.says)
        else:
            deadline = time.monotonic() + _PATIENCE_S
            while self.readers() <= known:  # the bus announces no reader
                one.check()
                assert time.monotonic() < deadline, f"it does not read: {one.wrote}"
        self.walk(*step.then)
        if step.shows:
            one.until(step.shows)
        if not step.stay:
            one.end()


class _Beside:
    """A command that runs beside others, and what it writes."""

    def __init__(self, command: str, *, folder: Path, env: Mapping[str, str]) -> None:
        self._process = subprocess.Popen(
            ["bash", "-c", f"exec env {command}"],
            cwd=folder,
            env=env,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
        )
        self._command = command
        self._lines = Lines(self._process.stdout, what=command)

    @property
    def wrote(self) -> str:
        """All of it."""
        return f"{self._command}:\n{self._lines.text}"

    def until(self, says: str) -> None:
        """Wait for a line like this among those that were not looked at."""
        self._lines.until(says, timeout_s=_PATIENCE_S)

    def check(self) -> None:
        """It must not have ended."""
        assert self._process.poll() is None, f"it ended: {self.wrote}"

    def end(self) -> None:
        """Ctrl-C, which every command takes well; nothing where it ended by itself."""
        if self._process.poll() is None:
            os.killpg(self._process.pid, signal.SIGINT)
        code = self._process.wait(30)
        self._lines.end()
        # Python's own end of a script that leaves Ctrl-C to it is the signal.
        assert code in {0, 130, -signal.SIGINT}, f"{code} after Ctrl-C: {self.wrote}"


@contextlib.contextmanager
def walking(folder: Path) -> Iterator[Walker]:
    """A walker whose processes end with the block."""
    one = Walker(folder)
    try:
        yield one
    finally:
        one.close()
