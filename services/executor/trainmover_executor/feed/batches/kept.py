"""A batch as it was drawn, to be given again to a body that changed it."""

from __future__ import annotations

import threading
from collections import OrderedDict, deque
from collections.abc import Iterator
from dataclasses import dataclass
from types import BuiltinFunctionType, FunctionType, MethodType, ModuleType
from typing import Any, Final

import numpy as np
import torch
from torch.utils._python_dispatch import is_traceable_wrapper_subclass

from trainmover.errors import ConfigError, TrainMoverError
from trainmover_executor.program.looking.parts import slots_of

__all__ = ["BatchChangedError", "Batches", "KeptBatch"]

_CLOSE_LOOKS: Final = 3
"""Bodies whose batches are copied to see whether they change them."""

_ATOMS: Final = (str, bytes, int, float, complex, type(None), range, slice)
_NOT_DATA: Final = (
    type,
    ModuleType,
    FunctionType,
    BuiltinFunctionType,
    MethodType,
    torch.nn.Module,
    torch.Generator,
)
_LOCKS: Final = (type(threading.Lock()), type(threading.RLock()), threading.Condition)


class BatchChangedError(TrainMoverError):
    """A body cannot be run again because it changed its batch in place, and no copy was kept."""


@dataclass(frozen=True)
class _Tensor:
    """A tensor of a batch, and what it was."""

    tensor: torch.Tensor
    version: int
    requires_grad: bool
    grad: torch.Tensor | None
    copy: torch.Tensor | None
    shape: torch.Size

    @classmethod
    def of(cls, tensor: torch.Tensor, *, copies: bool) -> _Tensor:
        return cls(
            tensor,
            version=_version(tensor),
            requires_grad=tensor.requires_grad,
            grad=tensor.grad if tensor.is_leaf else None,
            copy=_elements(tensor).clone() if copies and _is_copied(tensor) else None,
            shape=tensor.shape,
        )

    @property
    def is_written(self) -> bool:
        """Whether its elements may have changed."""
        tensor, copy = self.tensor, self.copy
        if copy is None:
            return _version(tensor) != self.version
        same = (tensor.shape, tensor.dtype) == (self.shape, copy.dtype)
        return not (same and torch.equal(_elements(tensor), copy))

    @property
    def is_changed(self) -> bool:
        return self.is_written or self.tensor.requires_grad != self.requires_grad

    def put_back(self) -> bool:
        """Whether it is what it was."""
        tensor = self.tensor
        if tensor.grad_fn is not None and not self.requires_grad:
            if tensor._is_view():  # noqa: SLF001 - no public name
                return False
            tensor.detach_()
        if self.is_written:
            if self.copy is None:
                return False
            with torch.no_grad():
                if (tensor.shape, tensor.dtype) == (self.shape, self.copy.dtype):
                    _elements(tensor).copy_(self.copy)
                else:
                    tensor.data = self.copy.expand(self.shape).clone()
        if tensor.is_leaf:
            tensor.requires_grad_(self.requires_grad)
            tensor.grad = self.grad
        return True


