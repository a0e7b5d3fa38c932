"""Nested state as a JSON skeleton plus a flat list of tensors; no pickle ever leaves a process.

``state_dict`` results are trees of containers, numbers, strings and tensors. ``encode`` replaces
each tensor by a typed placeholder; ``decode`` puts tensors back. Floats survive bit for bit: JSON
carries their shortest round-trip form.
"""

from __future__ import annotations

import base64
import collections
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import torch

from trainmover.errors import TrainMoverError

__all__ = ["StateNotPortableError", "TensorSpec", "decode", "encode", "is_portable"]

_DTYPES: Final = {
    str(dtype).removeprefix("torch."): dtype
    for dtype in (
        torch.bool,
        torch.uint8,
        torch.uint16,
        torch.uint32,
        torch.uint64,
        torch.int8,
        torch.int16,
        torch.int32,
        torch.int64,
        torch.float16,
        torch.bfloat16,
        torch.float32,
        torch.float64,
        torch.complex64,
        torch.complex128,
    )
}
_SEQUENCES: Final[dict[str, type[Any]]] = {
    "list": list,
    "tuple": tuple,
    "set": set,
    "frozenset": frozenset,
}
_MAX_DIMENSIONS: Final = 64
_TAG: Final = "~"
_TENSOR_LIMIT_BYTES: Final = 1 << 42


class StateNotPortableError(TrainMoverError):
    """A piece of state cannot be described without pickling it."""


def is_portable(tensor: torch.Tensor) -> bool:
    """Whether tensors of this type can be carried."""
    return tensor.dtype in _DTYPES.values()


_LONG: Final = 64


@dataclass(frozen=True, slots=True)
class TensorSpec:
    """Where a tensor sits in the tree, and its type.

    Attributes:
        path: Keys from the root, joined by ``/``.
        dtype: Torch dtype.
        shape: Shape of the local tensor.
    """

    path: str
    dtype: torch.dtype
    shape: tuple[int, ...]

    @property
    def nbytes(self) -> int:
        """Size in bytes."""
        return torch.Size(self.shape).numel() * self.dtype.itemsize

    def to_json(self) -> list[Any]:
        """As JSON."""
        return [self.path, str(self.dtype).removeprefix("torch."), list(self.shape)]

    @staticmethod
    def from_json(value: Any) -> TensorSpec:
        """Parse what a peer sent; bounded, so that a broken peer cannot exhaust memory.

        Raises:
            ValueError: It is not a tensor spec.
        """
        path, dtype, shape = value
        shape = tuple(int(extent) for extent in shape)
        if dtype not in _DTYPES or len(shape) > _MAX_DIMENSIONS or any(e < 0 for e in shape):
            raise ValueError(f"not a tensor spec: {value!r}")
        spec = TensorSpec(str(path), _DTYPES[dtype], shape)
        if spec.nbytes > _TENSOR_LIMIT_BYTES:
            raise ValueError(f"tensor {path!r} of {spec.nbytes} bytes is over the limit")
        return spec


def encode(tree: Any) -> tuple[Any, list[tuple[TensorSpec, torch.Tensor]]]:
    """Split a tree into a JSON-able skeleton and its tensors, in a fixed order.

    DTensors are represented by their local shards.

    Raises:
        StateNotPortableError: The tree holds an object of another type; names its place.
    """
    encoder = _Encoder()
    return encoder.visit(tree, ""), encoder.tensors


