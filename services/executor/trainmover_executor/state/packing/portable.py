"""A small tree as one piece of bytes, for private state and recordings."""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Any

import torch

from trainmover.errors import ProtocolError
from trainmover_executor.state.packing.codec import TensorSpec, decode, encode
from trainmover_executor.state.packing.memory import bytes_of, flat_of

__all__ = ["PartedTree", "pack_tree", "part_tree", "unpack_tree"]


def pack_tree(tree: dict[str, Any]) -> bytes:
    """The bytes of ``tree``.

    Raises:
        StateNotPortableError: It holds an object that only pickle could carry.
    """
    skeleton, tensors = encode(tree)
    head = json.dumps({"tree": skeleton, "tensors": [spec.to_json() for spec, _ in tensors]})
    data = head.encode()
    return _join(data, [tensor for _, tensor in tensors])


def part_tree(tree: dict[str, Any], *, limit: int) -> tuple[bytes, list[torch.Tensor]]:
    """``tree`` as packed bytes, and its tensors over ``limit`` bytes, which travel by themselves.

    Raises:
        StateNotPortableError: It holds an object that only pickle could carry.
    """
    skeleton, tensors = encode(tree)
    apart = [at for at, (spec, _) in enumerate(tensors) if spec.nbytes > limit]
    specs = [spec.to_json() for spec, _ in tensors]
    data = json.dumps({"tree": skeleton, "tensors": specs, "apart": apart}).encode()
    inside = [tensor for spec, tensor in tensors if spec.nbytes <= limit]
    return _join(data, inside), [flat_of(tensors[at][1]) for at in apart]


class PartedTree:
    """What ``part_tree`` packed, before the tensors that travel by themselves have come.

    Attributes:
        apart: What they are, in order.

    Raises:
        ProtocolError: It does not parse.
    """

    def __init__(self, data: bytes) -> None:
        try:
            size = int.from_bytes(data[:4], "little")
            head = json.loads(data[4 : 4 + size])
            self._skeleton = head["tree"]
            specs = [TensorSpec.from_json(value) for value in head["tensors"]]
            apart = frozenset(head["apart"])
            self._inside: dict[int, torch.Tensor] = {}
            position = 4 + size
            for at, spec in enumerate(specs):
                if at not in apart:
                    self._inside[at] = _tensor_of(spec, data[position : position + spec.nbytes])
                    position += spec.nbytes
        except (ValueError, KeyError, TypeError, IndexError, RuntimeError) as error:
            raise ProtocolError(f"a parted tree does not parse: {error}") from error
        self._count = len(specs)
        self.apart = [spec for at, spec in enumerate(specs) if at in apart]

    def join(self, tensors: Iterable[torch.Tensor]) -> Any:
        """The tree, with the ``tensors`` that ``apart`` described.

        Raises:
            ProtocolError: It does not parse.
        """
        others = iter(tensors)
        whole = [
            self._inside[at] if at in self._inside else next(others) for at in range(self._count)
        ]
        try:
            return decode(self._skeleton, whole)
        except (ValueError, KeyError, TypeError, IndexError) as error:
            raise ProtocolError(f"a parted tree does not parse: {error}") from error


def unpack_tree(data: bytes) -> Any:
    """What ``pack_tree`` packed.

    Raises:
        ProtocolError: It does not parse.
    """
    try:
        size = int.from_bytes(data[:4], "little")
        head = json.loads(data[4 : 4 + size])
        position = 4 + size
        tensors = []
        for value in head["tensors"]:
            spec = TensorSpec.from_json(value)
            tensors.append(_tensor_of(spec, data[position : position + spec.nbytes]))
            position += spec.nbytes
        return decode(head["tree"], tensors)
    except (ValueError, KeyError, TypeError, IndexError, RuntimeError) as error:
        raise ProtocolError(f"a packed tree does not parse: {error}") from error


def _join(head: bytes, tensors: Iterable[torch.Tensor]) -> bytes:
    parts = [len(head).to_bytes(4, "little"), head]
    parts += [bytes(bytes_of(flat_of(tensor))) for tensor in tensors]
    return b"".join(parts)


def _tensor_of(spec: TensorSpec, data: bytes) -> torch.Tensor:
    raw = bytearray(data)
    flat = torch.frombuffer(raw, dtype=spec.dtype) if raw else torch.empty(0)
    return flat.to(spec.dtype).view(spec.shape)
