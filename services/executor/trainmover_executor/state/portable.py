"""A small tree as one piece of bytes, for capsules and recordings."""

from __future__ import annotations

import json
from typing import Any

import torch

from trainmover.errors import ProtocolError
from trainmover_executor.communicator.memory import bytes_of, flat_of
from trainmover_executor.state.codec import TensorSpec, decode, encode

__all__ = ["pack_tree", "unpack_tree"]


def pack_tree(tree: dict[str, Any]) -> bytes:
    """The bytes of ``tree``.

    Raises:
        StateNotPortableError: It holds an object that only pickle could carry.
    """
    skeleton, tensors = encode(tree)
    head = json.dumps({"tree": skeleton, "tensors": [spec.to_json() for spec, _ in tensors]})
    data = head.encode()
    parts = [len(data).to_bytes(4, "little"), data]
    parts += [bytes(bytes_of(flat_of(tensor))) for _, tensor in tensors]
    return b"".join(parts)


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
            raw = bytearray(data[position : position + spec.nbytes])
            position += spec.nbytes
            flat = torch.frombuffer(raw, dtype=spec.dtype) if raw else torch.empty(0)
            tensors.append(flat.to(spec.dtype).view(spec.shape))
        return decode(head["tree"], tensors)
    except (ValueError, KeyError, TypeError, IndexError, RuntimeError) as error:
        raise ProtocolError(f"a packed tree does not parse: {error}") from error
