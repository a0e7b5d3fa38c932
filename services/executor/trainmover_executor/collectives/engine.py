"""Runs a group's operations in order on communication threads, and clocks them.

Collectives of a group run one after the other on one thread; point-to-point messages have a thread
for each peer and direction, because two large messages that cross must not wait for each other.
After the first communication error the latch is set and everything completes at once on the
sandbox: nothing is ever raised inside a backward pass. Any other error, such as ranks that issue
different collectives, is raised where the program waits for the operation, at the next one, and at
the vote.
"""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable, Hashable, Sequence
from datetime import timedelta
from functools import partial
from typing import Any, Final

import torch

from trainmover.errors import StaleEpochError
from trainmover_executor.clock.writer import CollectiveClock
from trainmover_executor.collectives.communicator.base import Communicator
from trainmover_executor.collectives.communicator.checks import CollectiveError
from trainmover_executor.collectives.finite import nonfinite_in
from trainmover_executor.collectives.latch import Latch
from trainmover_executor.collectives.sandbox.stand_ins import SandboxCommunicator
from trainmover_executor.collectives.saves import BackgroundSave
from trainmover_executor.collectives.work import OperationWork
from trainmover_executor.links.link import LinkBrokenError
from trainmover_executor.state.packing.memory import fence

__all__ = ["COLLECTIVES", "GroupEngine", "Operation"]

COLLECTIVES: Final = "collectives"
"""SlotChannel on which all collectives of a group run."""

_AGAIN: Final = frozenset({"allreduce", "broadcast", "reduce", "all_gather", "barrier"})
"""Collectives of which all ranks call one of the same size, and whose result may be told."""

Operation = Callable[[Communicator], None]


class _WorkQueue:
    """One thread and its queue; ends when it is told, or with the process."""

    def __init__(self, name: str) -> None:
        self._tasks: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._work, name=name, daemon=True)
        self._thread.start()

    @property
    def runs_this(self) -> bool:
        """Whether the caller is in a task, or in a callback of one."""
        return threading.current_thread() is self._thread

    def submit(self, task: Callable[[], None] | None) -> None:
        """Have a task done after those before it; None ends the thread."""
        self._tasks.put(task)

    def _work(self) -> None:
        while (task := self._tasks.get()) is not None:
            task()


