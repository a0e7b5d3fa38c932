"""A neighbour's state as it was some steps ago, and the gradients of the steps since.

For what a follower cannot compute: parameters on a device, whose optimizer comes to other bits on a
host, and optimizers that look at more than single elements. Nothing is computed here. A joiner
loads the snapshot and takes the same steps with its own optimizer, so nobody rolls back.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from trainmover.errors import ProtocolError
from trainmover_executor.redundancy.copies.stepping import state_of
from trainmover_executor.state.handing_over.transfer import StateCorruptError
from trainmover_executor.state.optimizers.settings import load_settings
from trainmover_executor.state.packing.codec import TensorSpec
from trainmover_executor.state.training import TrainingState
from trainmover_executor.state.units import StateUnits

__all__ = ["SnapshotCopy", "take_again"]


class SnapshotCopy:
    """See the module's docstring.

    Args:
        outline: What the owner's ``StateUnits.outline`` returned, and ``buffers`` of each model.

    Attributes:
        names: Units of the snapshot; all or none.

    Raises:
        ProtocolError: The outline does not parse.
    """

    def __init__(self, outline: Mapping[str, Any]) -> None:
        try:
            self._known = {TensorSpec.from_json(value).path for value in outline["units"]}
            self._groups: list[list[str]] = outline["groups"]
            self._buffers: list[dict[str, torch.Tensor]] = outline["buffers"]
        except (KeyError, ValueError, TypeError) as error:
            raise ProtocolError(f"a neighbour's outline of its state: {error!r}") from error
        self._units: dict[str, Any] = {}
        self._log: list[dict[str, Any]] = []
        self._room: list[dict[str, torch.Tensor]] = []

    @property
    def names(self) -> set[str]:
        """Units that are here."""
        return set(self._units)

    @property
    def complete(self) -> bool:
        """Whether a snapshot is here."""
        return self._units.keys() == self._known

    def follow(self, message: Mapping[str, Any]) -> None:
        """Take in what came with a vote that passed.

        Raises:
            ProtocolError: A snapshot is not whole.
        """
        if message["units"]:
            if message["units"].keys() != self._known:
                raise ProtocolError("the neighbour sent a part of a snapshot")
            self._units = dict(message["units"])
            self._log.clear()
        if message["stepping"]:
            self._log.append(
                {
                    "settings": message["small"]["settings"],
                    "gradients": self._kept(message["gradients"]),
                    "sample": message["sample"],
                }
            )

    def agrees(self, name: str, sample: int) -> bool:  # noqa: ARG002 - as of a copy that computes
        """Nothing is computed here, so nothing differs: whoever takes the steps again compares."""
        return True

    def tree(self, *, settings: list[dict[str, Any]], others: Mapping[str, Any]) -> dict[str, Any]:
        """The snapshot as the owner's ``TrainingState.tree`` gave it, and what happened since.

        Args:
            settings: What the owner's optimizer is set to now.
            others: State of its scheduler and the like, now.
        """
        state = state_of(self._units, groups=self._groups, buffers=self._buffers, settings=settings)
        since = {"steps": list(self._log), "settings": settings}
        return {**state, "others": dict(others), "since": since}

    def _kept(self, gradients: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        """A copy, in the memory of the log before: where they landed, the next ones will land."""
        if len(self._log) == len(self._room):
            self._room.append({})
        room = self._room[len(self._log)]
        kept = {}
        for name, gradient in gradients.items():
            place = room.get(name)
            if place is None or place.shape != gradient.shape or place.dtype != gradient.dtype:
                place = room[name] = torch.empty_like(gradient)
            kept[name] = place.copy_(gradient)
        return kept


def take_again(state: TrainingState, since: Mapping[str, Any]) -> int:
    """Take the steps since a snapshot, which ``state`` has just loaded.

    Args:
        state: A joiner's.
        since: What ``SnapshotCopy.tree`` gave under that name.

    Returns:
        How many they were.

    Raises:
        StateCorruptError: They do not lead where they led the owner.
    """
    (optimizer,) = state.optimizers
    units = StateUnits(state)
    had = [parameter.grad for parameter in state.parameters()]
    try:
        for at, step in enumerate(since["steps"]):
            if step["sample"] is not None:
                name, sample = step["sample"]
                if units.sample(name) != sample:
                    raise StateCorruptError(f"{name} differs after {at} steps from a snapshot")
            load_settings(optimizer, step["settings"])
            _take(units, step["gradients"])
        load_settings(optimizer, since["settings"])
    finally:
        for parameter, gradient in zip(state.parameters(), had, strict=True):
            parameter.grad = gradient
    return len(since["steps"])


def _take(units: StateUnits, gradients: Mapping[str, torch.Tensor]) -> None:
    try:
        units.step(0, gradients)
    except Exception as error:  # of an optimizer that we know nothing of
        raise StateCorruptError(f"a step could not be taken again: {error!r}") from error
