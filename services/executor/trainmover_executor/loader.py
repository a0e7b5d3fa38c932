"""Where in the data a rank is, and how a joiner gets to the same place."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import torch

from trainmover_executor.state.training import Stateful

__all__ = ["Feed"]


class Feed:
    """Batches of a loader over one or more epochs of the data, with a position.

    A loader with ``state_dict`` (torchdata's ``StatefulDataLoader``) resumes by its own state. Any
    other loader resumes by replaying: the torch generator is put back to where it stood when the
    pass over the data began, and the batches that were already used are drawn and dropped.

    Args:
        loader: Any re-iterable of batches.
        epochs: Passes over the data; None for one.
    """

    def __init__(self, loader: Iterable[Any], *, epochs: int | None = None) -> None:
        self._loader = loader
        self._resumes = loader if isinstance(loader, Stateful) else None
        self._epochs = 1 if epochs is None else epochs
        self._epoch = 0
        self._consumed = 0
        self._start_rng = torch.get_rng_state()
        self._iterator: Iterator[Any] | None = None

    @property
    def epoch(self) -> int:
        """Index of the pass over the data."""
        return self._epoch

    def draw(self) -> tuple[bool, Any]:
        """(True, next batch), or (False, None) when the data is used up."""
        while self._epoch < self._epochs:
            if self._iterator is None:
                self._begin()
            assert self._iterator is not None  # noqa: S101 - _begin made it
            for batch in self._iterator:
                self._consumed += 1
                return True, batch
            self._iterator = None
            self._epoch += 1
            self._consumed = 0
        return False, None

    def _begin(self) -> None:
        for owner in (
            getattr(self._loader, "sampler", None),
            getattr(self._loader, "batch_sampler", None),
            self._loader,
        ):
            set_epoch = getattr(owner, "set_epoch", None)
            if set_epoch is not None:
                set_epoch(self._epoch)
                break
        self._start_rng = torch.get_rng_state()
        self._iterator = iter(self._loader)

    def position(self) -> dict[str, Any]:
        """Where it is: small, portable, taken once a step."""
        position: dict[str, Any] = {
            "epoch": self._epoch,
            "consumed": self._consumed,
            "begun": self._iterator is not None,
        }
        if self._resumes is not None:
            position["loader"] = self._resumes.state_dict()
        else:
            position["start_rng"] = self._start_rng
        return position

    def seek(self, position: dict[str, Any]) -> None:
        """Go to where ``position`` was taken; leaves the torch generator wherever that leads."""
        self._epoch = position["epoch"]
        self._consumed = position["consumed"]
        self._iterator = None
        if self._resumes is not None:
            self._resumes.load_state_dict(position["loader"])
            if position["begun"]:
                self._iterator = iter(self._loader)
        elif position["begun"]:
            torch.set_rng_state(position["start_rng"])
            self._begin()
            assert self._iterator is not None  # noqa: S101 - _begin made it
            for _ in range(self._consumed):
                next(self._iterator)

    def rewind(self) -> None:
        """Begin the data anew: a shadow iteration ran out of it."""
        self._epoch = self._consumed = 0
        self._iterator = None