class _Encoder:
    def __init__(self) -> None:
        self.tensors: list[tuple[TensorSpec, torch.Tensor]] = []

    def visit(self, value: Any, path: str) -> Any:
        if value is None or type(value) in (bool, int, float, str):
            return value
        if isinstance(value, torch.Tensor):
            local = _local(value)
            self.tensors.append((TensorSpec(path, local.dtype, tuple(local.shape)), local))
            return {_TAG: "tensor", "at": len(self.tensors) - 1}
        if isinstance(value, np.ndarray | np.generic | bytes | bytearray):
            return self._raw(value, path)
        return self._container(value, path)

    def _raw(self, value: Any, path: str) -> Any:
        if isinstance(value, np.ndarray):
            return {_TAG: "ndarray", "value": self.visit(torch.from_numpy(value.copy()), path)}
        if isinstance(value, np.generic):
            return self.visit(value.item(), path)
        return {_TAG: "bytes", "value": base64.b64encode(value).decode()}

    def _container(self, value: Any, path: str) -> Any:
        if type(value) is list and (numbers := _as_tensor(value)) is not None:
            return {_TAG: "numbers", "value": self.visit(numbers, path)}
        if isinstance(value, Mapping):
            kind = "counter" if isinstance(value, collections.Counter) else "dict"
            items = [
                [self.visit(key, f"{path}/key"), self.visit(item, f"{path}/{key}")]
                for key, item in value.items()
            ]
            return {_TAG: kind, "items": items}
        if isinstance(value, collections.deque):
            items = [self.visit(item, f"{path}/{i}") for i, item in enumerate(value)]
            return {_TAG: "deque", "items": items, "most": value.maxlen}
        for name, kinds in _SEQUENCES.items():
            if isinstance(value, kinds):
                ordered = sorted(value) if name in {"set", "frozenset"} else value
                items = [self.visit(item, f"{path}/{i}") for i, item in enumerate(ordered)]
                return items if name == "list" else {_TAG: name, "items": items}
        raise StateNotPortableError(
            f"state at {path or 'its root'} is a {type(value).__module__}."
            f"{type(value).__qualname__}, which cannot be handed to another machine without "
            "pickling. Make state_dict() return numbers, strings, tensors and containers of them."
        )


def decode(skeleton: Any, tensors: list[torch.Tensor]) -> Any:
    """The tree that ``encode`` split, with ``tensors`` in its order.

    Raises:
        ValueError: The skeleton is not one that ``encode`` makes.
    """
    makers: dict[str, Callable[[dict[str, Any]], Any]] = {
        "tensor": lambda node: tensors[int(node["at"])],
        "numbers": lambda node: visit(node["value"]).tolist(),
        "ndarray": lambda node: visit(node["value"]).numpy(),
        "bytes": lambda node: base64.b64decode(node["value"]),
        "dict": lambda node: {visit(key): visit(item) for key, item in node["items"]},
        "counter": lambda node: collections.Counter(
            {visit(key): visit(item) for key, item in node["items"]}
        ),
        "tuple": lambda node: tuple(visit(item) for item in node["items"]),
        "deque": lambda node: collections.deque(
            [visit(item) for item in node["items"]], node["most"]
        ),
        "set": lambda node: {visit(item) for item in node["items"]},
        "frozenset": lambda node: frozenset(visit(item) for item in node["items"]),
    }

    def visit(node: Any) -> Any:
        if isinstance(node, list):
            return [visit(item) for item in node]
        if isinstance(node, dict):
            maker = makers.get(node.get(_TAG, ""))
            if maker is None:
                raise ValueError(f"unknown node {sorted(node)} in a state skeleton")
            return maker(node)
        return node

    return visit(skeleton)


def _as_tensor(numbers: list[Any]) -> torch.Tensor | None:
    """A long list of floats, or of whole numbers: twenty times as fast as one by one."""
    kinds = set(map(type, numbers)) if len(numbers) >= _LONG else set()
    try:
        if kinds == {float}:
            return torch.tensor(numbers, dtype=torch.float64)
        return torch.tensor(numbers, dtype=torch.int64) if kinds == {int} else None
    except (OverflowError, RuntimeError, ValueError):  # a number of more than 64 bits
        return None


def _local(tensor: torch.Tensor) -> torch.Tensor:
    to_local = getattr(tensor, "to_local", None)
    local: torch.Tensor = tensor.detach() if to_local is None else to_local().detach()
    return local
