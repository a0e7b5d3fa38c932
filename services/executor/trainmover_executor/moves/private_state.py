"""Private state: what only one rank knows, kept by its neighbours in case it crashes.

Parameters survive a crash in a replica. Random generators and the position in the data do not:
every rank has its own. So with each vote a rank hands its private state, a few kilobytes, to the
same local rank of the next slots. A vote that passes therefore implies that every private state
for the next step is held by as many machines as ``trainmover.protocol.private_state`` says.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from trainmover.errors import ProtocolError
from trainmover.job.plan import Plan
from trainmover.job.topology import Layout
from trainmover.protocol.private_state import holder_of, holders_of
from trainmover_executor.collectives.linked.control import ControlCommunicator
from trainmover_executor.moves.work_kept import WorkKept, packed_work
from trainmover_executor.position.position import WorkDone
from trainmover_executor.state.packing.portable import pack_tree, unpack_tree

__all__ = [
    "PRIVATE_STATE_GROUP",
    "PrivateStateKeeper",
    "PrivateStateLostError",
    "giver_of",
    "open_private_state",
]

PRIVATE_STATE_GROUP: Final = "_private_state"
"""Group name of the links that hand private state over."""

_ALONE, _FOLLOWED = b"\0", b"\1"
_LIMIT_BYTES: Final = 64 * 1024 * 1024


class PrivateStateLostError(ProtocolError):
    """Every rank that kept the private state of a rank is gone."""


def giver_of(plan: Plan, joiner: int) -> int:
    """The rank that hands ``joiner`` its private state under ``plan``.

    Raises:
        PrivateStateLostError: All who kept it join themselves.
    """
    holder = holder_of(joiner, plan.membership.layout, joining=plan.joining_ranks)
    if holder is None:
        raise PrivateStateLostError(
            f"the private state of rank {joiner} is lost with all who kept it"
        )
    return holder


class PrivateStateKeeper:
    """Exchanges private state with the neighbouring slots and keeps that of the slots before.

    Args:
        control: Communicator over all ranks.
        rank: Global rank.
        layout: Shape of the job.
    """

    def __init__(self, control: ControlCommunicator, *, rank: int, layout: Layout) -> None:
        self._control = control
        self._layout = layout
        self._rank = rank
        self._kept: dict[int, dict[int, bytes]] = {}
        self._own: dict[int, tuple[dict[str, Any], bytes]] = {}
        self._works = WorkKept()

    def exchange(self, content: dict[str, Any], *, step: int, followed: bool) -> bool:
        """Hand over one's own private state after ``step`` steps; keep the others'.

        Args:
            content: What only this rank knows.
            step: Steps completed by the job once the vote has passed.
            followed: Whether this rank's state follows right behind, to the nearest holder.

        Returns:
            Whether that of the rank comes whose nearest holder this one is.

        Raises:
            LinkBrokenError: A neighbour is gone.
        """
        holders = holders_of(self._rank, self._layout)
        mine = pack_tree({"step": step, "content": content}) if holders else b""
        before = {k: v for k, v in self._own.items() if k == step - 1}
        self._own = {**before, step: (content["variables"], mine)}
        received = self._swap((_FOLLOWED if followed else _ALONE) + mine)
        # The ones before the latest are kept: a vote that broke after the exchange may turn out
        # aborted, and then the start of the step is what a joiner needs.
        kept = {k: v for k, v in self._kept.items() if k == step - 1}
        self._kept = {**kept, step: {rank: data[1:] for rank, data in received.items()}}
        self._works.forget(before=step - 1)
        return any(data[:1] == _FOLLOWED for data in [*received.values()][:1])

    def exchange_work(self, work: WorkDone, *, step: int) -> None:
        """The same behind work between steps, which may be another at each rank.

        Args:
            work: What it returned at this rank, and where this rank is.
            step: Steps completed by the job.

        Raises:
            LinkBrokenError: A neighbour is gone.
        """
        self._works.did(work, step=step)
        mine = packed_work(work) if holders_of(self._rank, self._layout) else b""
        for rank, data in self._swap(mine).items():
            self._works.heard(data, rank=rank, step=step)

    def _swap(self, mine: bytes) -> dict[int, bytes]:
        """Give ``mine`` to all holders.

        Returns:
            What came from whom this rank is a holder of, by rank, the nearest first.

        Raises:
            LinkBrokenError: One of them is gone.
        """
        holders = holders_of(self._rank, self._layout)
        # As far before us as the holder is behind us: everybody swaps over the same distances.
        world = self._layout.world_size
        peers = [(holder, (2 * self._rank - holder) % world) for holder in holders]
        states = self._control.exchange_bytes(mine, peers=peers, limit=_LIMIT_BYTES)
        return {source: data for (_, source), data in zip(peers, states, strict=True)}

    def own_variables(self, *, step: int, ordinal: int = 0) -> dict[str, Any]:
        """The program's variables in this rank's own private state after ``step`` steps.

        Args:
            step: Steps completed by the job.
            ordinal: As of the last work between steps up to this one, if there was any since.
        """
        later = self._works.own(step=step, ordinal=ordinal)
        return self._own.get(step, ({}, b""))[0] if later is None else later.variables

    def own_buffers(self, *, step: int, ordinal: int = 0) -> list[list[Any]]:
        """(index, buffer) of what training changes, likewise."""
        later = self._works.own(step=step, ordinal=ordinal)
        if later is not None:
            return later.buffers
        _, packed = self._own.get(step, ({}, b""))
        buffers: list[list[Any]] = open_private_state(packed)["buffers"] if packed else []
        return buffers

    def neighbours_variables(self, *, step: int) -> dict[str, Any] | None:
        """The same of some rank whose private state is kept here; None where there is none."""
        for data in self._kept.get(step, {}).values():
            theirs: dict[str, Any] = open_private_state(data)["variables"]
            return theirs
        return None

    def held(self, rank: int, *, step: int) -> dict[str, Any]:
        """The kept private state of ``rank`` after ``step`` steps, as a portable tree.

        Of its vote, and behind work between steps. A job that has not voted has the latter alone.

        Raises:
            ProtocolError: There is none.
        """
        works = self._works.of(rank, step=step)
        data = self._kept.get(step, {}).get(rank, b"")
        has_voted = min(self._kept, default=step + 1) <= step
        if not data and (has_voted or not works["results"]):
            raise ProtocolError(
                f"rank {self._rank} keeps no private state of rank {rank} after {step} steps, only "
                f"{ {k: sorted(v) for k, v in self._kept.items()} }"
            )
        return {"private_state": data, **works}

    def kept(self, *, step: int) -> dict[str, Any]:
        """All that is kept for ``step``, for the next holder, as a portable tree."""
        states = [[rank, data] for rank, data in sorted(self._kept.get(step, {}).items())]
        return {"private_state": states, "works": self._works.kept(step=step)}

    def keep(self, kept: Mapping[str, Any], *, step: int) -> None:
        """Take over what another process ``kept`` for ``step``."""
        self._kept = {step: dict(kept["private_state"])}
        self._works.keep(kept.get("works", []), step=step)


def open_private_state(data: bytes) -> dict[str, Any]:
    """The content of a rank's private state.

    Raises:
        ProtocolError: It does not parse.
    """
    content: dict[str, Any] = unpack_tree(data)["content"]
    return content
