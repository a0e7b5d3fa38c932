"""The loader that steps are made of, as Accelerate asks for it."""

from __future__ import annotations

from typing import Any

from accelerate.utils import send_to_device
from torch import device
from torch.utils.data import DataLoader

from trainmover_executor.training.calls import StepIterator

__all__ = ["Reading", "place_batches"]


class Reading:
    """How far the pass is that ``accelerator.steps`` reads, in place of Accelerate's own loader.

    Accelerate draws one batch ahead to know the last one. Here the number of steps tells it, which
    is the same at a rank that trains and at a standby on its way to its place.

    Attributes:
        remainder: Samples of the last batch over all ranks that are no padding; 0 if it is full,
            -1 where nobody knows.
    """

    def __init__(self) -> None:
        self.remainder = -1
        self._steps: StepIterator | None = None
        self._length: int | None = None

    def begin(self, steps: StepIterator, *, loader: Any) -> None:
        """A pass begins.

        Args:
            steps: Its steps.
            loader: What Accelerate made of the program's loader.
        """
        loader.begin()
        self.remainder = loader.remainder
        loader.end()
        self._steps = steps
        try:
            self._length = len(loader)
        except TypeError:  # an iterable data set
            self._length = None

    @property
    def end_of_dataloader(self) -> bool:
        """Whether the running step has the last batch of the pass."""
        return self._steps is not None and self._steps.drawn == self._length


def place_batches(loader: DataLoader[Any], to: device, *, non_blocking: bool) -> None:
    """Have ``loader`` give batches on a device.

    A session reads the loader inside of Accelerate's, which does this otherwise.
    """
    make = loader._get_iterator  # noqa: SLF001 - where all of a loader's iterators are made

    def placing() -> Any:
        iterator: Any = make()
        draw = iterator._next_data  # noqa: SLF001 - as above
        iterator._next_data = lambda: send_to_device(draw(), to, non_blocking=non_blocking)  # noqa: SLF001
        return iterator

    vars(loader)["_get_iterator"] = placing
