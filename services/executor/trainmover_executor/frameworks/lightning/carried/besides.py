"""What a program sets on the trainer and on its data set, beside callbacks and LightningModule."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, Final

from torch.utils.data import Dataset, IterableDataset

from trainmover_executor.program.looking.parts import is_made_by_script
from trainmover_executor.program.values.compare import equal
from trainmover_executor.program.values.plain import PLAIN, is_plain
from trainmover_executor.program.values.restored import restored
from trainmover_executor.program.values.trees import portable

if TYPE_CHECKING:
    from trainmover_executor.frameworks.lightning.trainer import TrainMoverTrainer

__all__ = ["Besides"]

_DEPTH: Final = 4


class Besides:
    """Attributes that were other ones when the fit began, or were none.

    Of data sets they are numbers and strings; lists are examples.

    Args:
        trainer: Whose fit has begun.
    """

    def __init__(self, trainer: TrainMoverTrainer) -> None:
        self._trainer = trainer
        self._first: dict[str, dict[str, Any]] = {}
        self._changed: set[str] = set()
        self.tree()

    def tree(self) -> dict[str, Any]:
        """Portable, by path."""
        told: dict[str, Any] = {}
        for place, holder in self._holders():
            now = {
                f"{place}.{name}": portable(value)
                for name, value in vars(holder).copy().items()
                if not name.startswith("_") and _is_told(place, value)
            }
            first = self._first.setdefault(place, now)
            for path, value in now.items():
                if path not in first or not equal(first[path], value):
                    self._changed.add(path)
            told |= {path: now[path] for path in now.keys() & self._changed}
        return told

    def load(self, tree: dict[str, Any]) -> None:
        """Have the attributes be what ``tree`` returned here or elsewhere."""
        holders = dict(self._holders())
        self._changed.update(tree)
        for path, value in tree.items():
            place, _, name = path.partition(".")
            if place in holders:
                held = getattr(holders[place], name, None)
                setattr(holders[place], name, restored(value, held))

    def _holders(self) -> Iterator[tuple[str, Any]]:
        yield "trainer", self._trainer
        held = getattr(self._trainer.train_dataloader, "dataset", None)
        for at in range(_DEPTH):
            if not isinstance(held, Dataset) or isinstance(held, IterableDataset):
                return
            if is_made_by_script(type(held)):
                yield f"dataset{at}", held
            held = getattr(held, "dataset", None)


def _is_told(place: str, value: Any) -> bool:
    return is_plain(value) if place == "trainer" else type(value) in PLAIN
