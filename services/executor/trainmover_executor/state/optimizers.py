"""The state of optimizers, taken over in place where that is possible."""

from __future__ import annotations

import copy
from collections.abc import Iterator, Mapping
from typing import Any

import torch

from trainmover.errors import ConfigError
from trainmover_executor.state.packing.shards import assign, like_parameter, local_of

__all__ = [
    "inner_optimizers",
    "load_entries",
    "load_optimizer",
    "load_settings",
    "optimizer_tree",
    "refuse_nested",
    "settings_apart",
    "settings_of",
]


def inner_optimizers(
    optimizer: torch.optim.Optimizer,
) -> Iterator[tuple[str, torch.optim.Optimizer]]:
    """Those that it wraps, with the attribute that has them: one, or a list of them."""
    for name, value in vars(optimizer).items():
        for each in value if isinstance(value, list | tuple) else (value,):
            if isinstance(each, torch.optim.Optimizer):
                yield name, each


def refuse_nested(optimizer: torch.optim.Optimizer) -> None:
    """Refuse an optimizer whose state would stay behind.

    Raises:
        ConfigError: It keeps its state in another optimizer.
    """
    for name, inner in inner_optimizers(optimizer):
        if inner.state is not optimizer.state:
            raise ConfigError(
                f"{type(optimizer).__name__} keeps its state in another optimizer ({name!r}), "
                "which would stay behind when a machine is replaced. To shard the state of "
                "optimizers use FSDP2 (fully_shard), which a session knows; an optimizer that "
                "only wraps others: pass the inner ones."
            )


def optimizer_tree(optimizer: torch.optim.Optimizer) -> dict[str, Any]:
    """Settings of each parameter group, and what is kept of each parameter; live tensors."""
    states = [
        [dict(optimizer.state.get(parameter, {})) for parameter in group["params"]]
        for group in optimizer.param_groups
    ]
    return {"groups": settings_of(optimizer), "states": states}


def settings_of(optimizer: torch.optim.Optimizer) -> list[dict[str, Any]]:
    """Learning rate and the like of each parameter group."""
    found = [group.copy() for group in optimizer.param_groups]
    for group in found:
        del group["params"]
    return found


def settings_apart(optimizer: torch.optim.Optimizer) -> list[dict[str, Any]]:
    """As ``settings_of``, but nobody changes it in place: a learning rate may be a tensor.

    Taken twice in each step, and a model may have hundreds of groups.
    """
    found = settings_of(optimizer)
    for group in found:
        for key, value in group.items():
            if isinstance(value, torch.Tensor):
                group[key] = value.clone()
    return found


def load_settings(optimizer: torch.optim.Optimizer, settings: list[dict[str, Any]]) -> None:
    """Take over what ``settings_of`` returned."""
    for group, received in zip(optimizer.param_groups, settings, strict=True):
        for key, value in received.items():
            live = group.get(key)
            if isinstance(live, torch.Tensor) and isinstance(value, torch.Tensor):
                assign(live, value)
            else:
                group[key] = value


def load_optimizer(optimizer: torch.optim.Optimizer, state: dict[str, Any]) -> None:
    """Take over what ``optimizer_tree`` returned here or at another rank."""
    load_settings(optimizer, state["groups"])
    for group, states in zip(optimizer.param_groups, state["states"], strict=True):
        for parameter, entries in zip(group["params"], states, strict=True):
            load_entries(optimizer, parameter, entries)


def load_entries(
    optimizer: torch.optim.Optimizer, parameter: torch.Tensor, entries: Mapping[str, Any]
) -> None:
    """Make ``entries`` what the optimizer keeps of ``parameter``, in place where possible.

    What cannot be taken over in place is copied: the optimizer goes on to change it, and
    ``entries`` may be needed again, for a step that is aborted twice.
    """
    if not entries:
        optimizer.state.pop(parameter, None)
        return
    live = optimizer.state[parameter]
    for key in [key for key in live if key not in entries]:
        del live[key]
    for key, entry in entries.items():
        present = live.get(key)
        value = local_of(entry) if isinstance(entry, torch.Tensor) else entry
        fits = isinstance(present, torch.Tensor) and isinstance(value, torch.Tensor)
        if fits and local_of(present).shape == value.shape:
            assign(local_of(present), value)
        elif isinstance(value, torch.Tensor) and value.shape != torch.Size([]):
            live[key] = like_parameter(parameter, value.clone())
        elif isinstance(value, torch.Tensor):
            live[key] = value.clone().to(_device_of_scalars(optimizer, parameter))
        else:
            live[key] = copy.deepcopy(value)


def _device_of_scalars(optimizer: torch.optim.Optimizer, parameter: torch.Tensor) -> torch.device:
    """Where the optimizer keeps its step count: with the kernels that read it."""
    groups = optimizer.param_groups
    group = next(g for g in groups if any(parameter is each for each in g["params"]))
    on_device = group.get("capturable") or group.get("fused")
    return local_of(parameter).device if on_device else torch.device("cpu")
