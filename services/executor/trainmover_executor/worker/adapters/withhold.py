"""A shadow writes no checkpoints: the job's files are those of the rank that trains.

A standby runs the program too, with states that nobody wants kept. What a program saves with torch
or safetensors while its process is a shadow is left out, and so are the collectives of a
distributed checkpoint.
"""

from __future__ import annotations

import contextlib
import functools
import importlib
import importlib.util
import inspect
import os
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any, Final

import torch
import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint import state_dict_saver
from torch.distributed.checkpoint.metadata import Metadata

from trainmover_executor.worker.adapters.shadow_log import SaidOnce

__all__ = ["withhold_saves"]

_NAMES: Final = (
    (torch, "save"),
    (torch.serialization, "save"),
    (dcp, "save"),
    (dcp, "async_save"),
    (state_dict_saver, "save"),
    (state_dict_saver, "async_save"),
)


class _Done(Future[None]):
    """What ``async_save`` returns, in both of its forms: nothing is left to wait for."""

    def __init__(self) -> None:
        super().__init__()
        self.set_result(None)
        self.staging_completion = self.upload_completion = self


class _Withholding:
    """Whether saves are left out.

    A program that imported a name keeps our function for good: it asks here each time.
    """

    def __init__(self) -> None:
        self.active = True
        self.say = SaidOnce("writes nothing here, nor does any other save of a checkpoint")


def withhold_saves() -> Callable[[], None]:
    """Have ``torch.save``, ``torch.distributed.checkpoint`` and safetensors write no files.

    Returns:
        Ends that, for names that the program has imported, too.
    """
    state = _Withholding()
    instead = {
        torch.save: _to_memory_only(torch.save, state),
        state_dict_saver.save: _left_out(
            state_dict_saver.save, state, lambda: Metadata(state_dict_metadata={})
        ),
        state_dict_saver.async_save: _left_out(state_dict_saver.async_save, state, _Done),
    }
    names: list[tuple[Any, str]] = [*_NAMES]
    if importlib.util.find_spec("safetensors") is not None:
        safetensors = importlib.import_module("safetensors.torch")
        names += [(safetensors, "save_file"), (safetensors, "save_model")]
        for name in ("save_file", "save_model"):
            original = getattr(safetensors, name)
            instead[original] = _to_memory_only(original, state)
    originals = [(module, name, getattr(module, name)) for module, name in names]
    for module, name, original in originals:
        setattr(module, name, instead[original])

    def end() -> None:
        state.active = False
        for module, name, original in originals:
            setattr(module, name, original)

    return end


def _to_memory_only(original: Callable[..., None], state: _Withholding) -> Callable[..., None]:
    target = list(inspect.signature(original).parameters)[1]
    name = f"{original.__module__.partition('.')[0]}.{original.__name__}"

    @functools.wraps(original)
    def to_memory_only(*args: Any, **kwargs: Any) -> None:
        file = args[1] if len(args) > 1 else kwargs.get(target)
        if state.active and _is_file(file):
            state.say(f"{name} to {file}")
        else:
            original(*args, **kwargs)

    return to_memory_only


def _left_out(
    original: Callable[..., Any], state: _Withholding, result: Callable[[], object]
) -> Callable[..., Any]:
    @functools.wraps(original)
    def left_out(*args: Any, **kwargs: Any) -> Any:
        if not state.active:
            return original(*args, **kwargs)
        state.say(f"torch.distributed.checkpoint.{original.__name__}")
        return result()

    return left_out


def _is_file(target: object) -> bool:
    """Memory may be written to: programs copy and measure that way."""
    if isinstance(target, str | os.PathLike):
        return True
    with contextlib.suppress(AttributeError, OSError, ValueError):
        target.fileno()  # type: ignore[attr-defined]
        return True
    return False
