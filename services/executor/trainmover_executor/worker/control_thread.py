"""The control thread: everything a rank hears and says outside of its training step.

One asyncio loop in one thread: the agent's socket, the listening endpoint, the watch links, phase 1
of planned moves, and the sign of life. The training thread never waits for it; it leaves
messages (``post``) and reads what the core of decisions knows.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextlib
import os
import socket
import threading
from collections.abc import Callable
from typing import Final

import structlog

from trainmover.commands import AbortMigration, BreakStep, Prepare, Recover, SaveCheckpoint
from trainmover.errors import TrainMoverError
from trainmover.events.executor import StepProgress
from trainmover.job.topology import Frozen
from trainmover_executor.clock.writer import CollectiveClock
from trainmover_executor.collectives.latch import Latch
from trainmover_executor.collectives.sandbox.recording import Recording
from trainmover_executor.decisions.effects import (
    Abort,
    Action,
    AnswerCalls,
    Break,
    CancelPhaseOne,
    DropParked,
    Heard,
    Park,
    Publish,
)
from trainmover_executor.decisions.shell import RankDecisions
from trainmover_executor.links.dialling.descriptors import raise_limit
from trainmover_executor.links.dialling.endpoint import Endpoint, dial
from trainmover_executor.links.dialling.handshake import (
    PLACE_GROUP,
    RECORD_GROUP,
    WATCH_GROUP,
    LinkRequest,
)
from trainmover_executor.links.dialling.secret import LinkSecret
from trainmover_executor.links.table import LinkTable
from trainmover_executor.messages.worker import (
    Broke,
    Fact,
    FrameReader,
    Hello,
    Links,
    Warmed,
    WorkerSpec,
    pack,
    parse_to_worker,
)
from trainmover_executor.worker.prepare_links import STATE_GROUP, PhaseOne
from trainmover_executor.worker.to_standbys.place import PlaceLinks
from trainmover_executor.worker.to_standbys.places import Places
from trainmover_executor.worker.to_standbys.record import fetch_recording, serve_recording
from trainmover_executor.worker.watch_ring import Neighbours

__all__ = ["ControlThread"]

log = structlog.get_logger(__name__)

_BEAT_PERIOD_S: Final = 0.25
_LINKS_EVERY: Final = 4
_PROGRESS_EVERY: Final = 4
_LAST_WORDS_S: Final = 2.0
_AGENT_GONE: Final = 75  # EX_TEMPFAIL
_BROKEN: Final = 70  # EX_SOFTWARE


class ControlThread:
    """The control thread of one rank.

    Args:
        spec: What this process was started as.
        latch: Tripped when a neighbour is lost or aborts, or the agent says so.
        clock: Gets a sign of life from this thread.
        decisions: Decides what commands, calls and lost neighbours mean.
        recording: Served to standbys, and filled at one.
        places: Told to standbys of this rank, and heard of at one.
        progress: Called once a second for a ``StepProgress``; None while there is nothing to say.
    """

    def __init__(
        self,
        spec: WorkerSpec,
        *,
        latch: Latch,
        clock: CollectiveClock,
        decisions: RankDecisions,
        recording: Recording,
        places: Places,
        progress: Callable[[], StepProgress | None],
    ) -> None:
        self._spec = spec
        self._latch = latch
        self._clock = clock
        self._decisions = decisions
        self._recording = recording
        self._progress = progress
        self._secret = LinkSecret.from_environment()
        self.table = LinkTable(
            job=spec.job, rank=spec.rank, membership=spec.membership, dial=self._dial_soon
        )
        self._loop = asyncio.new_event_loop()
        # Named as ours: what a program left running is waited for when it ends.
        names = concurrent.futures.ThreadPoolExecutor(thread_name_prefix="tm-names")
        self._loop.set_default_executor(names)
        self._agent = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._outbox: asyncio.Queue[bytes] = asyncio.Queue()
        self._tasks: asyncio.TaskGroup
        self._endpoint: Endpoint
        self._neighbours = Neighbours(
            spec, table=self.table, latch=latch, clock=clock, secret=self._secret, post=self.post
        )
        self._phase_one = PhaseOne(spec, table=self.table, decisions=decisions, secret=self._secret)
        self._place_links = PlaceLinks(
            job=spec.job,
            rank=spec.rank,
            secret=self._secret,
            places=places,
            membership=lambda: self.table.membership,
        )
        places.on_news(decisions.wake)
        self._started = threading.Event()
        self._thread = threading.Thread(target=self._run, name="tm-control", daemon=True)
        decisions.act(self._perform)

    # -- called by the training thread -----------------------------------------------------------

    def start(self) -> None:
        """Connect to the agent and begin."""
        raise_limit()
        self._agent.connect(self._spec.control)
        self._agent.setblocking(False)
        os.register_at_fork(after_in_child=self._forget_sockets)
        self._thread.start()
        self._started.wait()

    def post(self, message: Frozen) -> None:
        """Send a control message, or an event payload to publish, without waiting."""
        frame = pack(message if isinstance(message, Warmed | Broke) else Fact.of(message))
        self._loop.call_soon_threadsafe(self._outbox.put_nowait, frame)

    def open(self) -> None:
        """Answer link handshakes from now on (a standby opens when it is warm)."""
        self._loop.call_soon_threadsafe(self._open)

    def rewatch(self, changed: frozenset[int]) -> None:
        """The processes of ranks ``changed`` changed: watch the neighbours of now."""
        self._loop.call_soon_threadsafe(self._neighbours.watch_anew, changed)

    def unwatch(self, ranks: frozenset[int]) -> None:
        """Say goodbye to those of ``ranks`` that are watched here."""
        self._loop.call_soon_threadsafe(self._neighbours.part, ranks, self.table.epoch + 1)

    def leave(self, last: Frozen) -> None:
        """Say goodbye to the neighbours and ``last`` to the agent, and wait until it is said."""
        done = threading.Event()
        self._loop.call_soon_threadsafe(self._say_goodbye, pack(last), done)
        done.wait(timeout=_LAST_WORDS_S)

    def flush(self) -> None:
        """Return when all that was posted is said to the agent, or cannot be."""
        done = threading.Event()
        self._loop.call_soon_threadsafe(self._flush, done)
        done.wait(timeout=_LAST_WORDS_S)

    def _forget_sockets(self) -> None:
        """In a data loader's worker: as long as it held our sockets, nobody would see us die."""
        self._neighbours.forget()
        places = self._place_links.sockets()
        for sock in (self._agent, *self._endpoint.sockets(), *self.table.sockets(), *places):
            with contextlib.suppress(OSError):
                os.close(sock.detach())  # close() alone: a shutdown would end our parent's links

    # -- the loop --------------------------------------------------------------------------------

    def _run(self) -> None:
        asyncio.set_event_loop(self._loop)
        try:
            self._loop.run_until_complete(self._main())
        except BaseException:  # a rank that hears nothing any more must end, not hang
            log.exception("the control thread broke")
            os._exit(_BROKEN)

    async def _main(self) -> None:
        self._endpoint = Endpoint(
            socket.socket(fileno=self._spec.listen_fd),
            job=self._spec.job,
            rank=self._spec.rank,
            secret=self._secret,
            is_stale=lambda epoch: epoch < self.table.epoch,
            accept=self._accepted,
        )
        async with asyncio.TaskGroup() as self._tasks:
            self._neighbours.begin(self._tasks)
            self._phase_one.begin(self._tasks, self._endpoint)
            self._outbox.put_nowait(pack(Hello(rank=self._spec.rank, pid=os.getpid())))
            self._tasks.create_task(self._endpoint.serve())
            self._tasks.create_task(self._hear_agent())
            self._tasks.create_task(self._tell_agent())
            self._tasks.create_task(self._show_life())
            if self._spec.role == "active":
                self._endpoint.open()
                self._neighbours.watch_anew(frozenset())
            else:
                self._tasks.create_task(self._fetch_recording())
                self._tasks.create_task(
                    self._place_links.follow(wanted=lambda: self._decisions.state.standby)
                )
            self._started.set()

    async def _fetch_recording(self) -> None:
        await fetch_recording(
            self._recording,
            job=self._spec.job,
            rank=self._spec.rank,
            membership=self._spec.membership,
            secret=self._secret,
        )

    async def _hear_agent(self) -> None:
        reader = FrameReader()
        with contextlib.suppress(ConnectionError):
            while data := await self._loop.sock_recv(self._agent, 1 << 16):
                for header, _ in reader.feed(data):
                    self._obey(parse_to_worker(header))
        if not self._neighbours.leaving:
            # A machine without its agent cannot be fenced or replaced in an orderly way: one fate.
            os._exit(_AGENT_GONE)

    async def _tell_agent(self) -> None:
        while True:
            frame = await self._outbox.get()
            try:
                await self._loop.sock_sendall(self._agent, frame)
            except OSError:
                return
            self._outbox.task_done()

    async def _show_life(self) -> None:
        ticks = 0
        while True:
            await asyncio.sleep(_BEAT_PERIOD_S)
            ticks += 1
            stands_still = self._clock.beat()
            if stands_still or self._clock.has_new_groups or ticks % _LINKS_EVERY == 0:
                self._report_links()
            if ticks % _PROGRESS_EVERY == 0 and (progress := self._progress()) is not None:
                self._outbox.put_nowait(pack(Fact.of(progress)))

    def _report_links(self) -> None:
        links = self.table.read_links(self._clock.group_ids())
        groups = {
            group: tuple((span.start, span.stop, span.step) for span in spans)
            for group, spans in self._clock.new_groups().items()
        }
        self._outbox.put_nowait(pack(Links(groups=groups), links.tobytes()))

    def _obey(self, command: Frozen) -> None:
        match command:
            case Prepare() | Recover() | BreakStep() | SaveCheckpoint():
                if isinstance(command, Recover):
                    self._recording.hurry()  # no rank takes a step before this one is there
                self._decisions.take(Heard(command))
            case AbortMigration():
                called = self.table.reaches(STATE_GROUP, self._spec.rank)
                self._decisions.take(Abort(command, called=called))
            case _:
                pass

    def _perform(self, action: Action) -> None:
        """Do what the core of decisions decided; on the thread that told it what happened."""
        match action:
            case Break(epoch=epoch, reason=reason):
                self.table.break_off(reason, epoch=epoch)
                self._loop.call_soon_threadsafe(self._neighbours.pass_on, epoch, reason)
            case Publish(fact=fact):
                self.post(fact)
            case DropParked(epoch=epoch):
                self.table.drop_parked(epoch)
            case Park(plan=plan):
                self._phase_one.park(plan)
            case AnswerCalls(plan=plan):
                self._phase_one.answer_calls(plan)
            case CancelPhaseOne(epoch=epoch):
                self._phase_one.cancel(epoch)

    # -- links and neighbours --------------------------------------------------------------------

    def _dial_soon(
        self, endpoint: str, link_request: LinkRequest
    ) -> concurrent.futures.Future[socket.socket]:
        return asyncio.run_coroutine_threadsafe(
            dial(endpoint, link_request, secret=self._secret), self._loop
        )

    def _accepted(self, link_request: LinkRequest, sock: socket.socket) -> None:
        if link_request.group == WATCH_GROUP:
            self._neighbours.accept(sock, link_request)
            return
        if link_request.group == RECORD_GROUP:
            self._tasks.create_task(serve_recording(sock, self._recording))
            return
        if link_request.group == PLACE_GROUP:
            self._tasks.create_task(self._place_links.serve(link_request, sock))
            return
        if not 0 <= link_request.source < self.table.membership.layout.world_size:
            log.warning("link refused", source=link_request.source, reason="there is no such rank")
            sock.close()
            return
        try:
            self.table.park(
                epoch=link_request.epoch,
                group=link_request.group,
                peer=link_request.source,
                sock=sock,
            )
        except TrainMoverError as error:
            log.warning("link refused", error=str(error))

    def _say_goodbye(self, last: bytes, done: threading.Event) -> None:
        self._neighbours.say_goodbye()
        self._outbox.put_nowait(last)
        self._flush(done)

    def _flush(self, done: threading.Event) -> None:
        self._tasks.create_task(self._flushed(done))

    async def _flushed(self, done: threading.Event) -> None:
        await self._outbox.join()
        done.set()

    def _open(self) -> None:
        self._endpoint.open()
