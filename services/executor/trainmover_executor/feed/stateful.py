"""Loaders with a state of their own: torchdata's ``StatefulDataLoader``, Hugging Face datasets."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from typing import Any

from torch.utils.data import DataLoader

from trainmover.errors import ConfigError
from trainmover_executor.feed import owned
from trainmover_executor.feed.source import How
from trainmover_executor.state.codec import StateNotPortableError, encode

__all__ = ["StatefulSource"]


class StatefulSource:
    """Reads a loader and resumes it by its ``state_dict``.

    Args:
        loader: With ``state_dict`` and ``load_state_dict``.
    """

    how: How = "state"
    drops = 64.0

    def __init__(self, loader: Any) -> None:
        self._loader = loader
        self._iterator: Iterator[Any] | None = None
        self._id = ""
        self._checked = False
        self._mark: dict[str, Any] | None = None
        self._first: Any = {}  # what a torch DataLoader takes for its beginning

    def begin(self) -> None:
        """See ``Source``."""
        if not self._id and not isinstance(self._loader, DataLoader):
            self._first = self._loader.state_dict()
        self._id = uuid.uuid4().hex
        self._iterator = iter(self._loader)
        self._mark = None

    def begin_at(self, batches: int) -> None:
        """See ``Source``."""
        raise NotImplementedError

    def pass_over(self) -> None:
        """See ``Source``."""
        raise NotImplementedError

    def draw(self) -> Any:
        """See ``Source``."""
        assert self._iterator is not None  # noqa: S101 - a pass was begun
        self._mark = None
        return next(self._iterator)

    def mark(self) -> dict[str, Any]:
        """See ``Source``; the loader's state is taken once for each batch.

        Raises:
            ConfigError: The state cannot be handed to another machine.
        """
        if self._mark is None:
            self._mark = {"id": self._id, "loader": self._state()}
        return self._mark

    def _state(self) -> Any:
        state = self._loader.state_dict()
        if not self._checked:
            try:
                encode(state)
            except StateNotPortableError as error:
                raise ConfigError(
                    f"{type(self._loader).__name__}.state_dict() cannot be handed over: {error}"
                ) from error
            self._checked = True
        return state

    def rest_mark(self) -> dict[str, Any]:
        """See ``Source``."""
        mark = {"now": owned.capture(self._find())}
        # Before its first pass a loader might start its workers to say where it is.
        return mark if not self._id else {**mark, "loader": self._state()}

    def rest(self, mark: dict[str, Any]) -> None:
        """See ``Source``."""
        owned.restore(self._find(), mark["now"])
        if self._id or "loader" in mark:
            self._loader.load_state_dict(mark.get("loader", self._first))

    def _find(self) -> dict[str, Any]:
        names = ("generator", "sampler", "batch_sampler")
        dataset = getattr(self._loader, "dataset", None)
        return owned.find({n: getattr(self._loader, n, None) for n in names}, apart=(dataset,))

    def end(self) -> None:
        """See ``Source``."""
        self._iterator = None
        self._mark = None

    def rewind(self) -> None:
        """See ``Source``."""

    def prepare(self, mark: dict[str, Any], at: int, *, until: float) -> bool:
        """See ``Source``."""
        raise NotImplementedError

    def resume(self, mark: dict[str, Any], at: int) -> int:
        """See ``Source``."""
        self._id = mark["id"]
        self._loader.load_state_dict(mark["loader"])
        self._iterator = iter(self._loader)
        self._mark = mark
        return at

    def arrive(self, mark: dict[str, Any]) -> None:
        """See ``Source``."""
