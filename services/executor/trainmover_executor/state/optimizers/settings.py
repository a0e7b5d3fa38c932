"""What the parameter groups of an optimizer are set to."""

from __future__ import annotations

import enum
import types
from collections.abc import Iterator
from typing import Any, Final

import torch

from trainmover_executor.state.packing.shards import assign

__all__ = [
    "CONSTANTS",
    "constants_of",
    "load_settings",
    "set_by_step",
    "settings_apart",
    "settings_of",
]

CONSTANTS: Final = (
    enum.Enum,
    torch.dtype,
    torch.device,
    type,
    types.FunctionType,
    types.BuiltinFunctionType,
    types.MethodType,
)
"""What says how an optimizer computes. Each rank has made its own, and nobody changes it."""
_USUAL: Final = frozenset({type(None), bool, int, float, str, tuple, torch.Tensor})


def settings_of(optimizer: torch.optim.Optimizer) -> list[dict[str, Any]]:
    """Learning rate and the like of each parameter group, but constants."""
    found = [group.copy() for group in optimizer.param_groups]
    for group in found:
        del group["params"]
        if not _USUAL.issuperset(
            map(type, group.values())
        ):  # isinstance() takes four times as long
            for key in [key for key, value in group.items() if isinstance(value, CONSTANTS)]:
                del group[key]
    return found


def constants_of(optimizer: torch.optim.Optimizer) -> Iterator[tuple[str, Any]]:
    """(name, value) of the constants in its parameter groups."""
    for at, group in enumerate(optimizer.param_groups):
        for key, value in group.items():
            if isinstance(value, CONSTANTS):
                yield f"param_groups[{at}][{key!r}]", value


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


def set_by_step(
    before: list[dict[str, Any]], after: list[dict[str, Any]], theirs: list[dict[str, Any]]
) -> list[dict[str, Any]]:
    """Settings behind an optimizer's step that was taken with other gradients than the job's.

    Some optimizers note there what they compute of gradients: Prodigy, D-Adaptation.

    Args:
        before: Those in front of that step.
        after: Those behind it.
        theirs: Of a rank that took it with the job's: what the step sets is taken from these.

    Returns:
        Of each parameter group.
    """
    return [
        {key: now.get(key) if _alike(was, now, key) else there.get(key) for key in {**now, **there}}
        for was, now, there in zip(before, after, theirs, strict=True)
    ]


def _alike(one: dict[str, Any], other: dict[str, Any], key: str) -> bool:
    return key in one and key in other and repr(one[key]) == repr(other[key])


def load_settings(optimizer: torch.optim.Optimizer, settings: list[dict[str, Any]]) -> None:
    """Take over what ``settings_of`` returned."""
    for group, received in zip(optimizer.param_groups, settings, strict=True):
        for key, value in received.items():
            live = group.get(key)
            if isinstance(live, torch.Tensor) and isinstance(value, torch.Tensor):
                assign(live, value)
            else:
                group[key] = value