class KeptBatch:
    """A batch, and what it consisted of when it was drawn.

    Containers and objects are remembered with what they held, arrays of numpy as copies.

    Attributes:
        batch: What the body gets.

    Args:
        batch: What a loader gave.
        copies: Whether tensors are copied; where not, a change of one is only noticed.

    Raises:
        ConfigError: It holds an iterator, that the first run of a body would use up.
    """

    def __init__(self, batch: Any, *, copies: bool) -> None:
        self.batch = batch
        self._tensors: list[_Tensor] = []
        self._arrays: list[tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]] = []
        self._containers: list[tuple[Any, Any]] = []
        self._objects: list[tuple[Any, dict[str, Any]]] = []
        seen: set[int] = set()
        waiting = [batch]
        while waiting:
            value = waiting.pop()
            if not isinstance(value, _ATOMS) and id(value) not in seen:
                seen.add(id(value))
                waiting.extend(self._keep(value, copies=copies))

    @property
    def memory(self) -> frozenset[int]:
        """Ids of its tensors and arrays, which may be views of what the loader keeps."""
        arrays = (array for array, _ in self._arrays)
        return frozenset(map(id, [*(each.tensor for each in self._tensors), *arrays]))

    def _keep(self, value: Any, *, copies: bool) -> list[Any]:
        """Remember ``value``; returns what it holds."""
        if isinstance(value, torch.Tensor):
            self._tensors.append(_Tensor.of(value, copies=copies))
            return []
        if isinstance(value, np.ndarray):
            if value.flags.writeable:  # a file that is mapped may be larger than memory
                self._arrays.append((value, value.copy()))
            return []
        if isinstance(value, Iterator):
            raise ConfigError(
                f"a batch holds an iterator ({type(value).__name__}): the body of a step may run "
                "more than once for the same batch, and the first run would use it up. Have the "
                "loader give a list of what is in it."
            )
        held: list[Any] = []
        if isinstance(value, tuple | frozenset):
            held = list(value)
        elif isinstance(value, dict | list | set | deque | bytearray):
            kept: Any = dict(value) if isinstance(value, dict) else list(value)
            self._containers.append((value, kept))
            held = list(kept.values()) if isinstance(value, dict) else kept
        attributes = _attributes(value)
        if attributes:
            self._objects.append((value, attributes))
            held = [*held, *attributes.values()]
        return held

    @property
    def is_changed(self) -> bool:
        """Whether a tensor of it was changed in place."""
        return any(each.is_changed for each in self._tensors)

    def put_back(self, *, of: str) -> None:
        """Have the batch be what it was when it was drawn.

        Args:
            of: Whose batch it is, for people.

        Raises:
            BatchChangedError: A tensor was changed in place and not copied.
        """
        for container, held in self._containers:
            _fill(container, held)
        for value, attributes in self._objects:
            _set_attributes(value, attributes)
        for array, copy in self._arrays:
            array[...] = copy
        for each in self._tensors:
            if not each.put_back():
                raise BatchChangedError(
                    f"{of} has to be done again, but its body changed the batch in place (a tensor "
                    f"of shape {tuple(each.tensor.shape)}), which it had not done in the steps "
                    "before, so that no copy was kept. Use an out-of-place operation on the batch."
                )


class Batches:
    """Keeps the batches of one loop, with copies of their tensors if its body changes them."""

    def __init__(self) -> None:
        self._looks = 0
        self._changes = False

    def keep(self, batch: Any, *, copies: bool = False) -> KeptBatch:
        """Keep ``batch`` for the body that is about to run, with copies if asked or needed."""
        return KeptBatch(batch, copies=copies or self._changes or self._looks < _CLOSE_LOOKS)

    def look(self, kept: KeptBatch) -> None:
        """A body has run: see whether it changes its batches."""
        self._looks += 1
        self._changes = self._changes or kept.is_changed


def _version(tensor: torch.Tensor) -> int:
    """How often its elements were written; 0 of those that inference mode made, as of constants."""
    return 0 if tensor.is_inference() else tensor._version  # noqa: SLF001 - no public name


def _is_copied(tensor: torch.Tensor) -> bool:
    if tensor.layout is not torch.strided or tensor.is_nested or tensor.is_inference():
        return False
    return not is_traceable_wrapper_subclass(tensor)


def _elements(tensor: torch.Tensor) -> torch.Tensor:
    """Its elements alone, each once: no gradients, and nothing of what a subclass does."""
    plain = tensor.detach().as_subclass(torch.Tensor)
    for dimension, stride in enumerate(plain.stride()):
        if stride == 0 and plain.shape[dimension] > 1:  # expanded
            plain = plain.narrow(dimension, 0, 1)
    return plain


def _attributes(value: Any) -> dict[str, Any]:
    """What an object of the program's has for attributes; nothing of what is not data."""
    if isinstance(value, _NOT_DATA):
        return {}
    found = dict(getattr(value, "__dict__", ()))
    names = slots_of(type(value))  # type: ignore[arg-type] # classes are hashable
    found |= {name: getattr(value, name) for name in names if hasattr(value, name)}
    if any(isinstance(each, _LOCKS) for each in found.values()):
        return {}  # other threads use it, too
    return found


def _set_attributes(value: Any, attributes: dict[str, Any]) -> None:
    for name in set(getattr(value, "__dict__", ())) - attributes.keys():
        object.__delattr__(value, name)
    for name, kept in attributes.items():
        if getattr(value, name, None) is not kept or not hasattr(value, name):
            object.__setattr__(value, name, kept)


def _fill(container: Any, held: Any) -> None:
    """Give a container what it held, past methods of a class of its own."""
    if isinstance(container, OrderedDict):
        OrderedDict.clear(container)
        OrderedDict.update(container, held)
    elif isinstance(container, dict):
        dict.clear(container)
        dict.update(container, held)
    elif isinstance(container, list):
        list.__setitem__(container, slice(None), held)
    elif isinstance(container, set):
        set.clear(container)
        set.update(container, held)
    elif isinstance(container, bytearray):
        container[:] = bytes(held)
    else:
        deque.clear(container)
        deque.extend(container, held)
