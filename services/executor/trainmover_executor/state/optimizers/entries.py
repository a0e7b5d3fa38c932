"""What an optimizer keeps of its parameters: tensors, numbers, and objects made of these."""

from __future__ import annotations

import copy
from collections.abc import Collection, Mapping
from typing import Any, Final

import torch

from trainmover.errors import ProtocolError
from trainmover_executor.state.optimizers.settings import CONSTANTS
from trainmover_executor.state.packing.shards import assign, like_parameter, local_of, made_of

__all__ = ["common_entries", "entries_of", "load_common", "load_entries", "opened"]

_TENSOR: Final = "a tensor made of"
_OBJECT: Final = "an object made of"
"""The one key of a dictionary that stands for what is made of others."""


def common_entries(optimizer: torch.optim.Optimizer) -> dict[str, Any]:
    """What an optimizer keeps that belongs to no parameter; live tensors.

    ``Optimizer.state_dict`` allows for it: MADGRAD counts its steps there.
    """
    found: Mapping[Any, Any] = optimizer.state
    entries = {key: each for key, each in found.items() if not isinstance(key, torch.Tensor)}
    return opened(entries)


def entries_of(optimizer: torch.optim.Optimizer, parameter: torch.Tensor) -> dict[str, Any]:
    """What an optimizer keeps of a parameter; live tensors."""
    return opened(optimizer.state.get(parameter, {}))


def opened(entries: Mapping[str, Any]) -> dict[str, Any]:
    """``entries``, with what they are made of in place of what cannot be carried as it is.

    That are tensors of classes of their own, codes and scales of quantized ones, and objects, the
    projections of GaLore.

    Args:
        entries: What an optimizer keeps of one parameter.
    """
    return {key: _opened(value) for key, value in entries.items()}


def _opened(value: Any) -> Any:
    if isinstance(value, torch.Tensor):
        parts = made_of(value)
        return value if parts is None else {_TENSOR: opened(parts)}
    if hasattr(value, "__dict__") and not isinstance(value, Collection):
        return {_OBJECT: opened(_attributes_of(value))}
    return value


def _attributes_of(value: Any) -> dict[str, Any]:
    return {name: each for name, each in vars(value).items() if not isinstance(each, CONSTANTS)}


def load_common(optimizer: torch.optim.Optimizer, entries: Mapping[str, Any]) -> None:
    """Take over what ``common_entries`` returned here or at another rank."""
    held: dict[Any, Any] = optimizer.state
    for key in common_entries(optimizer).keys() - entries.keys():
        del held[key]
    for key, value in entries.items():
        _load(held, key, value)


def load_entries(
    optimizer: torch.optim.Optimizer, parameter: torch.Tensor, entries: Mapping[str, Any]
) -> None:
    """Make ``entries`` what the optimizer keeps of ``parameter``, in place where possible.

    What cannot be taken over in place is copied: the optimizer goes on to change it, and
    ``entries`` may be needed again, for a step that is aborted twice.

    Raises:
        ProtocolError: What is made of others came, and there is none like it here.
    """
    if not entries:
        optimizer.state.pop(parameter, None)
        return
    live = optimizer.state[parameter]
    for key in [key for key in live if key not in entries]:
        del live[key]
    for key, entry in entries.items():
        value = local_of(entry) if isinstance(entry, torch.Tensor) else entry
        if _fits(live.get(key), value) or not isinstance(value, torch.Tensor):
            _load(live, key, value)
        elif value.shape != torch.Size([]):
            live[key] = like_parameter(parameter, value.clone())
        else:
            live[key] = value.clone().to(_device_of_scalars(optimizer, parameter))


def _load(holder: dict[Any, Any], key: Any, value: Any) -> None:
    live: Any = holder.get(key)
    if isinstance(value, Mapping) and value.keys() in ({_TENSOR}, {_OBJECT}):
        _load_parts(key, live, value)
    elif _fits(live, value):
        assign(local_of(live), value)
    else:
        holder[key] = copy.deepcopy(value)


def _fits(live: Any, value: Any) -> bool:
    """Whether ``value`` can be written to the memory of ``live``."""
    both = isinstance(live, torch.Tensor) and isinstance(value, torch.Tensor)
    return both and made_of(live) is None and bool(local_of(live).shape == value.shape)


def _load_parts(key: Any, live: Any, tree: Mapping[str, Any]) -> None:
    ((kind, parts),) = tree.items()
    present = _opened(live)
    is_like = isinstance(present, Mapping) and present.keys() == {kind}
    held = (made_of(live) or {}) if kind == _TENSOR else getattr(live, "__dict__", {})
    if not is_like or (kind == _TENSOR and not _all_fit(held, parts)):
        raise ProtocolError(
            f"the optimizer keeps {key!r} as {kind} {', '.join(parts)}, and has another "
            f"{type(live).__name__} here. Have it take a step within the first steps of the "
            "program, which a standby takes as well"
        )
    for name in present[kind].keys() - parts.keys():
        delattr(live, name)
    for name, value in parts.items():
        _load(held, name, value)


def _all_fit(held: Mapping[str, torch.Tensor], parts: Mapping[str, Any]) -> bool:
    """Whether all can be written in place: what a tensor is made of is not exchanged."""
    return held.keys() == parts.keys() and all(
        isinstance(value, Mapping) or _fits(held[name], value) for name, value in parts.items()
    )


def _device_of_scalars(optimizer: torch.optim.Optimizer, parameter: torch.Tensor) -> torch.device:
    """Where the optimizer keeps its step count: with the kernels that read it."""
    groups = optimizer.param_groups
    group = next(g for g in groups if any(parameter is each for each in g["params"]))
    on_device = group.get("capturable") or group.get("fused")
    return local_of(parameter).device if on_device else torch.device("cpu")
