"""Parameters and buffers of modules: live, and taken over in place."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
from torch import nn

from trainmover.errors import ConfigError
from trainmover_executor.state.packing.shards import assign, local_of

__all__ = ["assign_buffer", "held_by", "load_module", "module_tree", "modules_in"]


def modules_in(models: Iterable[nn.Module]) -> list[nn.Module]:
    """``models`` and all modules inside of them, each once."""
    # As they are now, not as they were at first. modules() and children() make up the name of
    # each, which takes longer than what is done with them every step.
    found = list(dict.fromkeys(models))
    known = set(found)
    for module in found:
        for child in module._modules.values():  # noqa: SLF001 - see above
            if child is not None and child not in known:
                known.add(child)
                found.append(child)
    return found


def held_by(modules: Iterable[nn.Module], kind: str) -> list[torch.Tensor]:
    """Live tensors of modules, each at its first place.

    Args:
        modules: As ``modules_in`` gives them.
        kind: ``_parameters`` or ``_buffers``.
    """
    values = (value for one in modules for value in getattr(one, kind).values())
    return list({id(value): value for value in values if value is not None}.values())


def module_tree(model: nn.Module) -> dict[str, Any]:
    """What this rank holds of parameters and buffers, by name; live tensors."""
    return {
        "parameters": {name: local_of(value) for name, value in model.named_parameters()},
        "buffers": {name: local_of(value) for name, value in model.named_buffers()},
    }


def load_module(model: nn.Module, state: dict[str, Any]) -> None:
    """Take over what ``module_tree`` returned at another rank.

    Raises:
        ConfigError: The two models do not have the same names.
    """
    for kind, live in (
        ("parameters", dict(model.named_parameters())),
        ("buffers", dict(model.named_buffers())),
    ):
        received = state[kind]
        if received.keys() != live.keys():
            different = sorted(received.keys() ^ live.keys())[:5]
            raise ConfigError(f"the models differ: {kind} {different} exist on one side only")
        for name, value in received.items():
            if kind == "buffers":
                assign_buffer(model, name, value)
            else:
                assign(local_of(live[name]), value)


def assign_buffer(model: nn.Module, name: str, value: torch.Tensor) -> None:
    """Have a buffer hold ``value``; one that grows, a memory say, takes another shape."""
    path, _, own = name.rpartition(".")
    holder = model.get_submodule(path)
    live = local_of(getattr(holder, own))
    if live.shape == value.shape:
        assign(live, value)
    else:
        setattr(holder, own, value.to(live.device, copy=True))
