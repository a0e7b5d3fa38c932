"""The sandbox of a standby: recorded results where there are some, stand-ins elsewhere."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from typing import Final

import torch

from trainmover_executor.collectives.communicator.reduction import Reduction
from trainmover_executor.collectives.sandbox.recording import Recording, Results, key_of
from trainmover_executor.collectives.sandbox.stand_ins import SandboxCommunicator

__all__ = ["Replay", "ReplayingCommunicator"]

_PATIENCE_S: Final = 60.0
"""A standby of a job that does not get on goes on with stand-ins after that long."""


class Replay:
    """Where a standby is in the recording of its rank.

    The set-up before the first step takes part 0; each shadow iteration begins at the beginning of
    part 1, for it runs the body of the same step again.

    Args:
        recording: What the active rank sends.
    """

    def __init__(self, recording: Recording) -> None:
        self._recording = recording
        self._part = 0
        self._taken: defaultdict[str, int] = defaultdict(int)

    def begin_step(self) -> None:
        """A shadow iteration begins."""
        self._part = 1
        self._taken.clear()

    def take(self, key: str, *, patience_s: float | None) -> Results:
        """The next result with this key; None when it is not known. See ``Recording.find``."""
        index = self._taken[key]
        self._taken[key] += 1
        return self._recording.find(self._part, key, index, patience_s=patience_s)


class ReplayingCommunicator(SandboxCommunicator):
    """Replays what the active rank of the same number got.

    What only another rank can know (messages, objects that are broadcast) is waited for as long as
    the active rank lives, everything else for a while.

    Args:
        rank: Rank within the group.
        group: Name of the group.
        replay: Shared by all groups of the process.
    """

    def __init__(self, *, rank: int, group: str, replay: Replay) -> None:
        super().__init__(rank=rank)
        self._group = group
        self._from = replay

    def allreduce(self, tensor: torch.Tensor, reduction: Reduction) -> None:
        """The recorded result, else keep ``tensor``."""
        if not self._replay("allreduce", "", [tensor]):
            super().allreduce(tensor, reduction)

    def reduce_scatter(
        self, out: torch.Tensor, inputs: Sequence[torch.Tensor], reduction: Reduction
    ) -> None:
        """The recorded result, else one's own chunk."""
        if not self._replay("reduce_scatter", "", [out]):
            super().reduce_scatter(out, inputs, reduction)

    def all_gather(self, outs: Sequence[torch.Tensor], tensor: torch.Tensor) -> None:
        """The recorded result, else one's own tensor everywhere."""
        if not self._replay("all_gather", "", outs):
            super().all_gather(outs, tensor)

    def broadcast(self, tensor: torch.Tensor, *, root: int) -> None:
        """The recorded result, else keep ``tensor``."""
        if not self._replay("broadcast", root, [tensor], patience_s=self._wait_s(tensor, root)):
            super().broadcast(tensor, root=root)

    def reduce(self, tensor: torch.Tensor, reduction: Reduction, *, root: int) -> None:
        """The recorded result, else keep ``tensor``."""
        if not self._replay("reduce", root, [tensor]):
            super().reduce(tensor, reduction, root=root)

    def gather(self, outs: Sequence[torch.Tensor], tensor: torch.Tensor, *, root: int) -> None:
        """The recorded result, else one's own tensor everywhere."""
        if not self._replay("gather", root, outs):
            super().gather(outs, tensor, root=root)

    def scatter(self, out: torch.Tensor, inputs: Sequence[torch.Tensor], *, root: int) -> None:
        """The recorded result, else one's own piece or zeros."""
        if not self._replay("scatter", root, [out], patience_s=self._wait_s(out, root)):
            super().scatter(out, inputs, root=root)

    def all_to_all(self, outs: Sequence[torch.Tensor], inputs: Sequence[torch.Tensor]) -> None:
        """The recorded result, else zeros."""
        if not self._replay("all_to_all", "", outs):
            super().all_to_all(outs, inputs)

    def recv(self, tensor: torch.Tensor, *, source: int, tag: int) -> None:
        """The recorded message, else zeros."""
        if not self._replay("recv", f"{source}:{tag}", [tensor], patience_s=None):
            super().recv(tensor, source=source, tag=tag)

    def _wait_s(self, tensor: torch.Tensor, root: int) -> float | None:
        """The root tells sizes or objects without limit, numbers to compute with for a while."""
        return _PATIENCE_S if root == self._rank or tensor.is_floating_point() else None

    def _replay(
        self,
        op: str,
        peer: int | str,
        outs: Sequence[torch.Tensor],
        *,
        patience_s: float | None = _PATIENCE_S,
    ) -> bool:
        if not outs:
            return False
        found = self._from.take(key_of(self._group, op, peer, outs), patience_s=patience_s)
        if found is None or [kept.shape for kept in found] != [out.shape for out in outs]:
            return False
        for out, kept in zip(outs, found, strict=True):
            out.detach().copy_(kept)
        return True
