"""Modules, optimizers, schedulers and scalers that training changes and the session does not know.

They would stay behind when a machine is replaced. What never changes, a frozen teacher say, may
stay: a joiner made it for itself.
"""

from __future__ import annotations

import sys
import weakref
from collections.abc import Collection, Iterable, Iterator, Mapping
from types import FrameType
from typing import Any, Final

import torch
from torch import nn
from torch.distributed.fsdp import FSDPModule
from torch.nn.parameter import is_lazy
from torch.optim.optimizer import register_optimizer_step_pre_hook

from trainmover.errors import ConfigError
from trainmover_executor.program.frames import place_in
from trainmover_executor.state.optimizers.wrapped import inner_optimizers
from trainmover_executor.state.packing.checksum import sum_of_words
from trainmover_executor.state.packing.codec import encode
from trainmover_executor.state.packing.memory import bytes_of, flat_of
from trainmover_executor.state.packing.shards import local_of, made_of
from trainmover_executor.state.training import TrainingState

__all__ = ["Strangers", "memory_of", "refuse_strange_steps"]

_SAMPLE: Final = 1024
_DEPTH: Final = 3
_Scheduler: Final = torch.optim.lr_scheduler.LRScheduler


def refuse_strange_steps(state: TrainingState) -> None:
    """Refuse, from now on, steps that optimizers take with parameters of ``state`` unasked.

    An optimizer that was made in the middle of training is not the one that the session has: its
    steps would be taken without a vote, and its state would stay behind.
    """
    watched = weakref.ref(state)

    def before_step(optimizer: torch.optim.Optimizer, *_: Any) -> None:
        known = watched()
        if known is not None and not _is_known(optimizer, known):
            ours = {id(parameter) for parameter in known.parameters()}
            groups = optimizer.param_groups
            if any(id(each) in ours for group in groups for each in group["params"]):
                raise ConfigError(_words_of_step(optimizer, sys._getframe(1)))  # noqa: SLF001

    register_optimizer_step_pre_hook(before_step)


def _is_known(optimizer: torch.optim.Optimizer, state: TrainingState) -> bool:
    """Whether ``optimizer`` is one of the session's, wraps one, or is wrapped by one."""
    ours = state.optimizers
    if any(optimizer is each or optimizer.state is each.state for each in ours):
        return True
    return any(inner is each for _, inner in inner_optimizers(optimizer) for each in ours)


def _words_of_step(optimizer: torch.optim.Optimizer, frame: FrameType) -> str:
    kind = type(optimizer).__name__
    return (
        f"the {kind} that takes a step at {place_in(frame)} trains parameters of the session's "
        "models, and the session does not know it: its state would stay behind when a machine is "
        "replaced. Make all optimizers before the session and pass them: "
        f"Session(..., optimizer=[..., {kind.lower()}]); to begin anew in the middle, clear the "
        "state of the one that the session has (optimizer.state.clear()) and set its param_groups."
    )


