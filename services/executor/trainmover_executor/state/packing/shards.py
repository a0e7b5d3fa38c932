"""What this rank holds of a tensor: its shard of a DTensor, else all of it."""

from __future__ import annotations

from typing import Any

import torch
from torch.distributed.tensor import DTensor
from torch.utils._python_dispatch import is_traceable_wrapper_subclass

__all__ = ["assign", "like_parameter", "local_of", "made_of"]


def local_of(tensor: torch.Tensor) -> torch.Tensor:
    """What this rank holds of a tensor: its shard of a DTensor, else all of it."""
    to_local = getattr(tensor, "to_local", None)
    local: torch.Tensor = tensor.detach() if to_local is None else to_local().detach()
    return local


def made_of(value: Any) -> dict[str, torch.Tensor] | None:
    """The tensors that a tensor is made of, by attribute: codes and scales of a quantized one.

    None for what has memory of its own, and for a DTensor, of which there is ``local_of``.
    """
    if type(value) is torch.Tensor or isinstance(value, DTensor):
        return None
    if not is_traceable_wrapper_subclass(value):
        return None
    names, _ = value.__tensor_flatten__()
    return {name: getattr(value, name) for name in names}


def assign(live: torch.Tensor, value: torch.Tensor) -> None:
    """Write ``value`` into ``live``, unless it was received into that memory."""
    if live.data_ptr() != value.data_ptr() or live.numel() == 0:
        live.copy_(value)


def like_parameter(parameter: torch.Tensor, value: torch.Tensor) -> torch.Tensor:
    """Put a received shard where the parameter is, and wrap it as the parameter is (DTensor)."""
    value = value.to(local_of(parameter).device)
    if not isinstance(parameter, DTensor):
        return value
    return DTensor.from_local(
        value,
        parameter.device_mesh,
        parameter.placements,
        run_check=False,
        shape=parameter.shape,
        stride=parameter.stride(),
    )
