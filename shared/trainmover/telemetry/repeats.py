"""Step records that are said again because nobody can do without them; pure.

Any batch may be lost. In the step in which a NaN first shows it is only where it came from, in the
step after it is everywhere: when the one batch with the first is lost, the culprit stays unknown.
"""

from __future__ import annotations

from typing import Final

import numpy as np
import numpy.typing as npt

from trainmover.telemetry.records import Flag

__all__ = ["FirstWildSteps"]

_TIMES: Final = 4
"""Batches are lost several in a row: these are spread over two seconds."""
_LOSS: Final = np.uint32(Flag.LOSS)

Records = npt.NDArray[np.void]


class FirstWildSteps:
    """The steps in which numbers of a machine's ranks first were NaN or Inf.

    They come again in the next few batches, in front of what is new; listeners know records that
    come twice by their rank and step.
    """

    def __init__(self) -> None:
        self._epoch = -1
        self._wild: set[int] = set()
        self._again: list[tuple[Records, int]] = []

    def apply(self, steps: Records, *, epoch: int) -> Records:
        """What a batch should say of steps.

        Args:
            steps: New step records of the machine, dtype ``STEP``, oldest first.
            epoch: Epoch that they belong to.
        """
        if epoch < self._epoch:
            return steps  # an epoch that is over
        if epoch > self._epoch:
            self._epoch = epoch
            self._wild.clear()
            self._again.clear()
        again = [rows for rows, _ in self._again]
        self._again = [(rows, left - 1) for rows, left in self._again if left > 1]
        if len(steps):
            self._keep_first(steps)
        return np.concatenate([*again, steps]) if again else steps

    def _keep_first(self, steps: Records) -> None:
        wild = (steps["nonfinite"] > 0) | (
            (steps["flags"] & _LOSS > 0) & ~np.isfinite(steps["loss"])
        )
        if not self._wild and not wild.any():
            return
        for index, rank in enumerate(steps["rank"].tolist()):
            if not wild[index]:
                self._wild.discard(rank)
            elif rank not in self._wild:
                self._wild.add(rank)
                self._again.append((steps[index : index + 1].copy(), _TIMES))
