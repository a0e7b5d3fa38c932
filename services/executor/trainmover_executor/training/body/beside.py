"""What is to be done next to an optimizer's step: behind all that hooks do to the gradients.

A vote is in front of the step, and what it tells the neighbours, and a joiner that follows, are the
gradients as they will be used and the variables as they are then. So hooks of the program in front
of the step come before the vote, whenever they were registered. Hooks behind the step come after
the step was noted as taken: what they write to parameters, the optimizer did not do.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, MutableMapping
from typing import Any

import torch
from torch.optim.optimizer import register_optimizer_step_pre_hook

__all__ = ["stand_beside"]


def stand_beside(
    optimizer: torch.optim.Optimizer,
    *,
    before: Callable[..., None],
    after: Callable[..., None],
) -> None:
    """Call ``before`` behind all hooks in front of a step, ``after`` in front of those behind it.

    Args:
        optimizer: One of the session's.
        before: As for ``register_step_pre_hook``.
        after: As for ``register_step_post_hook``.
    """
    first = optimizer.register_step_pre_hook(before).id
    last = optimizer.register_step_post_hook(after).id
    watched = weakref.ref(optimizer)

    def arrange(stepping: torch.optim.Optimizer, *_: Any) -> None:
        if stepping is watched():
            _move(stepping._optimizer_step_pre_hooks, first, last=True)  # noqa: SLF001
            _move(stepping._optimizer_step_post_hooks, last, last=False)  # noqa: SLF001

    # Hooks of all optimizers come first; torch asks for those of this one when they are through.
    register_optimizer_step_pre_hook(arrange)


def _move(hooks: MutableMapping[int, Any], number: int, *, last: bool) -> None:
    ends = reversed(hooks) if last else iter(hooks)
    if number in hooks and next(ends) != number:
        hooks.move_to_end(number, last=last)  # type: ignore[attr-defined] # it is ordered
