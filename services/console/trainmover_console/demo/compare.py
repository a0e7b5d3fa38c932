"""Are two runs the same to the last bit, and if not, where do they part? Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from typing import Any

from trainmover_console.demo.metrics import RunMetrics, StepLine

__all__ = ["Comparison", "Difference", "compare"]


@dataclass(frozen=True, slots=True)
class Difference:
    """One way in which the runs differ.

    Attributes:
        kind: ``loss``, ``missing``, ``duplicate``, ``digest`` or ``rank``.
        rank: Where.
        step: When; None for a digest or a rank that wrote nothing.
        detail: The two values, for people.
    """

    kind: str
    rank: int
    step: int | None
    detail: str


@dataclass(frozen=True, slots=True)
class Comparison:
    """The outcome.

    Attributes:
        differences: Everything that differs, by step and rank.
        compared: Number of (rank, step) pairs whose losses were compared.
        unrecorded: (rank, step) pairs that a killed machine committed and could not write down.
    """

    differences: tuple[Difference, ...]
    compared: int
    unrecorded: tuple[tuple[int, int], ...] = ()

    @property
    def equal(self) -> bool:
        """Whether the runs are the same, bit for bit, and something was compared."""
        return not self.differences and self.compared > 0

    @property
    def first(self) -> Difference | None:
        """The earliest difference."""
        return self.differences[0] if self.differences else None

    def as_data(self) -> dict[str, Any]:
        """JSON-ready."""
        first = self.first
        return {
            "compared": self.compared,
            "differences": len(self.differences),
            "first_difference": None
            if first is None
            else {
                "kind": first.kind,
                "rank": first.rank,
                "step": first.step,
                "detail": first.detail,
            },
            "unrecorded": [list(pair) for pair in self.unrecorded],
        }


def compare(
    run: RunMetrics,
    reference: RunMetrics,
    *,
    ranks: int,
    steps: int,
    may_lack: AbstractSet[tuple[int, int]] = frozenset(),
) -> Comparison:
    """Compare losses of all steps of all ranks, and the final digests.

    Every rank of both runs must have written each of the steps 0 to ``steps - 1`` exactly once.

    Args:
        run: The run that was disturbed.
        reference: The run that was not.
        ranks: World size.
        steps: Steps of the job.
        may_lack: (rank, step) pairs that ``run`` may lack: a machine that is killed between the
            commit of a step and the line about it takes the line with it. The step itself counts,
            since its peers committed it, and the digests still have to agree.
    """
    found: list[Difference] = []
    unrecorded: list[tuple[int, int]] = []
    compared = 0
    for rank in range(ranks):
        lines, others = run.steps.get(rank, ()), reference.steps.get(rank, ())
        found += _duplicates(rank, lines, "the run") + _duplicates(rank, others, "the reference")
        ours = {line.step: line for line in lines}
        theirs = {line.step: line for line in others}
        for step in sorted({*range(steps), *ours, *theirs}):
            mine, other = ours.get(step), theirs.get(step)
            if mine is None and other is not None and (rank, step) in may_lack:
                unrecorded.append((rank, step))
            elif mine is None or other is None:
                who = "both" if mine is other else "the run" if mine is None else "the reference"
                found.append(Difference("missing", rank, step, f"in {who}"))
            else:
                compared += 1
                if mine.loss_hex != other.loss_hex:
                    detail = f"{mine.loss_hex} against {other.loss_hex}"
                    found.append(Difference("loss", rank, step, detail))
        mine_digest, other_digest = run.digests.get(rank), reference.digests.get(rank)
        if mine_digest is None or mine_digest != other_digest:
            detail = f"{mine_digest or 'none'} against {other_digest or 'none'}"
            found.append(Difference("digest", rank, None, detail))
    found.sort(key=lambda one: (one.step is None, one.step or 0, one.rank))
    return Comparison(tuple(found), compared, tuple(unrecorded))


def _duplicates(rank: int, lines: tuple[StepLine, ...], who: str) -> list[Difference]:
    counts = Counter(line.step for line in lines)
    return [
        Difference("duplicate", rank, step, f"{count} times in {who}")
        for step, count in counts.items()
        if count > 1
    ]
