"""The supervisor: a bus, the services and one agent per machine as child processes.

Bus and services are started again when they end, and training goes on meanwhile; a machine that
ends is replaced by the planner, not by us. What must never happen is a process that outlives the
supervisor, so every child dies with it (the kernel's parent-death signal), orphans are adopted, and
the end is orderly and by process id.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import tempfile
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import IO, Final, Literal

from trainmover.bus.credentials import BusAddress, Credentials
from trainmover.bus.embedded import EmbeddedServer
from trainmover.bus.nats.bus import NatsBus
from trainmover.bus.protocol import Bus
from trainmover.errors import BusError, BusUnavailableError, TrainMoverError
from trainmover.events.envelope import Envelope
from trainmover.events.operator import ServiceRestarted
from trainmover.runtime import procfs
from trainmover.runtime.service import URL_VARIABLE
from trainmover.security import folder as keys
from trainmover.security.roles import Role
from trainmover.security.secret import SECRET_VARIABLE, make_secret, secret_of
from trainmover.tracing.observe import new_event
from trainmover_launcher import registry
from trainmover_launcher.keeper import Keeper
from trainmover_launcher.ledger import Ending, Ledger
from trainmover_launcher.process import (
    Child,
    adopt_orphans,
    end_all,
    end_orphans,
    kill_all,
    reap_orphans,
    wait_gone,
)
from trainmover_launcher.spec import ClusterSpec

__all__ = ["LocalCluster", "Notice", "stop_on_signals"]

_GRACE_S: Final = 5.0
"""Between the polite signal and the kill."""

_STRANDED_GRACE_S: Final = 15.0
"""A recovery that was under way when a service died may take this long to show."""

_TOLD_CHARACTERS: Final = 300

SERVICES: Final = ("detector", "planner")

_TOLD_AGAIN_S: Final = 0.5
"""Between two attempts to tell the bus that a service was started again."""

_WITHOUT: Final = {
    "detector": "stragglers and failures are not noticed",
    "planner": "machines cannot be replaced",
    "bus": "nothing can be seen or replaced",
}


@dataclass(frozen=True, slots=True)
class Notice:
    """Something the person at the terminal should read."""

    level: Literal["info", "warning"]
    text: str


class LocalCluster:
    """Starts a cluster on this host, watches it and ends it.

    Args:
        spec: What to run.
        notify: Called with what the person at the terminal should read.
        observe: Called with every fact of the job, in order.
        telemetry: Called with (machine, batch); telemetry is not subscribed to when omitted.
        started: Called once with the bus URL when everything has been started.
    """

    def __init__(
        self,
        spec: ClusterSpec,
        *,
        notify: Callable[[Notice], None],
        observe: Callable[[Envelope], None] | None = None,
        telemetry: Callable[[str, bytes], None] | None = None,
        started: Callable[[str], None] | None = None,
    ) -> None:
        self.spec = spec
        self._notify = notify
        self._observe = observe
        self._telemetry = telemetry
        self._started = started
        self._services: dict[str, Child] = {}
        self._machines: dict[str, Child] = {}
        self._server: EmbeddedServer | None = None
        self._url = ""
        self._bystanders: frozenset[int] = frozenset()
        self._ledger = Ledger(nnodes_min=spec.nnodes_min, running=set(spec.machines))
        self._changed = asyncio.Event()
        self._interrupted: str | None = None
        self._restarts: asyncio.Queue[ServiceRestarted] = asyncio.Queue()

    @property
    def interrupted(self) -> bool:
        """Whether somebody asked that the job end early."""
        return self._interrupted is not None

    def pid_of(self, machine: str) -> int | None:
        """Process id of a machine's agent, None when it is not running."""
        child = self._machines.get(machine)
        return child.pid if child is not None and child.running else None

    def kill_machine(self, machine: str) -> list[int]:
        """Kill every process of one machine outright; returns their pids."""
        child = self._machines[machine]
        pids = [child.pid, *(stat.pid for _, stat in procfs.descendants(child.pid))]
        kill_all([child])
        return pids

    def stop(self, reason: str) -> None:
        """End the job: politely the first time, at once when called again."""
        if self._interrupted is not None:
            kill_all([*self._machines.values(), *self._services.values()])
        self._interrupted = reason
        self._changed.set()

    async def run(self) -> Ending:
        """Start everything, wait for the end of the job, and end every process.

        Raises:
            ConfigError: A job of this name already runs here.
            BusError: The bus cannot be started or reached.
        """
        self._bystanders = adopt_orphans()
        self.spec.log_dir.mkdir(parents=True, exist_ok=True)
        async with self._bus() as (url, bus), _scratch() as scratch:
            self._url = url
            record = self._record()
            registry.write(record)
            try:
                async with asyncio.TaskGroup() as tasks:
                    watchers = [tasks.create_task(self._follow_facts(bus))]
                    if self._telemetry is not None:
                        watchers.append(
                            tasks.create_task(self._follow_telemetry(bus, self._telemetry))
                        )
                    keepers = [self._keep(name) for name in self._kept()]
                    watchers += [tasks.create_task(keeper.run()) for keeper in keepers]
                    watchers += self._start_machines(tasks, url, scratch)
                    watchers.append(tasks.create_task(self._tell_of_restarts()))
                    registry.write(self._record())
                    if self._started is not None:
                        self._started(str(BusAddress.parse(url)))
                    try:
                        ending = await self._decide()
                        if ending.ok:
                            await self._let_machines_finish()
                    finally:
                        for watcher in watchers:
                            watcher.cancel()
                return ending
            finally:
                try:
                    await end_all(list(self._machines.values()), grace_s=_GRACE_S)
                    await end_all(list(self._services.values()), grace_s=_GRACE_S)
                    end_orphans(self._known())
                finally:
                    registry.remove(record)

    @contextlib.asynccontextmanager
    async def _bus(self) -> AsyncIterator[tuple[str, Bus]]:
        async with contextlib.AsyncExitStack() as stack:
            url = self.spec.nats
            if url is None:
                server = stack.enter_context(EmbeddedServer(extra_config=self._secured()))
                url, self._server = server.url, server
            admin = self.spec.credentials(Role.ADMIN)
            async with NatsBus(url, name="trainmover-setup", credentials=admin) as bus:
                await bus.setup()
            ops = self.spec.credentials(Role.OPS)
            yield (
                url,
                await stack.enter_async_context(
                    NatsBus(url, name="trainmover-cli", credentials=ops)
                ),
            )

    def _secured(self) -> str:
        """Make everybody's keys and say what the server is to know of them."""
        spec = self.spec
        if spec.security is None:
            return ""
        keys.write(spec.security, keys.Setup(jobs=(spec.job,), machines=spec.machines))
        return (spec.security / "server" / "auth.conf").read_text()

    def _kept(self) -> tuple[str, ...]:
        """What is started again when it ends."""
        return SERVICES if self._server is None else ("bus", *SERVICES)

    def _keep(self, name: str) -> Keeper:
        def lost(why: str, pause_s: float) -> None:
            self._lose(name, f"{why}; it is started again in {pause_s:g} s")

        def started(why: str, starts: int) -> None:
            registry.write(self._record())
            fact = ServiceRestarted(service=name, reason=why, starts=starts)
            self._restarts.put_nowait(fact)

        def steady() -> None:
            self._ledger.service_back(name)
            self._notify(Notice("info", f"the {name} runs again (pid {self._pids()[name]})"))
            self._changed.set()

        start = self._start_bus if name == "bus" else partial(self._start_service, name)
        return Keeper(start, lost=lost, started=started, steady=steady)

    def _start_bus(self) -> Callable[[], Awaitable[str]]:
        server = self._server
        assert server is not None  # noqa: S101 - else it is not kept
        server.start()
        pid = server.pid

        async def ended() -> str:
            await wait_gone(pid)
            return f"nats-server (pid {pid}) ended"

        return ended

    def _start_service(self, name: str) -> Callable[[], Awaitable[str]]:
        argv = self.spec.service_argv(name)
        env = {URL_VARIABLE: self._url} | _as(self.spec.credentials(Role(name)))
        with self._log(name) as log:
            child = Child.start(name, argv, env=env, stdout=log, stderr=log)
        self._services[name] = child

        async def ended() -> str:
            await child.exited.wait()
            return f"{child.ending}; see {self.spec.log_dir / name}.log"

        return ended

    async def _tell_of_restarts(self) -> None:
        """Publish that services were started again, once there is a bus to take it."""
        while not _is_cancelled():
            payload = await self._restarts.get()
            fact = new_event(job=self.spec.job, source="/launcher", payload=payload)
            try:
                await self._publish(fact)
            except TrainMoverError as error:
                self._notify(Notice("warning", f"a restart goes untold: {error}"))

    async def _publish(self, fact: Envelope) -> None:
        """Have a fact stored as soon as there is a bus to take it."""
        who = self.spec.credentials(Role.OPERATOR)
        while not _is_cancelled():
            try:
                async with NatsBus(self._url, name="trainmover-run", credentials=who) as bus:
                    await bus.publish(fact)
            except BusUnavailableError:
                await asyncio.sleep(_TOLD_AGAIN_S)
            else:
                return

    def _start_machines(
        self, tasks: asyncio.TaskGroup, url: str, scratch: str
    ) -> list[asyncio.Task[None]]:
        watchers = []
        # A machine that is killed cannot clear up after itself: its scratch files are ours.
        # Everybody may read a command line, and the URL may have a password.
        environment = {"TMPDIR": scratch, URL_VARIABLE: url, **self.spec.environment}
        if self.spec.machines and SECRET_VARIABLE not in os.environ:
            secret = make_secret(secret_of(self.spec.job))
            environment[SECRET_VARIABLE] = str(secret.absolute())
        for machine in self.spec.machines:
            argv = self.spec.agent_argv(machine)
            env = environment | _as(self.spec.credentials(Role.MACHINE, machine))
            with self._log(machine) as log:
                child = Child.start(machine, argv, env=env, stdout=log, stderr=log)
            self._machines[machine] = child
            watchers.append(tasks.create_task(self._watch_machine(child)))
        return watchers

    def _log(self, name: str) -> IO[bytes]:
        return (self.spec.log_dir / f"{name}.log").open("ab")

    def _known(self) -> frozenset[int]:
        """Children of ours that are no orphans."""
        return self._bystanders | frozenset(self._pids().values())

    def _pids(self) -> dict[str, int]:
        server = self._server
        pids = {} if server is None or not server.running else {"bus": server.pid}
        children = {**self._services, **self._machines}
        return {**pids, **{name: child.pid for name, child in children.items()}}

    def _record(self) -> registry.JobRecord:
        stat = procfs.read_stat(os.getpid())
        return registry.JobRecord(
            job=self.spec.job,
            nats=self._url,
            pid=os.getpid(),
            start_ticks=0 if stat is None else stat.start_ticks,
            log_dir=str(self.spec.log_dir),
            processes=self._pids(),
            clients="" if self.spec.security is None else str(self.spec.security / "clients"),
        )

    async def _follow_facts(self, bus: Bus) -> None:
        try:
            async for delivery in bus.events(self.spec.job):
                self._hear(delivery.payload)
        except BusError as error:
            if "bus" not in self._ledger.services_down:
                self._lose("bus", str(error))

    def _hear(self, fact: Envelope) -> None:
        try:
            self._ledger.learn(fact)
            if self._observe is not None:
                self._observe(fact)
        except Exception as error:  # noqa: BLE001 - one odd fact must not end the whole job
            told = f"{type(error).__name__}: {error}"[:_TOLD_CHARACTERS]
            self._notify(Notice("warning", f"a fact {fact.type} is set aside ({told})"))
        self._changed.set()

    async def _follow_telemetry(self, bus: Bus, sink: Callable[[str, bytes], None]) -> None:
        # Lossy by design: when the bus is gone the facts' reader says so.
        with contextlib.suppress(BusError):
            async for machine, batch in bus.telemetry(self.spec.job):
                sink(machine, batch)

    async def _watch_machine(self, child: Child) -> None:
        await child.exited.wait()
        reap_orphans(self._known())
        self._ledger.agent_exited(child.name, child.exit_code or 0)
        if child.exit_code:
            where = "" if child.exit_code < 0 else f"; see {self.spec.log_dir / child.name}.log"
            self._notify(Notice("warning", f"machine {child.name} ended: {child.ending}{where}"))
        self._changed.set()

    def _lose(self, service: str, why: str) -> None:
        self._ledger.service_died(service)
        go_on = "Training continues; " if self.spec.nnodes_min else ""
        text = f"the {service} is gone ({why}). {go_on}{_WITHOUT[service]} until it is back."
        self._notify(Notice("warning", text))
        self._changed.set()

    async def _decide(self) -> Ending:
        while True:
            self._changed.clear()
            if self._interrupted is not None:
                return Ending(ok=False, reason=self._interrupted)
            if self.spec.nnodes_min and (ending := self._ledger.ending()) is not None:
                return ending
            stranded = self._ledger.stranded()
            try:
                async with asyncio.timeout(None if stranded is None else _STRANDED_GRACE_S):
                    await self._changed.wait()
            except TimeoutError:
                if (ending := self._ledger.stranded()) is not None:
                    return ending

    async def _let_machines_finish(self) -> None:
        """Active machines end by themselves; they have said that their work is done."""
        active = self._ledger.active
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_GRACE_S):
                for name, child in self._machines.items():
                    if name in active:
                        await child.exited.wait()


def _is_cancelled() -> bool:
    """Whether this task goes on although it was cancelled.

    Until Python 3.12 ``asyncio.wait_for``, which nats-py uses, may swallow that.
    """
    task = asyncio.current_task()
    return task is not None and task.cancelling() > 0


def _as(credentials: Credentials | None) -> dict[str, str]:
    return {} if credentials is None else credentials.environment()


@contextlib.asynccontextmanager
async def _scratch() -> AsyncIterator[str]:
    with tempfile.TemporaryDirectory(prefix="tm-", ignore_cleanup_errors=True) as folder:
        yield folder


@contextlib.contextmanager
def stop_on_signals(cluster: LocalCluster) -> Iterator[None]:
    """Ctrl-C and SIGTERM end the cluster; the second one ends it at once."""
    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, cluster.stop, f"interrupted by {number.name}")
    try:
        yield
    finally:
        for number in (signal.SIGINT, signal.SIGTERM):
            loop.remove_signal_handler(number)