class GroupEngine:
    """Executes the operations of one process group on its current communicator.

    Attributes:
        background: The save that this group carried last, beside the steps.

    Args:
        group: Name of the group.
        ranks: Global ranks of its members.
        communicator: What runs the operations at first.
        real: What runs them once a standby left the sandbox.
        sandbox: What runs them once the latch is set.
        latch: The process's latch.
        clock: Where durations go.
    """

    def __init__(
        self,
        *,
        group: str,
        ranks: Sequence[int],
        communicator: Communicator,
        real: Communicator,
        sandbox: SandboxCommunicator,
        latch: Latch,
        clock: CollectiveClock,
    ) -> None:
        self.communicator = communicator
        self.background: BackgroundSave | None = None
        self._group = group
        self._real = real
        self._sandbox = sandbox
        self._latch = latch
        self._ranks = tuple(ranks)
        self._timing = clock
        self._clock = clock.group(group, ranks)
        self._queues: dict[Hashable, _WorkQueue] = {}
        self._idle = threading.Condition()
        self._pending = 0
        self._failed: BaseException | None = None

    def run(
        self,
        op: str,
        operation: Operation,
        result: list[torch.Tensor],
        *,
        queue_key: Hashable = COLLECTIVES,
        peer: int | None = None,
        reduces: Sequence[torch.Tensor] = (),
        timeout: timedelta = timedelta(0),
    ) -> OperationWork:
        """Queue ``operation``; the returned Work completes with ``result``.

        Args:
            op: Name in ``trainmover.telemetry.records.OPS``.
            operation: Called on the work queue's thread with the communicator.
            result: Tensors that the Work's future resolves to.
            queue_key: Operations of one work queue run in order.
            peer: The other rank within the group, of a message.
            reduces: What is about to be combined with other ranks' values: samples of it are
                looked at, since afterwards nobody knows where a NaN came from.
            timeout: How long the program waits for it; zero for as long as it takes.
        """
        done = self._done_between(op, operation, result, reduces=reduces, timeout=timeout)
        if done is not None:
            return done
        operation = _in_mode_of(result, operation)
        source = peer if op == "recv" and peer is not None else -1
        work = OperationWork(op, result, source=source, timeout=timeout)
        if self.background is not None and not self.background.is_over:
            self.background.run(operation, self._real)
            work.finish()
            return work
        self._raise_failure()
        self._latch.issue()
        if isinstance(self.communicator, SandboxCommunicator):
            operation(self.communicator)
            work.finish()
            return work
        if self._latch.uses_stand_ins:
            self._latch.check_protected()
            operation(self._sandbox)
            work.finish()
            return work
        self._refuse_in_callback(op)
        size = sum(tensor.numel() * tensor.element_size() for tensor in result)
        other = -1 if peer is None else self._ranks[peer]
        wait_for_device = fence(result)
        with self._idle:
            self._pending += 1
            entered = self._clock.enter(op, size=size, peer=other)

        def task() -> None:
            try:
                if wait_for_device is not None:
                    wait_for_device()
                if reduces:
                    self._timing.note_nonfinite(nonfinite_in(reduces))
                self._execute(operation)
            except BaseException as error:  # noqa: BLE001 - the program's: it is raised there
                self._failed = self._failed or error
                self._clock.leave(entered, complete=False)
                failed: BaseException | None = error
            else:
                self._clock.leave(entered)
                failed = None
            self._left()
            work.finish(failed)

        self._queue(queue_key).submit(task)
        return work

    def _done_between(
        self,
        op: str,
        operation: Operation,
        result: list[torch.Tensor],
        *,
        reduces: Sequence[torch.Tensor],
        timeout: timedelta,
    ) -> OperationWork | None:
        """The work of a collective between two steps, which is done; None for any other."""
        between = self._latch.between
        if between is None or self._latch.protected or op not in _AGAIN:
            return None

        def again() -> None:
            self.run(op, operation, result, reduces=reduces, timeout=timeout).wait()

        if not between(self._ranks, result, again):
            return None
        work = OperationWork(op, result)
        work.finish()
        return work

    def _refuse_in_callback(self, op: str) -> None:
        if not any(queue.runs_this for queue in self._queues.values()):
            return
        self._failed = self._failed or CollectiveError(
            f"{op} was called in a callback of another operation's future (fut.then(...)), as "
            "torch's PowerSGD hook does. Waited for there it never ends, since the thread that "
            "would carry it is in the callback, and its place among other operations differs "
            "from rank to rank. Call it where the program goes on, behind wait()."
        )
        raise self._failed

    def _execute(self, operation: Operation) -> None:
        if not self._latch.is_set:
            try:
                operation(self.communicator)
            except (LinkBrokenError, StaleEpochError) as error:
                self._latch.trip(str(error))
            else:
                return
        self._latch.check_protected()
        operation(self._sandbox)

    def _left(self) -> None:
        with self._idle:
            self._pending -= 1
            if self._pending == 0:
                self._idle.notify_all()

    def _queue(self, key: Hashable) -> _WorkQueue:
        with self._idle:  # forward and backward pass call from different threads
            work_queue = self._queues.get(key)
            if work_queue is None:
                work_queue = self._queues[key] = _WorkQueue(f"tm-{self._group}-{key}")
            return work_queue

    def _raise_failure(self) -> None:
        if self._failed is not None:
            raise self._failed

    def drain(self) -> None:
        """Return when nothing is queued or running.

        Raises:
            ProtocolError: An operation failed for another reason than a broken link; such errors
                are the program's, and never redone.
        """
        with self._idle:
            self._idle.wait_for(lambda: self._pending == 0)
        self._raise_failure()

    def end(self) -> None:
        """End the threads once what was issued is done: the program destroyed the group."""
        with self._idle:
            queues, self._queues = self._queues, {}
        for work_queue in queues.values():
            work_queue.submit(None)

    def enter_sandbox(self) -> None:
        """Run operations in the sandbox from now on; at a step boundary only."""
        self.communicator = self._sandbox

    def leave_sandbox(self) -> None:
        """Run operations for real from now on; at a step boundary only."""
        self.communicator = self._real

    def rewind(self) -> None:
        """A new epoch begins at every member."""
        self._clock.rewind()

    def __deepcopy__(self, memo: dict[int, Any]) -> GroupEngine:
        return self


def _in_mode_of(tensors: Sequence[torch.Tensor], operation: Operation) -> Operation:
    """``operation``, where it may write to ``tensors``.

    Those that were made under ``torch.inference_mode()``, in an evaluation say, can be written to
    under it only, and each thread has its own mode.
    """
    for tensor in tensors:  # in every collective: nothing is allocated
        if tensor.is_inference():
            return partial(_in_inference_mode, operation)
    return operation


def _in_inference_mode(operation: Operation, communicator: Communicator) -> None:
    with torch.inference_mode():
        operation(communicator)
