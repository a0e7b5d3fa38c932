"""Results of a job's first step, recorded by active ranks and replayed by standbys.

Most collectives can be faked in the sandbox. Metadata cannot: a pipeline stage learns the shapes of
its inputs from its neighbour in the first step, and programs broadcast objects. So an active rank
keeps every small result up to its first committed step, and the standby process of the same rank
gets them in the order in which they came (TrainMover section 4.2: record and replay).
"""

from __future__ import annotations

import threading
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

import torch

from trainmover_executor.communicator.base import Communicator
from trainmover_executor.communicator.reduction import Reduction
from trainmover_executor.communicator.sandbox import SandboxCommunicator

__all__ = ["Entry", "Recording", "RecordingCommunicator", "ReplayingCommunicator"]

_RESULT_LIMIT_BYTES: Final = 64 * 1024
_TOTAL_LIMIT_BYTES: Final = 16 * 1024 * 1024


@dataclass(frozen=True, slots=True)
class Entry:
    """The result of one operation.

    Attributes:
        key: Group, operation and peer.
        tensors: Copies; None where the result was too large to keep.
    """

    key: str
    tensors: tuple[torch.Tensor, ...] | None


class Recording:
    """Results in the order in which they came; written by one side, read by any thread.

    Attributes:
        nbytes: Bytes kept.
        dropped: Results that were too large.
    """

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._entries: list[Entry] = []
        self._by_key: defaultdict[str, list[Entry]] = defaultdict(list)
        self._listeners: list[Callable[[], object]] = []
        self._patient = True
        self._complete = False
        self.nbytes = 0
        self.dropped = 0

    @property
    def complete(self) -> bool:
        """Whether nothing more will come."""
        return self._complete

    def listen(self, listener: Callable[[], object]) -> None:
        """Call ``listener`` whenever there is more, from the thread that added it."""
        with self._changed:
            self._listeners.append(listener)

    def keep(self, key: str, results: Sequence[torch.Tensor]) -> None:
        """Copy what an operation has just produced, unless it is too large."""
        size = sum(result.numel() * result.element_size() for result in results)
        small = size <= _RESULT_LIMIT_BYTES and self.nbytes + size <= _TOTAL_LIMIT_BYTES
        copies = tuple(result.detach().clone() for result in results) if small else None
        self.add(Entry(key, copies))

    def add(self, entry: Entry) -> None:
        """Append an entry."""
        with self._changed:
            if self._complete:
                return
            self._entries.append(entry)
            self._by_key[entry.key].append(entry)
            if entry.tensors is None:
                self.dropped += 1
            else:
                self.nbytes += sum(t.numel() * t.element_size() for t in entry.tensors)
        self._notify()

    def close(self) -> None:
        """Nothing more will come; again does nothing."""
        with self._changed:
            self._complete = True
        self._notify()

    def wait_no_more(self) -> None:
        """From now on ``find`` returns at once: metadata is exchanged in the first step only."""
        with self._changed:
            self._patient = False
            self._changed.notify_all()

    def since(self, count: int) -> list[Entry]:
        """All entries but the first ``count``."""
        with self._changed:
            return self._entries[count:]

    def find(self, key: str, index: int, *, wait: bool) -> tuple[torch.Tensor, ...] | None:
        """The result of the ``index``-th operation with this key; None when it was not kept.

        Args:
            key: Group, operation and peer.
            index: From 0.
            wait: Wait until it has come, or will not come any more.
        """
        with self._changed:
            if wait:
                self._changed.wait_for(
                    lambda: self._complete or not self._patient or len(self._by_key[key]) > index
                )
            found = self._by_key[key]
            return found[index].tensors if index < len(found) else None

    def _notify(self) -> None:
        with self._changed:
            self._changed.notify_all()
            listeners = list(self._listeners)
        for listener in listeners:
            listener()


def _key(group: str, op: str, peer: int | None = None) -> str:
    return f"{group}|{op}" if peer is None else f"{group}|{op}|{peer}"


