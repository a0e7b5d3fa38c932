"""Objects that tell their state and take it back.

Those of installed packages are looked into like others, as far as one can see: what they keep in
shared memory, in extensions or deeper than is looked, a replay memory say, only they can tell.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any, Final

import torch
from torch import nn

from trainmover_executor.program.looking.parts import is_made_by_script, is_own
from trainmover_executor.state.training import Stateful

__all__ = ["STATE", "Untold", "tells_state"]

STATE: Final = ".state_dict"
"""How the path of such a state ends."""


class Untold:
    """An object whose state changes, it may be, and cannot be carried.

    Attributes:
        of: The object.
    """

    __slots__ = ("of",)

    def __init__(self, of: Stateful) -> None:
        self.of = of


def tells_state(value: Any) -> bool:
    """Whether ``value`` is to be asked for its state.

    Not where it holds a model or an optimizer: their state may be gathered from all ranks.
    """
    if not _is_asked(type(value)):
        return False
    return not any(map(_is_trained, getattr(value, "__dict__", {}).values()))


@lru_cache(maxsize=4096)
def _is_asked(kind: Any) -> bool:
    if issubclass(kind, type) or not is_own(kind) or is_made_by_script(kind):
        return False
    return all(callable(getattr(kind, name, None)) for name in ("state_dict", "load_state_dict"))


def _is_trained(value: Any) -> bool:
    if isinstance(value, nn.Module):
        return next(value.parameters(), None) is not None
    return isinstance(value, torch.optim.Optimizer)
