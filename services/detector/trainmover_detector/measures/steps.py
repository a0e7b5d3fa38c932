"""Steps as ranks send records of them: a bounded table of the latest, and how long they take.

Rows come from many machines in any order; a row is whole once every rank is in it.
"""

from __future__ import annotations

import math
from collections import deque
from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt

from trainmover.telemetry.records import Flag, Phase
from trainmover_detector.measures.timing import StepRow

__all__ = ["Pace", "StepMatrix", "StepTimes", "WholeStep"]

_ROWS: Final = 16
_REDONE: Final = int(Flag.REDONE)
_RECENT: Final = 128
_BLOCKS: Final = 16
_HEARD_S: Final = 1.5
"""By then every machine has said how long a step took."""
_MOST_HEARD: Final = 4096

Floats = npt.NDArray[np.float32]


@dataclass(frozen=True, slots=True)
class WholeStep(StepRow):
    """A step with everything that each rank says about it; seconds, by rank.

    Attributes:
        loader_s: Drawing the batch.
        outside_s: In the program between two steps.
        cpu_s: Processor time of the process.
        signature: Equal at ranks that issue the same operations.
        messages: Whether ranks send each other messages (pipelines): unequal work is normal then.
        accelerated: Whether processor time says little about the work.
    """

    loader_s: Floats
    outside_s: Floats
    cpu_s: Floats
    signature: npt.NDArray[np.uint64]
    messages: bool
    accelerated: bool


class StepMatrix:
    """Collects step records until steps are whole.

    Args:
        world_size: Number of ranks.
    """

    def __init__(self, world_size: int) -> None:
        self._world = world_size
        self._steps = np.full(_ROWS, -1, np.int64)
        self._seen = np.zeros((_ROWS, world_size), bool)
        self._missing = np.full(_ROWS, world_size)
        self._values = np.zeros((5, _ROWS, world_size), np.float32)
        self._signature = np.zeros((_ROWS, world_size), np.uint64)
        self._flags = np.zeros(_ROWS, np.uint32)
        self._done = -1

    def add(self, records: npt.NDArray[np.void]) -> list[WholeStep]:
        """Take in step records; the steps that are whole now, oldest first."""
        whole = []
        steps = records["step"]
        for step in [int(steps[0])] if len(steps) == 1 else np.unique(steps).tolist():
            if step <= self._done:
                continue
            mine = records if len(steps) == 1 else records[steps == step]
            row = step % _ROWS
            if self._steps[row] > step:
                continue
            if self._steps[row] != step:
                self._begin(row, step)
            self._fill(row, mine)
            if self._missing[row] == 0:
                self._done = step
                if not self._flags[row] & _REDONE:
                    whole.append(self._take(row, step))
        return whole

    def _begin(self, row: int, step: int) -> None:
        self._steps[row] = step
        self._seen[row] = False
        self._missing[row] = self._world
        self._flags[row] = 0

    def _fill(self, row: int, records: npt.NDArray[np.void]) -> None:
        ranks = records["rank"]
        known = (ranks >= 0) & (ranks < self._world)
        if not known.all():
            records, ranks = records[known], ranks[known]
        fresh = ~self._seen[row, ranks]
        if not fresh.all():  # a batch that came twice
            records, ranks = records[fresh], ranks[fresh]
        if not len(ranks):
            return
        self._seen[row, ranks] = True
        self._missing[row] = self._world - int(np.count_nonzero(self._seen[row]))
        for index, name in enumerate(("duration_ns", "wait_ns", "loader_ns", "outside_ns")):
            self._values[index, row, ranks] = records[name] * 1e-9
        self._values[4, row, ranks] = records["cpu_ns"] * 1e-9
        self._signature[row, ranks] = records["signature"]
        self._flags[row] |= np.bitwise_or.reduce(records["flags"])

    def _take(self, row: int, step: int) -> WholeStep:
        duration, wait, loader, outside, cpu = self._values[:, row].copy()
        flags = int(self._flags[row])
        return WholeStep(
            step=step,
            wait_s=wait.astype(np.float64),
            step_s=max(float(np.median(duration)), 1e-6),
            loader_s=loader,
            outside_s=outside,
            cpu_s=cpu,
            signature=self._signature[row].copy(),
            messages=bool(flags & Flag.MESSAGES),
            accelerated=bool(flags & Flag.ACCELERATOR),
        )


