"""Objects that a shadow cannot know: it keeps those that it has.

``broadcast_object_list`` tells how large objects are before it tells them, into memory that nobody
has written to. What the job's first step told is replayed. Of what is told only later, behind every
hundredth step say, there is no recording, and a standby would unpickle chance.
"""

from __future__ import annotations

import functools
import pickle
from collections.abc import Callable
from typing import Any, Final

import torch.distributed as dist
from torch.distributed import distributed_c10d

from trainmover_executor.collectives.sandbox.stand_ins import SandboxCommunicator

__all__ = ["keep_own_objects"]

_NAMES: Final = ("broadcast_object_list", "scatter_object_list")


class _Keeping:
    """Whether objects are kept: a program that imported a name keeps our function for good."""

    def __init__(self) -> None:
        self.active = True


def keep_own_objects() -> Callable[[], None]:
    """Have lists of objects stay as they are where the recording does not tell what came.

    Returns:
        Ends that, for names that the program has imported, too.
    """
    state = _Keeping()
    originals = {name: getattr(dist, name) for name in _NAMES}
    for name, original in originals.items():
        instead = _kept(original, state)
        for module in (dist, distributed_c10d):
            setattr(module, name, instead)

    def end() -> None:
        state.active = False
        for name, original in originals.items():
            for module in (dist, distributed_c10d):
                setattr(module, name, original)

    return end


def _kept(original: Callable[..., None], state: _Keeping) -> Callable[..., None]:
    @functools.wraps(original)
    def kept(objects: list[Any], *args: Any, **kwargs: Any) -> None:
        if not state.active:
            original(objects, *args, **kwargs)
            return
        before = [*objects]
        SandboxCommunicator.empties = True
        try:
            original(objects, *args, **kwargs)
        except (EOFError, pickle.UnpicklingError):
            objects[:] = before
        finally:
            SandboxCommunicator.empties = False

    return kept
