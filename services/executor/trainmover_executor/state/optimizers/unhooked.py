"""An optimizer's step without what is called in front of it and behind it."""

from __future__ import annotations

import collections
import contextlib
import sys
from collections.abc import Iterator
from typing import Final

import torch

__all__ = ["unhooked"]

_OWN: Final = ("_optimizer_step_pre_hooks", "_optimizer_step_post_hooks")
_OF_ALL: Final = ("_global_optimizer_pre_hooks", "_global_optimizer_post_hooks")


@contextlib.contextmanager
def unhooked(optimizer: torch.optim.Optimizer) -> Iterator[None]:
    """Have steps of ``optimizer`` call no hooks, its own or those of all optimizers.

    For a step that another rank took: its gradients are as hooks left them there, so that a hook
    which clips would clip them twice. What hooks behind the step write is told by itself, and what
    they count comes with the variables of the program.
    """
    own = vars(optimizer)
    of_all = vars(sys.modules[torch.optim.Optimizer.__module__])
    with contextlib.ExitStack() as stack:
        for held, names in ((own, _OWN), (of_all, _OF_ALL)):
            for name in names:
                stack.callback(held.__setitem__, name, held[name])
                held[name] = collections.OrderedDict()
        yield