class Pace:
    """How long a job's steps take: the usual ones of late, and the longest in some 2,000.

    Rare long steps (a compilation, an evaluation in the body) are no news when they come again,
    however far apart they are.

    Args:
        warm_up: The first so many steps count only until there are ``young`` steps: what they take
            is not taken again.
        young: Number of steps from which on the pace is settled.
    """

    def __init__(self, *, warm_up: int, young: int) -> None:
        self._warm_up = warm_up
        self._young = young
        self._recent: deque[float] = deque(maxlen=_RECENT)
        self._longest: deque[float] = deque(maxlen=_BLOCKS)
        self._count = 0

    @property
    def is_young(self) -> bool:
        """Whether it may still change much."""
        return self._count < self._young

    def __bool__(self) -> bool:
        return bool(self._recent)

    def add(self, duration_s: float) -> None:
        """Take in the next step, in seconds."""
        self._recent.append(duration_s)
        if self._count % _RECENT == 0:
            self._longest.append(duration_s)
        self._longest[-1] = max(self._longest[-1], duration_s)
        self._count += 1
        if self._count == self._young:
            for _ in range(min(self._warm_up, len(self._recent) - 1)):
                self._recent.popleft()
            self._longest[-1] = max(self._recent)

    def usual_s(self, share: float) -> float:
        """So large a share of the latest steps was no longer; there is at least one."""
        return float(np.quantile(self._recent, share))

    @property
    def longest_s(self) -> float:
        """The longest that is remembered; there is at least one."""
        return max(self._longest)


class StepTimes:
    """How long steps take, and how long ranks are elsewhere between them, by what ranks say.

    A step counts without the longest stay outside of it: one rank writes a checkpoint, and to all
    others it looks as if the step took so long. Machines speak one after the other, so a step is
    only taken in a while after it was first heard of.

    Args:
        warm_up: See ``Pace``.
        young: See ``Pace``.

    Attributes:
        pace: Of the steps that were taken in.
        longest_s: The longest stay between two steps, by phase, in seconds.
        frozen_step: The last step in which a process was frozen: it tells nothing of others.
    """

    def __init__(self, *, warm_up: int, young: int) -> None:
        self.pace = Pace(warm_up=warm_up, young=young)
        self.longest_s = {Phase.OUTSIDE: 0.0, Phase.LOADER: 0.0}
        self.frozen_step = -1
        self._heard: dict[int, tuple[float, float]] = {}
        self._taken = -1

    def learn(self, steps: npt.NDArray[np.void], now_s: float) -> None:
        """Take in what ranks say of their steps.

        Args:
            steps: Records of steps (``STEP``).
            now_s: When they came, in seconds.
        """
        if (frozen := steps["step"] == self.frozen_step).any():
            steps = steps[~frozen]
        numbers, outside_ns = steps["step"], steps["outside_ns"]
        for phase, stays_ns in ((Phase.OUTSIDE, outside_ns), (Phase.LOADER, steps["loader_ns"])):
            longest_s = float(stays_ns.max(initial=0)) * 1e-9
            self.longest_s[phase] = max(self.longest_s[phase], longest_s)
        inside_ns = steps["duration_ns"] - outside_ns
        for number in np.unique(numbers).tolist():
            least_s = float(inside_ns[numbers == number].min()) * 1e-9
            known_s, heard_s = self._heard.get(number, (math.inf, now_s))
            self._heard[number] = max(0.0, min(known_s, least_s)), heard_s
        self._settle(now_s)

    def _settle(self, now_s: float) -> None:
        for number in sorted(self._heard):
            inside_s, heard_s = self._heard[number]
            if now_s - heard_s < _HEARD_S and len(self._heard) <= _MOST_HEARD:
                break
            del self._heard[number]
            if number > self._taken:
                self._taken = number
                self.pace.add(inside_s)
