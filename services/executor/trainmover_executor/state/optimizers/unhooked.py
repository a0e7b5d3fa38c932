"""An optimizer's step without what is called in front of it and behind it."""

from __future__ import annotations

import collections
import contextlib
from collections.abc import Iterator

import torch

__all__ = ["unhooked"]


@contextlib.contextmanager
def unhooked(optimizer: torch.optim.Optimizer) -> Iterator[None]:
    """Have steps of ``optimizer`` call no hooks of its own.

    For a step that another rank took: its gradients are as hooks left them there, so that a hook
    which clips would clip them twice. What hooks behind the step write is told by itself, and what
    they count comes with the variables of the program.
    """
    before, after = optimizer._optimizer_step_pre_hooks, optimizer._optimizer_step_post_hooks  # noqa: SLF001
    optimizer._optimizer_step_pre_hooks = collections.OrderedDict()  # noqa: SLF001
    optimizer._optimizer_step_post_hooks = collections.OrderedDict()  # noqa: SLF001
    try:
        yield
    finally:
        optimizer._optimizer_step_pre_hooks = before  # noqa: SLF001
        optimizer._optimizer_step_post_hooks = after  # noqa: SLF001
