"""A copy of a neighbour's sharded state that takes the same optimizer steps.

It lives in host memory of another machine, apart from any model: plain tensors and an optimizer of
the same kind. Elementwise optimizers come to the same bits, whatever holds the elements.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch

from trainmover.errors import ProtocolError
from trainmover_executor.state.optimizers.entries import load_entries
from trainmover_executor.state.optimizers.settings import load_settings
from trainmover_executor.state.packing.codec import TensorSpec
from trainmover_executor.state.units import ELEMENTWISE, sample_of

__all__ = ["FollowedCopy", "state_of"]


class FollowedCopy:
    """See the module's docstring.

    Args:
        outline: What the owner's ``StateUnits.outline`` returned, and ``buffers`` of each model.

    Attributes:
        names: Units that are here and current.

    Raises:
        ProtocolError: The outline does not parse.
    """

    def __init__(self, outline: Mapping[str, Any]) -> None:
        try:
            kinds = {kind.__name__: kind for kind in ELEMENTWISE}
            specs = [TensorSpec.from_json(value) for value in outline["units"]]
            self._values = {
                spec.path: torch.empty(spec.shape, dtype=spec.dtype, requires_grad=True)
                for spec in specs
            }
            self._groups: list[list[str]] = outline["groups"]
            self._buffers: list[dict[str, torch.Tensor]] = outline["buffers"]
            parameters = [{"params": [self._values[n] for n in group]} for group in self._groups]
            self._optimizer = kinds[outline["optimizer"]](parameters)
        except (KeyError, ValueError, TypeError, RuntimeError) as error:
            raise ProtocolError(f"a neighbour's outline of its state: {error!r}") from error
        self.names: set[str] = set()

    @property
    def complete(self) -> bool:
        """Whether every unit is here."""
        return len(self.names) == len(self._values)

    @torch.no_grad()
    def _take(self, units: Mapping[str, Mapping[str, Any]]) -> None:
        """Add units, with whatever the owner's optimizer keeps of them.

        Raises:
            ProtocolError: The owner did not speak of such a unit in the beginning.
        """
        for name, tree in units.items():
            if name not in self._values:
                raise ProtocolError(f"the neighbour sent {name!r}, which its outline lacks")
            self._values[name].copy_(tree["value"])
            if any(name in group for group in self._groups):
                load_entries(self._optimizer, self._values[name], tree["entries"])
            self.names.add(name)

    def _step(self, settings: list[dict[str, Any]], gradients: Mapping[str, torch.Tensor]) -> None:
        """Take one optimizer step with the owner's settings and gradients."""
        load_settings(self._optimizer, settings)
        for name, value in self._values.items():
            value.grad = gradients.get(name)
        self._optimizer.step()
        for value in self._values.values():
            value.grad = None

    def follow(self, message: Mapping[str, Any]) -> None:
        """Take in what came with a vote that passed."""
        self._take(message["units"])
        if message["stepping"]:
            self._step(message["small"]["settings"], message["gradients"])
        self._take(message["behind"])

    def agrees(self, name: str, sample: int) -> bool:
        """Whether this copy's unit is what ``sample`` was made of: see ``StateUnits.sample``."""
        return sample_of(self._values[name].detach()) == sample

    def tree(self, *, settings: list[dict[str, Any]], others: Mapping[str, Any]) -> dict[str, Any]:
        """All of the owner's state, as its ``TrainingState.tree`` would give it.

        Args:
            settings: What the owner's optimizer is set to now.
            others: State of its scheduler and the like.
        """
        units = {
            name: {"value": value.detach(), "entries": dict(self._optimizer.state.get(value, {}))}
            for name, value in self._values.items()
        }
        state = state_of(units, groups=self._groups, buffers=self._buffers, settings=settings)
        return {**state, "others": dict(others)}


def state_of(
    units: Mapping[str, Mapping[str, Any]],
    *,
    groups: Sequence[Sequence[str]],
    buffers: Sequence[Mapping[str, torch.Tensor]],
    settings: list[dict[str, Any]],
) -> dict[str, Any]:
    """Models and optimizer as ``TrainingState.tree`` would give them, put together from units.

    Args:
        units: What ``StateUnits.tree`` gave, by name.
        groups: Units of each of the optimizer's groups.
        buffers: Of each model.
        settings: Of the optimizer's groups.
    """
    models: list[dict[str, Any]] = [{"parameters": {}, "buffers": each} for each in buffers]
    for name, unit in units.items():
        index, _, parameter = name.partition(":")
        models[int(index)]["parameters"][parameter] = unit["value"]
    states = [[units[name]["entries"] for name in group] for group in groups]
    optimizer = {"groups": settings, "states": states, "common": {}}  # else it is not followed
    return {"models": models, "optimizers": [optimizer]}
