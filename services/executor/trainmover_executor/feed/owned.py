"""What belongs to a loader and has a place: generator objects, and passes that it draws from.

They are found through attributes, and kept as portable trees.
"""

from __future__ import annotations

import random
import types
from array import array
from collections.abc import Iterator, Mapping
from typing import Any, Final

import numpy as np
import structlog
import torch

from trainmover_executor.feed.seeds import mix
from trainmover_executor.program.values.plain import Positioned

__all__ = ["capture", "find", "generators", "reseed", "restore"]

log = structlog.get_logger(__name__)

_KINDS: Final = (
    torch.Generator,
    np.random.Generator,
    np.random.RandomState,
    np.random.BitGenerator,
    random.Random,
    Positioned,
)
_CLOSED: Final = (
    type,
    types.ModuleType,
    types.FunctionType,
    types.MethodType,
    types.BuiltinFunctionType,
    torch.Tensor,
    np.ndarray,
    str,
    bytes,
    int,
    float,
    random.SystemRandom,
)
_MOST_OBJECTS: Final = 2000
_MOST_ITEMS: Final = 256


def find(roots: Mapping[str, Any], *, apart: tuple[Any, ...] = ()) -> dict[str, Any]:
    """Generator objects that are reachable from ``roots`` through attributes and containers.

    Args:
        roots: Where to begin, by name.
        apart: Objects that are not entered.

    Returns:
        The generators by their path, ``dataset.transform.rng``; each once, process-wide ones not.
    """
    seen = {id(each) for each in (*apart, *_process_wide())}
    found: dict[str, Any] = {}
    queue = list(roots.items())
    for path, value in queue:
        if id(value) in seen or isinstance(value, _CLOSED):
            continue
        seen.add(id(value))
        if isinstance(value, _KINDS):
            found[path] = value
        elif len(queue) < _MOST_OBJECTS:
            queue.extend((f"{path}.{name}", each) for name, each in _parts(value))
    return found


def _process_wide() -> tuple[Any, ...]:
    legacy = np.random.mtrand._rand  # noqa: SLF001 - no other name
    return (random._inst, legacy, torch.default_generator)  # noqa: SLF001 - nor this


def _parts(value: Any) -> Iterator[tuple[str, Any]]:
    if isinstance(value, list | tuple):
        if len(value) <= _MOST_ITEMS:
            yield from ((str(index), each) for index, each in enumerate(value))
    elif isinstance(value, dict):
        if len(value) <= _MOST_ITEMS:
            yield from ((str(key), each) for key, each in value.items())
    else:
        yield from getattr(value, "__dict__", {}).items()


def generators(found: Mapping[str, Any]) -> dict[str, Any]:
    """Of ``found`` those that are generators, and no passes."""
    return {path: each for path, each in found.items() if not isinstance(each, Positioned)}


def capture(found: Mapping[str, Any]) -> dict[str, Any]:
    """States of generators, by path, as a portable tree."""
    return {path: _state_of(generator) for path, generator in found.items()}


def _state_of(generator: Any) -> Any:
    if isinstance(generator, torch.Generator):
        return generator.get_state()
    if isinstance(generator, np.random.Generator):
        return _portable(generator.bit_generator.state)
    if isinstance(generator, np.random.RandomState):
        return _portable(generator.get_state(legacy=False))
    if isinstance(generator, np.random.BitGenerator):
        return _portable(generator.state)
    if isinstance(generator, Positioned):
        return generator.position()
    version, words, gauss = generator.getstate()
    return {"version": version, "words": array("I", words).tobytes(), "gauss": gauss}


def restore(found: Mapping[str, Any], states: Mapping[str, Any]) -> None:
    """Put back what ``capture`` returned, in this or another process of the same program."""
    for path, state in states.items():
        if path not in found:
            log.warning("a loader's generator is missing here", path=path, here=sorted(found))
            continue
        _put(found[path], state)


def _put(generator: Any, state: Any) -> None:
    if isinstance(generator, torch.Generator):
        generator.set_state(state)
    elif isinstance(generator, np.random.Generator):
        generator.bit_generator.state = _own(state)
    elif isinstance(generator, np.random.RandomState):
        generator.set_state(_own(state))
    elif isinstance(generator, np.random.BitGenerator):
        generator.state = _own(state)
    elif isinstance(generator, Positioned):
        generator.seek(state)
    else:
        words = tuple(array("I", state["words"]))
        generator.setstate((state["version"], words, state["gauss"]))


def _portable(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _portable(each) for key, each in value.items()}
    if isinstance(value, np.ndarray):
        return {"array": value.dtype.str, "bytes": value.tobytes()}
    return value.item() if isinstance(value, np.generic) else value


def _own(value: Any) -> Any:
    if isinstance(value, dict):
        if set(value) == {"array", "bytes"}:
            return np.frombuffer(value["bytes"], dtype=value["array"]).copy()
        return {key: _own(each) for key, each in value.items()}
    return value


def reseed(found: Mapping[str, Any], seed: int) -> None:
    """Begin every generator anew, each at a state of its own made from ``seed``."""
    for index, generator in enumerate(found.values()):
        own = mix(seed, index)
        if isinstance(generator, torch.Generator):
            generator.manual_seed(own)
        elif isinstance(generator, np.random.Generator):
            generator.bit_generator.state = type(generator.bit_generator)(own).state
        elif isinstance(generator, np.random.RandomState):
            generator.set_state(np.random.RandomState(np.random.MT19937(own)).get_state())
        elif isinstance(generator, np.random.BitGenerator):
            generator.state = type(generator)(own).state
        elif not isinstance(generator, Positioned):
            generator.seed(own)
