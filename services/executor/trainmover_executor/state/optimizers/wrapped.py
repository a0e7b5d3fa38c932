"""Optimizers that wrap others."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import torch

from trainmover.errors import ConfigError

__all__ = ["inner_optimizers", "with_inner"]


def inner_optimizers(
    optimizer: torch.optim.Optimizer,
) -> Iterator[tuple[str, torch.optim.Optimizer]]:
    """Those that it wraps, with the attribute that has them: one, or a list of them."""
    for name, value in vars(optimizer).items():
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
