"""The small interface between a process group and whatever moves its bytes.

All operations are blocking and run on the group's communication thread. Tensors are what torch
handed over: any dtype, any layout, possibly empty. Results are written in place.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import torch

from trainmover_executor.collectives.communicator.reduction import Reduction

__all__ = ["Communicator"]


class Communicator(Protocol):
    """Collectives of one group. Ranks here are ranks within the group."""

    def allreduce(self, tensor: torch.Tensor, reduction: Reduction) -> None:
        """Every rank's ``tensor`` becomes the combination over ranks."""
        ...

    def reduce_scatter(
        self, out: torch.Tensor, inputs: Sequence[torch.Tensor], reduction: Reduction
    ) -> None:
        """``out`` becomes the combination over ranks of their ``inputs[my rank]``."""
        ...

    def all_gather(self, outs: Sequence[torch.Tensor], tensor: torch.Tensor) -> None:
        """``outs[i]`` becomes rank i's ``tensor``."""
        ...

    def broadcast(self, tensor: torch.Tensor, *, root: int) -> None:
        """Every rank's ``tensor`` becomes the root's."""
        ...

    def reduce(self, tensor: torch.Tensor, reduction: Reduction, *, root: int) -> None:
        """The root's ``tensor`` becomes the combination over ranks."""
        ...

    def gather(self, outs: Sequence[torch.Tensor], tensor: torch.Tensor, *, root: int) -> None:
        """At the root ``outs[i]`` becomes rank i's ``tensor``; elsewhere ``outs`` is empty."""
        ...

    def scatter(self, out: torch.Tensor, inputs: Sequence[torch.Tensor], *, root: int) -> None:
        """``out`` becomes the root's ``inputs[my rank]``; elsewhere ``inputs`` is empty."""
        ...

    def all_to_all(self, outs: Sequence[torch.Tensor], inputs: Sequence[torch.Tensor]) -> None:
        """``outs[i]`` becomes rank i's ``inputs[my rank]``."""
        ...

    def send(self, tensor: torch.Tensor, *, to: int, tag: int) -> None:
        """Send to one rank."""
        ...

    def recv(self, tensor: torch.Tensor, *, source: int, tag: int) -> None:
        """Receive what ``source`` sent under ``tag``."""
        ...

    def barrier(self) -> None:
        """Return when every rank has come here."""
        ...
