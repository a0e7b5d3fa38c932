"""Trees packed once, which are sent again and again."""

from __future__ import annotations

import hashlib
import zlib
from typing import Any, Final

import torch

from trainmover_executor.position.packed import Blob
from trainmover_executor.state.packing.memory import bytes_of
from trainmover_executor.state.packing.portable import pack_tree, unpack_tree

__all__ = ["blob_of", "blob_of_bytes", "bytes_in", "tree_of"]

_DIGEST_BYTES: Final = 8
_LEVEL: Final = 1
"""Of zlib: successive trees are so alike that more effort finds little."""
_PACKED: Final = b"p"
_COMPRESSED: Final = b"z"


def blob_of(tree: Any, *, compress: bool = False) -> Blob:
    """``tree``, packed.

    Raises:
        StateNotPortableError: It holds an object that only pickle could carry.
    """
    packed = pack_tree({"tree": tree})
    if compress:
        return blob_of_bytes(_COMPRESSED + zlib.compress(packed, _LEVEL))
    return blob_of_bytes(_PACKED + packed)


def blob_of_bytes(data: bytes) -> Blob:
    """From what ``bytes_in`` returned."""
    digest = hashlib.blake2b(data, digest_size=_DIGEST_BYTES).hexdigest()
    return Blob(digest, len(data), torch.frombuffer(bytearray(data), dtype=torch.uint8))


def bytes_in(blob: Blob) -> bytes:
    """The bytes of ``blob``."""
    return bytes(bytes_of(blob.data))


def tree_of(blob: Blob) -> Any:
    """What ``blob_of`` packed.

    Raises:
        ProtocolError: It does not parse.
    """
    data = bytes_in(blob)
    packed = zlib.decompress(data[1:]) if data[:1] == _COMPRESSED else data[1:]
    return unpack_tree(packed)["tree"]
