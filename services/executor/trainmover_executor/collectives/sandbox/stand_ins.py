"""The communication-free sandbox: every collective completes at once with a local stand-in.

Shadow iterations of a standby run on it (TrainMover section 4.2), and so does what is left of a
step whose communication broke: the step runs through to the vote, which aborts it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

import torch

from trainmover_executor.collectives.communicator.reduction import Reduction

__all__ = ["SandboxCommunicator"]


class SandboxCommunicator:
    """Stand-ins that keep values finite and shapes right: one's own contribution.

    Args:
        rank: Rank within the group.

    Attributes:
        empties: Whether a broadcast leaves zeros where it would leave what was there before: the
            sizes of objects, of which memory without a value would be one.
    """

    empties: ClassVar[bool] = False

    def __init__(self, *, rank: int) -> None:
        self._rank = rank

    def allreduce(self, tensor: torch.Tensor, reduction: Reduction) -> None:
        """Keep ``tensor``."""

    def reduce_scatter(
        self,
        out: torch.Tensor,
        inputs: Sequence[torch.Tensor],
        reduction: Reduction,  # noqa: ARG002
    ) -> None:
        """One's own chunk."""
        out.detach().copy_(inputs[self._rank].detach().view(out.shape))

    def all_gather(self, outs: Sequence[torch.Tensor], tensor: torch.Tensor) -> None:
        """One's own tensor everywhere."""
        mine = tensor.detach().reshape(-1)
        for out in outs:
            flat = mine[: out.numel()] if out.numel() <= mine.numel() else None
            if flat is not None:
                out.detach().copy_(flat.view(out.shape))

    def broadcast(self, tensor: torch.Tensor, *, root: int) -> None:
        """Keep ``tensor``."""
        if SandboxCommunicator.empties and root != self._rank:
            tensor.detach().zero_()

    def reduce(self, tensor: torch.Tensor, reduction: Reduction, *, root: int) -> None:
        """Keep ``tensor``."""

    def gather(self, outs: Sequence[torch.Tensor], tensor: torch.Tensor, *, root: int) -> None:  # noqa: ARG002
        """One's own tensor everywhere."""
        self.all_gather(outs, tensor)

    def scatter(self, out: torch.Tensor, inputs: Sequence[torch.Tensor], *, root: int) -> None:  # noqa: ARG002
        """One's own piece at the root, zeros elsewhere."""
        if inputs:
            out.detach().copy_(inputs[self._rank].detach().view(out.shape))
        else:
            out.detach().zero_()

    def all_to_all(self, outs: Sequence[torch.Tensor], inputs: Sequence[torch.Tensor]) -> None:  # noqa: ARG002
        """Zeros: sizes may differ by peer."""
        for out in outs:
            out.detach().zero_()

    def send(self, tensor: torch.Tensor, *, to: int, tag: int) -> None:
        """Drop it."""

    def recv(self, tensor: torch.Tensor, *, source: int, tag: int) -> None:  # noqa: ARG002
        """Zeros."""
        tensor.detach().zero_()

    def barrier(self) -> None:
        """Nothing to wait for."""
