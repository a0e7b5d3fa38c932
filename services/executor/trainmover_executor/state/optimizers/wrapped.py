"""Optimizers that wrap others."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any, Protocol

import torch

from trainmover.errors import ConfigError

__all__ = ["HasStep", "inner_optimizers", "optimizers_in", "with_inner"]


class HasStep(Protocol):
    """An optimizer, or an object around one."""

    def step(self, *args: Any, **kwargs: Any) -> Any:
        """Change parameters."""


def optimizers_in(given: HasStep | Iterable[HasStep]) -> list[torch.optim.Optimizer]:
    """What a program passes as its optimizer: one, several, or an object that wraps some.

    A schedule with a warm-up and apex's LARC are plain objects around an optimizer, whose ``step``
    calls that one's. What they keep themselves is among the program's variables.

    Raises:
        ConfigError: There is none in it.
    """
    if isinstance(given, torch.optim.Optimizer) and _was_made(given):
        return [given]
    if isinstance(given, Iterable) and not isinstance(given, torch.optim.Optimizer):
        return [optimizer for each in given for optimizer in optimizers_in(each)]
    if found := [each for _, each in inner_optimizers(given)]:
        return found
    raise ConfigError(
        f"Session(optimizer=...): a {type(given).__name__} is no torch.optim.Optimizer, and has "
        "none in its attributes. Pass the optimizers whose step() the program calls, one or a list"
    )


def _was_made(optimizer: torch.optim.Optimizer) -> bool:
    """Whether it is one itself: Opacus's never call their base class's ``__init__``."""
    return "_optimizer_step_pre_hooks" in vars(optimizer)


def inner_optimizers(optimizer: object) -> Iterator[tuple[str, torch.optim.Optimizer]]:
    """Those that it wraps, with the attribute that has them: one, or a list of them."""
    for name, value in getattr(optimizer, "__dict__", {}).items():
        for each in value if isinstance(value, list | tuple) else (value,):
            if isinstance(each, torch.optim.Optimizer):
                yield name, each


def with_inner(optimizers: Iterable[torch.optim.Optimizer]) -> tuple[torch.optim.Optimizer, ...]:
    """``optimizers``, and those that they wrap and that keep a state of their own (Lookahead, SAM).

    Raises:
        ConfigError: One keeps its state in others that have not all of its parameters.
    """
    found: dict[int, torch.optim.Optimizer] = {}
    waiting = [*optimizers][::-1]
    while waiting:
        optimizer = waiting.pop()
        if id(optimizer) in found:
            continue
        found[id(optimizer)] = optimizer
        inner = [
            each for _, each in inner_optimizers(optimizer) if each.state is not optimizer.state
        ]
        if inner and _parameters_of(inner) != _parameters_of([optimizer]):
            raise ConfigError(
                f"{type(optimizer).__name__} keeps its state in a {type(inner[0]).__name__} that "
                "has a part of its parameters: the state of the others is at other ranks, and "
                "would be lost with one. To shard the state of optimizers use FSDP2 "
                "(fully_shard), which a session knows"
            )
        waiting += inner[::-1]
    return tuple(found.values())


def _parameters_of(optimizers: Iterable[torch.optim.Optimizer]) -> set[int]:
    groups = (group for each in optimizers for group in each.param_groups)
    return {id(parameter) for group in groups for parameter in group["params"]}
