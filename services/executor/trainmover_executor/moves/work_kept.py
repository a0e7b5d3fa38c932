"""What ranks do between two steps, kept by their neighbours in case they crash.

An evaluation returns the same everywhere; a rollout of a policy does not, and the environment that
it went through is another one afterwards, too. Parts of the private state, see ``private_state``.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from trainmover_executor.moves.course_packing import value_of
from trainmover_executor.position.packed import Blob
from trainmover_executor.position.position import Position, WorkDone
from trainmover_executor.position.results import Returned
from trainmover_executor.state.packing.blobs import blob_of, blob_of_bytes, bytes_in
from trainmover_executor.state.packing.portable import pack_tree, unpack_tree

__all__ = ["WorkKept", "packed_work", "results_of", "works_of"]

_MOST_BYTES: Final = 16 * 1024 * 1024
"""Of results that are kept of each rank; what is larger by itself, neighbours do not get."""
_MOST: Final = 4096


class WorkKept:
    """Work of this rank and of those whose private state is kept here."""

    def __init__(self) -> None:
        self._own: dict[int, dict[int, Position]] = {}
        self._positions: dict[int, dict[int, dict[int, bytes]]] = {}
        self._results: dict[int, dict[int, bytes]] = {}

    def did(self, work: WorkDone, *, step: int) -> None:
        """This rank has done ``work`` after ``step`` steps of the job."""
        self._own.setdefault(step, {})[work.returned.ordinal] = work.position

    def heard(self, data: bytes, *, rank: int, step: int) -> None:
        """Another one has; ``data`` is what ``packed_work`` returned there."""
        if not data:
            return
        ordinal, result, position = unpack_tree(data)["work"]
        self._positions.setdefault(step, {}).setdefault(rank, {})[ordinal] = position
        results = self._results.setdefault(rank, {})
        results.pop(ordinal, None)  # of an attempt that broke
        results[ordinal] = result
        size = sum(map(len, results.values())) if len(result) > _MOST else 0
        for oldest in [*results][:-1]:
            if size <= _MOST_BYTES and len(results) <= _MOST:
                break
            size -= len(results.pop(oldest))

    def forget(self, *, before: int) -> None:
        """Votes have passed: what was known at earlier steps is not needed; results are."""
        for of_steps in (self._own, self._positions):
            for step in [step for step in of_steps if step < before]:
                del of_steps[step]

    def own(self, *, step: int, ordinal: int) -> Position | None:
        """Where this rank was behind the last work up to ``ordinal``; None if none was since."""
        works = self._own.get(step, {})
        return works.get(max((one for one in works if one <= ordinal), default=0))

    def of(self, rank: int, *, step: int) -> dict[str, Any]:
        """What is kept of ``rank``, as a portable tree; see ``works_of`` and ``results_of``."""
        works = self._positions.get(step, {}).get(rank, {})
        results = self._results.get(rank, {})
        return {"works": _pairs(works), "results": _pairs(results)}

    def kept(self, *, step: int) -> list[list[Any]]:
        """All of it, for another process that ``keep`` s it."""
        return [[rank, self.of(rank, step=step)] for rank in sorted(self._results)]

    def keep(self, kept: Sequence[Sequence[Any]], *, step: int) -> None:
        """Take over what another process kept."""
        self._own = {}
        self._positions = {step: {rank: dict(tree["works"]) for rank, tree in kept}}
        self._results = {rank: dict(tree["results"]) for rank, tree in kept}


def packed_work(work: WorkDone) -> bytes:
    """``work`` for neighbours."""
    value = work.returned.value
    result = bytes_in(value if isinstance(value, Blob) else blob_of(value))
    result = b"" if len(result) > _MOST_BYTES else result
    position = pack_tree(work.position.to_tree())
    return pack_tree({"work": [work.returned.ordinal, result, position]})


def works_of(tree: dict[str, Any]) -> dict[int, Position]:
    """Where a rank was behind each work since its vote, by ordinal.

    Args:
        tree: What ``WorkKept.of`` returned; without works if an earlier release did.
    """
    return {n: Position.from_tree(unpack_tree(data)) for n, data in tree.get("works", [])}


def results_of(tree: dict[str, Any]) -> dict[int, Returned | None]:
    """What its work returned, by ordinal; None where that is too large to be kept."""
    return {
        n: Returned(n, value_of(blob_of_bytes(data))) if data else None
        for n, data in tree.get("results", [])
    }


def _pairs(values: dict[int, bytes]) -> list[list[Any]]:
    return [[ordinal, data] for ordinal, data in values.items()]
