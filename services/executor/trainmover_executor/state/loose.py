"""Parameters that an optimizer trains and no model holds: a learnable temperature, loss weights."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import nn

__all__ = ["LooseParameters"]


class LooseParameters(nn.Module):
    """Holds such parameters, so that they are carried as those of a model.

    Args:
        parameters: As they are: an optimizer may train tensors that are no ``nn.Parameter``.
    """

    def __init__(self, parameters: Sequence[torch.Tensor]) -> None:
        super().__init__()
        for index, parameter in enumerate(parameters):
            # register_parameter takes nothing but nn.Parameter.
            self._parameters[str(index)] = parameter  # type: ignore[assignment]

    @classmethod
    def of(
        cls, models: Sequence[nn.Module], optimizers: Sequence[torch.optim.Optimizer]
    ) -> LooseParameters | None:
        """Those of ``optimizers`` that belong to none of ``models``; None where there are none."""
        held = {id(parameter) for model in models for parameter in model.parameters()}
        found = {
            id(parameter): parameter
            for optimizer in optimizers
            for group in optimizer.param_groups
            for parameter in group["params"]
            if id(parameter) not in held
        }
        return cls(list(found.values())) if found else None