class RecordingCommunicator:
    """Records what others sent, and passes everything on.

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

    def reduce_scatter(
        self, out: torch.Tensor, inputs: Sequence[torch.Tensor], reduction: Reduction
    ) -> None:
        """See ``Communicator.reduce_scatter``."""
        self._real.reduce_scatter(out, inputs, reduction)

    def all_gather(self, outs: Sequence[torch.Tensor], tensor: torch.Tensor) -> None:
        """See ``Communicator.all_gather``."""
        self._real.all_gather(outs, tensor)
        self._recording.keep(_key(self._group, "all_gather"), outs)

    def broadcast(self, tensor: torch.Tensor, *, root: int) -> None:
        """See ``Communicator.broadcast``."""
        self._real.broadcast(tensor, root=root)
        self._recording.keep(_key(self._group, "broadcast", root), [tensor])

    def reduce(self, tensor: torch.Tensor, reduction: Reduction, *, root: int) -> None:
        """See ``Communicator.reduce``."""
        self._real.reduce(tensor, reduction, root=root)

    def gather(self, outs: Sequence[torch.Tensor], tensor: torch.Tensor, *, root: int) -> None:
        """See ``Communicator.gather``."""
        self._real.gather(outs, tensor, root=root)
        self._recording.keep(_key(self._group, "gather", root), outs)

    def scatter(self, out: torch.Tensor, inputs: Sequence[torch.Tensor], *, root: int) -> None:
        """See ``Communicator.scatter``."""
        self._real.scatter(out, inputs, root=root)
        self._recording.keep(_key(self._group, "scatter", root), [out])

    def all_to_all(self, outs: Sequence[torch.Tensor], inputs: Sequence[torch.Tensor]) -> None:
        """See ``Communicator.all_to_all``."""
        self._real.all_to_all(outs, inputs)
        self._recording.keep(_key(self._group, "all_to_all"), outs)

    def send(self, tensor: torch.Tensor, *, to: int, tag: int) -> None:
        """See ``Communicator.send``."""
        self._real.send(tensor, to=to, tag=tag)

    def recv(self, tensor: torch.Tensor, *, source: int, tag: int) -> None:
        """See ``Communicator.recv``."""
        self._real.recv(tensor, source=source, tag=tag)
        self._recording.keep(_key(self._group, "recv", source), [tensor])

    def barrier(self) -> None:
        """See ``Communicator.barrier``."""
        self._real.barrier()


class ReplayingCommunicator(SandboxCommunicator):
    """The sandbox of a standby: recorded results where there are some, stand-ins elsewhere.

    What only another rank can know (messages, objects) is waited for; everything else takes the
    recorded result if it has come already.

    Args:
        rank: Rank within the group.
        group: Name of the group.
        recording: What the active rank sends.
    """

    def __init__(self, *, rank: int, group: str, recording: Recording) -> None:
        super().__init__(rank=rank)
        self._group = group
        self._recording = recording
        self._taken: defaultdict[str, int] = defaultdict(int)

    def all_gather(self, outs: Sequence[torch.Tensor], tensor: torch.Tensor) -> None:
        """The recorded result, else one's own tensor everywhere."""
        if not self._replay("all_gather", None, outs, wait=False):
            super().all_gather(outs, tensor)

    def broadcast(self, tensor: torch.Tensor, *, root: int) -> None:
        """The recorded result, else keep ``tensor``."""
        self._replay("broadcast", root, [tensor], wait=self._tells(tensor, root))

    def gather(self, outs: Sequence[torch.Tensor], tensor: torch.Tensor, *, root: int) -> None:
        """The recorded result, else one's own tensor everywhere."""
        if not self._replay("gather", root, outs, wait=False):
            super().gather(outs, tensor, root=root)

    def scatter(self, out: torch.Tensor, inputs: Sequence[torch.Tensor], *, root: int) -> None:
        """The recorded result, else one's own piece or zeros."""
        if not self._replay("scatter", root, [out], wait=self._tells(out, root)):
            super().scatter(out, inputs, root=root)

    def all_to_all(self, outs: Sequence[torch.Tensor], inputs: Sequence[torch.Tensor]) -> None:
        """The recorded result, else zeros."""
        if not self._replay("all_to_all", None, outs, wait=False):
            super().all_to_all(outs, inputs)

    def recv(self, tensor: torch.Tensor, *, source: int, tag: int) -> None:
        """The recorded message, else zeros."""
        if not self._replay("recv", source, [tensor], wait=True):
            super().recv(tensor, source=source, tag=tag)

    def _tells(self, tensor: torch.Tensor, root: int) -> bool:
        """Whether the root tells something about sizes or objects, not numbers to compute with."""
        return root != self._rank and not tensor.is_floating_point()

    def _replay(
        self, op: str, peer: int | None, outs: Sequence[torch.Tensor], *, wait: bool
    ) -> bool:
        key = _key(self._group, op, peer)
        index = self._taken[key]
        self._taken[key] += 1
        found = self._recording.find(key, index, wait=wait)
        if found is None or len(found) != len(outs):
            return False
        if any(a.shape != b.shape or a.dtype != b.dtype for a, b in zip(found, outs, strict=True)):
            return False
        for out, kept in zip(outs, found, strict=True):
            out.detach().copy_(kept)
        return True