class Strangers:
    """Compares what it finds in the program's variables from one step to the next.

    Args:
        state: What the session knows.
    """

    def __init__(self, state: TrainingState) -> None:
        self._state = state
        self._seen: dict[str, Any] = {}
        self._watched: list[weakref.ref[torch.Tensor]] = []
        self._versions = 0

    def moved(self) -> bool:
        """Whether a tensor of a module that was found has been written to; takes microseconds."""
        return bool(self._watched) and self._count() != self._versions

    def _count(self) -> int:
        tensors = (found() for found in self._watched)
        return sum(tensor._version for tensor in tensors if tensor is not None)  # noqa: SLF001

    def look(self, variables: Iterable[tuple[str, Any]], frame: FrameType) -> None:
        """Look at ``variables``, given as (path, value).

        Raises:
            ConfigError: One of them changed since the last look.
        """
        memory, self._watched = memory_of(self._state), []
        known = {id(each) for each in _reachable([*self._state.others.values()], _DEPTH)}
        for path, value in variables:
            now = None if id(value) in known else self._print(value, memory)
            if now is None:
                continue
            if isinstance(value, nn.Module):
                found = _not_in(memory, _tensors_of(value))
                self._watched += [weakref.ref(tensor) for tensor in found]
            if self._seen.setdefault(path, now) != now:
                raise ConfigError(_words(path, value, frame))
        self._versions = self._count()

    def _print(self, value: Any, memory: Collection[int]) -> Any:
        """What differs when ``value`` has changed; None for what is known or of another kind."""
        if isinstance(value, nn.Module):
            return _tensors_print(_tensors_of(value), memory)
        if isinstance(value, torch.optim.Optimizer):
            ours = self._state.optimizers
            if any(value is each or value.state is each.state for each in ours):
                return None
            held = [each for each in value.state.values() if isinstance(each, Mapping)]
            entries = [entry for each in held for entry in each.values()]
            tensors = [entry for entry in entries if isinstance(entry, torch.Tensor)]
            return _tensors_print(tensors, memory), [e for e in entries if type(e) in (int, float)]
        if isinstance(value, _Scheduler | torch.amp.GradScaler):
            plain = value.state_dict().items()
            return [(key, each) for key, each in plain if type(each) in (int, float)]
        return None


def memory_of(state: TrainingState) -> frozenset[int]:
    """Addresses of the memory of all tensors of ``state``."""
    _, tensors = encode(state.tree())
    return frozenset(tensor.untyped_storage().data_ptr() for _, tensor in tensors) - {0}


def _tensors_of(module: nn.Module) -> list[torch.Tensor]:
    if any(isinstance(each, FSDPModule) for each in module.modules()):
        return list(module.buffers())  # its parameters are gathered and sharded again
    return [*module.parameters(), *module.buffers()]


def _tensors_print(tensors: Iterable[torch.Tensor], memory: Collection[int]) -> list[int]:
    """Versions, and a sample of each: what is set through ``.data`` keeps its version."""
    prints = []
    for tensor in _not_in(memory, tensors):
        sample = flat_of(local_of(tensor).reshape(-1)[:_SAMPLE])
        prints.append(hash((tensor._version, sum_of_words(bytes_of(sample)))))  # noqa: SLF001
    return prints


def _not_in(memory: Collection[int], tensors: Iterable[torch.Tensor]) -> Iterator[torch.Tensor]:
    """Those of ``tensors`` that can be looked at and are not in ``memory``."""
    for tensor in tensors:
        is_apart = is_lazy(tensor) or tensor.is_meta or made_of(tensor) is not None
        if is_apart or tensor.layout is not torch.strided:
            continue
        if tensor.numel() and local_of(tensor).untyped_storage().data_ptr() not in memory:
            yield tensor


def _reachable(values: Iterable[Any], depth: int) -> Iterator[Any]:
    """``values`` and what they hold: a scheduler of schedulers."""
    for value in values:
        yield value
        if depth and isinstance(value, list | tuple):
            yield from _reachable(value, depth - 1)
        elif depth and hasattr(value, "__dict__"):
            yield from _reachable(vars(value).values(), depth - 1)


def _words(path: str, value: Any, frame: FrameType) -> str:
    name = path.rpartition(".")[2]
    if isinstance(value, nn.Module):
        cure = f"model=[..., {name}]"
    elif isinstance(value, torch.optim.Optimizer):
        cure = f"optimizer=[..., {name}]"
    else:
        cure = f"{name.strip('_') or 'name'}={name}"
    return (
        f"the {type(value).__name__} in {path} (the loop at {place_in(frame)}) changes from step "
        "to step, and the session does not know it: it would stay behind when a machine is "
        f"replaced. Pass it: Session(..., {cure}); anything with state_dict and load_state_dict "
        "may be passed by a name of yours."
    )
