"""Results of a job's set-up and first step, recorded by active ranks for standbys.

Most collectives can be faked in the sandbox. What a program looks at cannot: a pipeline stage
learns the shapes of its inputs from its neighbour, and programs broadcast objects and compare what
they gathered. So an active rank keeps every small result of its set-up, which is part 0 of the
recording, and of its first step, part 1. The standby process of the same rank runs the body of that
step in all of its shadow iterations, and replays part 1 in each (TrainMover section 4.2: record and
replay).
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

import torch

from trainmover_executor.collectives.communicator.base import Communicator
from trainmover_executor.collectives.communicator.reduction import Reduction

__all__ = ["BEGAN", "OF_FILES", "Entry", "Mark", "Recording", "RecordingCommunicator", "key_of"]

OF_FILES: Final = "files|"
"""How the keys begin of what a program found of files."""
BEGAN: Final = f"{OF_FILES}began"
"""When the first step began, in nanoseconds since 1970."""
_RESULT_LIMIT_BYTES: Final = 64 * 1024
_PART_LIMIT_BYTES: Final = 4 * 1024 * 1024
_HASTE_S: Final = 1.0
"""How long a standby that a job waits for waits for the recording."""

Results = tuple[torch.Tensor, ...] | None


class Mark(StrEnum):
    """What divides the entries of a recording."""

    BEGIN = "begin"
    """A step begins, and with it a part."""

    COMMIT = "commit"
    """The step is committed."""

    VOID = "void"
    """Communication broke: what came since the last mark does not count, most comes again."""


@dataclass(frozen=True, slots=True)
class Entry:
    """The result of one operation.

    Attributes:
        key: Which operation; see ``key_of``.
        tensors: Copies in host memory; None where the result was too large to keep.
    """

    key: str
    tensors: Results


def key_of(group: str, op: str, peer: int | str, results: Sequence[torch.Tensor]) -> str:
    """Names operations that are told apart by their order only.

    Types and shapes are part of it: a program that issues other collectives in its standby, because
    DDP has rebuilt its buckets, say, does not shift the results of those that are the same.
    """
    kinds = dict.fromkeys(f"{result.dtype}{list(result.shape)}" for result in results)
    return f"{group}|{op}|{peer}|{len(results)}|{','.join(kinds)}"


class Recording:
    """Results in the order in which they came; written by one thread, read by any.

    Attributes:
        nbytes: Bytes kept.
        dropped: Results that were too large.
        committed: Steps that are recorded as a whole: 0 or 1.
    """

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._log: list[Entry | Mark] = []
        self._parts: list[dict[str, list[Results]]] = [{}]
        self._loose: list[str] = []
        self._room = _PART_LIMIT_BYTES
        self._heard_at = time.monotonic()
        self._hurried = False
        self._complete = False
        self._listeners: list[Callable[[], object]] = []
        self.nbytes = 0
        self.dropped = 0
        self.committed = 0

    @property
    def complete(self) -> bool:
        """Whether nothing more will come."""
        return self._complete

    def listen(self, listener: Callable[[], object]) -> None:
        """Call ``listener`` whenever there is more, from the thread that added it."""
        with self._changed:
            self._listeners.append(listener)

    # -- written by an active rank, or by what a standby hears from it ----------------------------

    def keep(self, key: str, results: Sequence[torch.Tensor]) -> None:
        """Copy what an operation has just produced, unless it is too large."""
        size = _bytes_of(results)
        # Numbers may not take the room of what programs look at: sizes and objects.
        room = self._room - _PART_LIMIT_BYTES // 2 * any(map(torch.is_floating_point, results))
        copies = None
        if size <= min(_RESULT_LIMIT_BYTES, room):
            copies = tuple(result.detach().to("cpu", copy=True) for result in results)
        self.add(Entry(key, copies))

    def begin_step(self) -> None:
        """A step of the job begins; the second closes the recording."""
        if len(self._parts) > 1:
            self.close()
        else:
            self.add(Entry(BEGAN, (torch.tensor([time.time_ns()]),)))
            self.add(Mark.BEGIN)

    def add(self, item: Entry | Mark) -> None:
        """Append an entry or a mark; nothing once the recording is complete."""
        with self._changed:
            if self._complete:
                return
            self._log.append(item)
            self._heard_at = time.monotonic()
            if isinstance(item, Mark):
                self._divide(item)
            else:
                self._append(item)
        self._notify()

    def close(self) -> None:
        """Nothing more will come; again does nothing."""
        with self._changed:
            self._complete = True
        self._notify()

    def _append(self, entry: Entry) -> None:
        self._parts[-1].setdefault(entry.key, []).append(entry.tensors)
        if not entry.key.startswith(OF_FILES):  # a program does not ask again what it found
            self._loose.append(entry.key)
        if entry.tensors is None:
            self.dropped += 1
        else:
            size = _bytes_of(entry.tensors)
            self.nbytes += size
            self._room -= size

    def _divide(self, mark: Mark) -> None:
        match mark:
            case Mark.BEGIN:
                self._parts.append({})
                self._room = _PART_LIMIT_BYTES
            case Mark.COMMIT:
                self.committed = len(self._parts) - 1
            case Mark.VOID:
                for key in self._loose:
                    self._parts[-1][key].pop()
        self._loose.clear()

    def _notify(self) -> None:
        with self._changed:
            self._changed.notify_all()
            listeners = list(self._listeners)
        for listener in listeners:
            listener()

    # -- read ------------------------------------------------------------------------------------

    def since(self, count: int) -> list[Entry | Mark]:
        """Everything in its order, but the first ``count``."""
        with self._changed:
            return self._log[count:]

    def hurry(self) -> None:
        """The job waits for this standby: nobody waits long for a result from now on."""
        with self._changed:
            self._hurried = True
            self._changed.notify_all()

    def find(self, part: int, key: str, index: int, *, patience_s: float | None) -> Results:
        """The result of the ``index``-th operation with this key in a part.

        Waits until it has come or cannot come any more.

        Args:
            part: 0 is what came before the first step, 1 the step.
            key: See ``key_of``.
            index: From 0.
            patience_s: Longest wait without a sign of life of the active rank; None: no limit.

        Returns:
            None when it is not known: it was too large, or never came.
        """
        with self._changed:
            while not self._is_settled(part, key, index):
                limit_s = _HASTE_S if self._hurried else patience_s
                left_s = None if limit_s is None else self._heard_at + limit_s - time.monotonic()
                if left_s is not None and left_s <= 0:
                    break
                self._changed.wait(left_s)
            found = self._parts[part].get(key, []) if part < len(self._parts) else []
            return found[index] if index < len(found) else None

    def _is_settled(self, part: int, key: str, index: int) -> bool:
        if self._complete or part < len(self._parts) - 1:
            return True
        return part < len(self._parts) and len(self._parts[part].get(key, ())) > index


def _bytes_of(tensors: Sequence[torch.Tensor]) -> int:
    return sum(tensor.numel() * tensor.element_size() for tensor in tensors)


class RecordingCommunicator:
    """Records results, and passes everything on.

    Args:
        real: What does the work.
        group: Name of the group.
        recording: Where results go.
    """

    def __init__(self, real: Communicator, *, group: str, recording: Recording) -> None:
        self._real = real
        self._group = group
        self._recording = recording

    def allreduce(self, tensor: torch.Tensor, reduction: Reduction) -> None:
        """See ``Communicator.allreduce``."""
        self._real.allreduce(tensor, reduction)
        self._keep("allreduce", "", [tensor])

    def reduce_scatter(
        self, out: torch.Tensor, inputs: Sequence[torch.Tensor], reduction: Reduction
    ) -> None:
        """See ``Communicator.reduce_scatter``."""
        self._real.reduce_scatter(out, inputs, reduction)
        self._keep("reduce_scatter", "", [out])

    def all_gather(self, outs: Sequence[torch.Tensor], tensor: torch.Tensor) -> None:
        """See ``Communicator.all_gather``."""
        self._real.all_gather(outs, tensor)
        self._keep("all_gather", "", outs)

    def broadcast(self, tensor: torch.Tensor, *, root: int) -> None:
        """See ``Communicator.broadcast``."""
        self._real.broadcast(tensor, root=root)
        self._keep("broadcast", root, [tensor])

    def reduce(self, tensor: torch.Tensor, reduction: Reduction, *, root: int) -> None:
        """See ``Communicator.reduce``."""
        self._real.reduce(tensor, reduction, root=root)
        self._keep("reduce", root, [tensor])

    def gather(self, outs: Sequence[torch.Tensor], tensor: torch.Tensor, *, root: int) -> None:
        """See ``Communicator.gather``."""
        self._real.gather(outs, tensor, root=root)
        self._keep("gather", root, outs)

    def scatter(self, out: torch.Tensor, inputs: Sequence[torch.Tensor], *, root: int) -> None:
        """See ``Communicator.scatter``."""
        self._real.scatter(out, inputs, root=root)
        self._keep("scatter", root, [out])

    def all_to_all(self, outs: Sequence[torch.Tensor], inputs: Sequence[torch.Tensor]) -> None:
        """See ``Communicator.all_to_all``."""
        self._real.all_to_all(outs, inputs)
        self._keep("all_to_all", "", outs)

    def send(self, tensor: torch.Tensor, *, to: int, tag: int) -> None:
        """See ``Communicator.send``."""
        self._real.send(tensor, to=to, tag=tag)

    def recv(self, tensor: torch.Tensor, *, source: int, tag: int) -> None:
        """See ``Communicator.recv``."""
        self._real.recv(tensor, source=source, tag=tag)
        self._keep("recv", f"{source}:{tag}", [tensor])

    def barrier(self) -> None:
        """See ``Communicator.barrier``."""
        self._real.barrier()

    def _keep(self, op: str, peer: int | str, results: Sequence[torch.Tensor]) -> None:
        self._recording.keep(key_of(self._group, op, peer, results), results)
