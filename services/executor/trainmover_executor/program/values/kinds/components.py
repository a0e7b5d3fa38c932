"""Modules and parameters of the session's models, as keys of the program's dictionaries.

Preconditioners and optimizers of the program's own keep statistics by module, by parameter, or by
``id`` of one. Such a key is another one in each process, so it is told of by a name in the model.
"""

from __future__ import annotations

import weakref
from collections.abc import Collection, Iterable, Iterator
from typing import Any, Final

import torch
from torch import nn

__all__ = ["have_ids", "key_of", "key_text", "name_components", "name_of_key"]

_ID: Final = "id "

_names: dict[int, tuple[weakref.ref[Any], str]] = {}
_components: dict[str, weakref.ref[Any]] = {}


def name_components(models: Iterable[tuple[str, nn.Module]]) -> None:
    """Have the modules and parameters of ``models`` be known by their names.

    Args:
        models: The name of each, and itself. What two of them hold is named by the first.
    """
    _names.clear()
    _components.clear()
    for root, model in models:
        for name, component in _inside(model):
            reference = weakref.ref(component)
            full = f"{root}.{name}" if name else root
            if id(component) not in _names:
                _names[id(component)] = reference, full
            _components[full] = reference


def _inside(model: nn.Module) -> Iterator[tuple[str, Any]]:
    yield from model.named_modules()
    yield from model.named_parameters()


def name_of_key(key: object) -> str | None:
    """The name of a module, of a parameter, or of the ``id`` of one; None for other keys."""
    if type(key) is int:
        reference, name = _names.get(key, (None, ""))
        return None if reference is None or reference() is None else _ID + name
    reference, name = _names.get(id(key), (None, ""))
    return name if reference is not None and reference() is key else None


def have_ids(keys: Collection[object]) -> bool:
    """Whether any of ``keys``, numbers and strings, is the ``id`` of a module or a parameter."""
    return not _names.keys().isdisjoint(keys)


def key_of(name: str) -> Any:
    """What ``name_of_key`` named, here.

    Raises:
        ValueError: The models of this process have nothing of that name.
    """
    reference = _components.get(name.removeprefix(_ID))
    component = None if reference is None else reference()
    if component is None:
        raise ValueError(f"the models of this process have nothing that is named {name!r}")
    return id(component) if name.startswith(_ID) else component


def key_text(key: object) -> str:
    """How the path of a variable names a key of a dictionary."""
    if (name := name_of_key(key)) is not None:
        return name
    if isinstance(key, torch.Tensor):  # its numbers are no name
        return f"<{type(key).__name__} at {id(key):#x}>"
    return repr(key)
