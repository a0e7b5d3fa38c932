"""The capsule: what only one rank knows, kept by its buddy so that a crash does not lose it.

Parameters survive a crash in a replica. Random generators and the position in the data do not:
every rank has its own. So with each vote a rank hands its capsule, a few kilobytes, to the same
local rank of the next slot. A vote that passes therefore implies that every capsule for the next
step is held by another machine.
"""

from __future__ import annotations

from typing import Any, Final

from trainmover.errors import ProtocolError
from trainmover.topology import Layout
from trainmover_executor.communicator.link import LinkCommunicator
from trainmover_executor.state.portable import pack_tree, unpack_tree

__all__ = ["CapsuleKeeper", "holder_of", "open_capsule"]

_LIMIT_BYTES: Final = 64 * 1024 * 1024


def holder_of(rank: int, layout: Layout) -> int:
    """The rank that keeps the capsule of ``rank``."""
    return (rank + layout.ranks_per_slot) % layout.world_size


class CapsuleKeeper:
    """Exchanges capsules with the neighbouring slots and keeps the latest of the one before.

    Args:
        control: Communicator over all ranks.
        rank: Global rank.
        layout: Shape of the job.
    """

    def __init__(self, control: LinkCommunicator, *, rank: int, layout: Layout) -> None:
        self._control = control
        self._layout = layout
        self._rank = rank
        self._kept: dict[int, bytes] = {}

    def exchange(self, content: dict[str, Any], *, step: int) -> None:
        """Hand over one's own capsule for the state after ``step`` steps; keep the other's.

        Raises:
            LinkBrokenError: A neighbour is gone.
        """
        if self._layout.slots == 1:
            return
        source = (self._rank - self._layout.ranks_per_slot) % self._layout.world_size
        received = self._control.exchange_bytes(
            pack_tree({"step": step, "content": content}),
            to=holder_of(self._rank, self._layout),
            source=source,
            limit=_LIMIT_BYTES,
        )
        # The one before the latest is kept: a vote that broke after the exchange may turn out
        # void, and then the start of the step is what a joiner needs.
        kept = {k: v for k, v in self._kept.items() if k == step - 1}
        self._kept = {**kept, step: received}

    def held(self, *, step: int) -> dict[str, Any]:
        """The kept capsule for the state after ``step`` steps, as a portable tree.

        Raises:
            ProtocolError: There is none for that step.
        """
        if step not in self._kept:
            raise ProtocolError(
                f"rank {self._rank} keeps no capsule of its neighbour after {step} steps, "
                f"only after {sorted(self._kept)}"
            )
        return {"capsule": self._kept[step]}


def open_capsule(data: bytes) -> dict[str, Any]:
    """The content of a capsule.

    Raises:
        ProtocolError: It does not parse.
    """
    content: dict[str, Any] = unpack_tree(data)["content"]
    return content
