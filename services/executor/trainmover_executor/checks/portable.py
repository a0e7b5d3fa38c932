"""What a session cannot carry is said when it is made and after the first step, not in a move."""

from __future__ import annotations

import copy
import json
from collections.abc import Mapping
from typing import Any, Final
from weakref import WeakSet

import torch

from trainmover.errors import ConfigError
from trainmover_executor.program.values.compare import equal
from trainmover_executor.state.optimizers.entries import common_entries, opened
from trainmover_executor.state.optimizers.settings import settings_of
from trainmover_executor.state.packing.codec import (
    StateNotPortableError,
    decode,
    encode,
    is_portable,
)
from trainmover_executor.state.training import Stateful, TrainingState
from trainmover_executor.worker.runtime import Runtime

__all__ = ["check_others", "check_state", "register"]

_PORTABLE: Final = "Make state_dict() return numbers, strings, tensors and containers of them"
_with_session: Final[WeakSet[Runtime]] = WeakSet()


def register(runtime: Runtime) -> None:
    """A session of this program is being made.

    Raises:
        ConfigError: It has one.
    """
    if runtime in _with_session:
        raise ConfigError(
            "this program has a Session already, and takes one: pass all models and optimizers to "
            "it, as lists. Its steps(...) may be called any number of times."
        )
    _with_session.add(runtime)


def check_state(state: TrainingState) -> None:
    """Make sure that all of ``state`` can be carried.

    Raises:
        ConfigError: It cannot; names the model, the optimizer or the extra, the key and the cure.
    """
    for index, optimizer in enumerate(state.optimizers):
        name = f"optimizer {index} ({type(optimizer).__name__})"
        cure = "Keep numbers, strings and tensors of usual types in its state and groups"
        _portable(name, {"groups": settings_of(optimizer)}, cure=cure)
        _portable(name, {"state": common_entries(optimizer)}, cure=cure)
        kept = (each for key, each in optimizer.state.items() if isinstance(key, torch.Tensor))
        for number, entries in enumerate(kept):
            where = {"state": {f"of its parameter {number}": opened(entries)}}
            _portable(name, where, cure=cure)
    for index, model in enumerate(state.models):
        tensors = {**dict(model.named_parameters()), **dict(model.named_buffers())}
        cure = "Keep parameters and buffers of such types out of the state"
        _portable(f"model {index} ({type(model).__name__})", tensors, cure=cure)
    check_others(state.others)


def check_others(others: Mapping[str, Stateful]) -> None:
    """Make sure that what was passed by name comes back as it was.

    Raises:
        ConfigError: Its state cannot be carried, ``load_state_dict`` does not take it, or what
            ``state_dict`` returns afterwards is something else.
    """
    for name, other in others.items():
        _check_return(f"{name!r} ({type(other).__name__})", other)


def _check_return(name: str, other: Stateful) -> None:
    state = other.state_dict()
    before = _portable(name, state, cure=_PORTABLE)
    # Later, its own tensors again: other names in the program may stand for the same memory.
    own = _rebuilt(state)
    try:
        other.load_state_dict(copy.deepcopy(before))
    except Exception as error:
        raise ConfigError(
            f"{name} cannot be handed to a joiner: its load_state_dict() does not take what its "
            f"state_dict() returned ({type(error).__name__}: {error}). Make it take plain "
            "dictionaries, lists, numbers, strings and tensors."
        ) from error
    after = _portable(name, other.state_dict(), cure=_PORTABLE)
    where = _difference(before, after)
    if where is not None:
        raise ConfigError(
            f"{name} cannot be handed to a joiner: after load_state_dict(state_dict()) its state "
            f"is another one at {where or 'its root'}. Make load_state_dict() take back all that "
            "state_dict() returns, and leave out what it makes up itself (times, ids, counts of "
            "calls)."
        )
    other.load_state_dict(own)


def _portable(name: str, state: Any, *, cure: str) -> Any:
    """A copy of ``state`` as it looks after a journey."""
    try:
        skeleton, tensors = encode(state)
    except StateNotPortableError as error:
        raise ConfigError(f"{name} cannot be handed to a joiner: {error}") from error
    except TypeError as error:  # a set of things without an order
        raise ConfigError(f"{name} cannot be handed to a joiner: {error}. {cure}.") from error
    for spec, tensor in tensors:
        if not is_portable(tensor) or tensor.layout is not torch.strided:
            kind = f"{tensor.dtype}, {tensor.layout}".replace("torch.", "")
            raise ConfigError(
                f"{name} cannot be handed to a joiner: the tensor at {spec.path} ({kind}) is of a "
                f"type that is not carried. {cure}."
            )
    return decode(json.loads(json.dumps(skeleton)), [tensor.clone() for _, tensor in tensors])


def _rebuilt(state: Any) -> Any:
    """``state`` with containers of its own and the same leaves."""
    if isinstance(state, dict):
        rebuilt = copy.copy(state)
        for key, value in state.items():  # update() of a Counter adds
            rebuilt[key] = _rebuilt(value)
        return rebuilt
    if type(state) in {list, tuple}:
        return type(state)(map(_rebuilt, state))
    return copy.copy(state) if isinstance(state, set) else state


def _difference(one: Any, other: Any, path: str = "") -> str | None:
    """Where two trees differ first; None where they do not."""
    if isinstance(one, dict) and isinstance(other, dict):
        for key in [*one, *(key for key in other if key not in one)]:
            if key not in one or key not in other:
                return f"{path}/{key}"
            if (found := _difference(one[key], other[key], f"{path}/{key}")) is not None:
                return found
        return None
    both_lists = isinstance(one, list | tuple) and type(one) is type(other)
    if both_lists and len(one) == len(other):
        pairs = enumerate(zip(one, other, strict=True))
        places = (_difference(a, b, f"{path}/{index}") for index, (a, b) in pairs)
        return next((each for each in places if each is not None), None)
    return None if equal(one, other) else path
