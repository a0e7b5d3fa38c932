"""All that an optimizer holds, as a tree of live tensors."""

from __future__ import annotations

from typing import Any

import torch

from trainmover_executor.state.optimizers.entries import (
    common_entries,
    entries_of,
    load_common,
    load_entries,
)
from trainmover_executor.state.optimizers.settings import load_settings, settings_of

__all__ = ["load_group_settings", "load_optimizer", "optimizer_tree"]


def optimizer_tree(optimizer: torch.optim.Optimizer) -> dict[str, Any]:
    """Settings of each parameter group, and what is kept; live tensors."""
    states = [
        [entries_of(optimizer, parameter) for parameter in group["params"]]
        for group in optimizer.param_groups
    ]
    return {
        "groups": settings_of(optimizer),
        "states": states,
        "common": common_entries(optimizer),
    }


def load_optimizer(optimizer: torch.optim.Optimizer, state: dict[str, Any]) -> None:
    """Take over what ``optimizer_tree`` returned here or at another rank."""
    load_group_settings(optimizer, state)
    for group, states in zip(optimizer.param_groups, state["states"], strict=True):
        for parameter, entries in zip(group["params"], states, strict=True):
            load_entries(optimizer, parameter, entries)


def load_group_settings(optimizer: torch.optim.Optimizer, state: dict[str, Any]) -> None:
    """Take over what belongs to no single parameter."""
    load_settings(optimizer, state["groups"])
    load_common(optimizer, state["common"])
