"""What the ranks of a run wrote: one line per committed step, one digest at the end."""

from __future__ import annotations

import json
import statistics
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

__all__ = ["RunMetrics", "StepLine", "parse_lines", "read_run"]


@dataclass(frozen=True, slots=True)
class StepLine:
    """One committed step at one rank.

    Attributes:
        step: Number of the step.
        time_s: When it was committed, unix seconds of the machine's clock.
        loss: The loss, for plots.
        loss_hex: The loss to the last bit.
        epoch: Epoch at which it was computed.
        machine: Who computed it.
    """

    step: int
    time_s: float
    loss: float
    loss_hex: str
    epoch: int
    machine: str


@dataclass(frozen=True, slots=True)
class RunMetrics:
    """All that the ranks of one run wrote.

    Attributes:
        steps: Lines of each rank in the order they were written.
        digests: Final digest of parameters and optimizer state by rank.
        damaged: Lines by rank that do not parse.
    """

    steps: Mapping[int, tuple[StepLine, ...]]
    digests: Mapping[int, str]
    damaged: Mapping[int, int]

    @property
    def median_step_s(self) -> float | None:
        """Median time between successive steps on one machine, in seconds."""
        gaps = [
            later.time_s - line.time_s
            for lines in self.steps.values()
            for line, later in pairwise(lines)
            if line.machine == later.machine and line.epoch == later.epoch
        ]
        return statistics.median(gaps) if gaps else None

    @property
    def first_step_time_s(self) -> float | None:
        """When the slowest rank committed its first step, unix seconds."""
        return max((lines[0].time_s for lines in self.steps.values() if lines), default=None)

    def gap_before(self, step: int, *, ranks: Iterable[int]) -> tuple[float, float] | None:
        """The longest time that any of ``ranks`` went without completing a step before ``step``.

        Returns:
            When that rank completed the step before and when ``step``, unix seconds.
        """
        gaps = []
        for rank in ranks:
            times = {line.step: line.time_s for line in self.steps.get(rank, ())}
            if step in times and step - 1 in times:
                gaps.append((times[step - 1], times[step]))
        return max(gaps, key=lambda gap: gap[1] - gap[0], default=None)


def parse_lines(lines: Iterable[str]) -> tuple[tuple[StepLine, ...], int]:
    """The lines that parse, and the number of those that do not (cut off by a crash)."""
    parsed: list[StepLine] = []
    damaged = 0
    for line in lines:
        try:
            data = json.loads(line)
            parsed.append(
                StepLine(
                    step=int(data["step"]),
                    time_s=float(data["t"]),
                    loss=float(data["loss"]),
                    loss_hex=str(data["loss_hex"]),
                    epoch=int(data["epoch"]),
                    machine=str(data["machine"]),
                )
            )
        except (ValueError, KeyError, TypeError):
            damaged += 1
    return tuple(parsed), damaged


def read_run(folder: Path) -> RunMetrics:
    """Read ``rank-<r>.jsonl`` and ``rank-<r>.final.json`` of every rank that wrote any."""
    steps: dict[int, tuple[StepLine, ...]] = {}
    damaged: dict[int, int] = {}
    digests: dict[int, str] = {}
    for file in folder.glob("rank-*.jsonl"):
        rank = int(file.stem.removeprefix("rank-"))
        steps[rank], damaged[rank] = parse_lines(file.read_text(encoding="utf-8").splitlines())
    for file in folder.glob("rank-*.final.json"):
        rank = int(file.name.removeprefix("rank-").removesuffix(".final.json"))
        digests[rank] = str(json.loads(file.read_text(encoding="utf-8"))["digest"])
    return RunMetrics(
        steps=dict(sorted(steps.items())), digests=dict(sorted(digests.items())), damaged=damaged
    )
