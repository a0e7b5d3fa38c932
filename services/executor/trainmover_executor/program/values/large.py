"""Tensors that are too large to be copied at each look: the best weights so far, an average of all.

They are told of by a print of what they hold, and travel only to a joiner that needs them, from a
rank whose tensor has the same print. A copy to put back is made only of those that bodies change in
place before they are committed.

Parameters that no model or optimizer of the session has are among them: an average of weights is
often a copy of a list of parameters. They are written to through ``.data``, which no version shows.
"""

from __future__ import annotations

import collections
import copy
import ctypes
import hashlib
import math
import zlib
from collections.abc import Collection, Iterator, Mapping
from typing import Any, Final

import numpy as np
import torch
from torch import nn

from trainmover.errors import ProtocolError
from trainmover_executor.program.values.kinds.components import key_text
from trainmover_executor.program.values.plain import (
    PLAIN,
    is_key,
    is_tensor_of_program,
    list_of,
)
from trainmover_executor.program.values.trees import TAG, tree_of_tensor
from trainmover_executor.state.packing.codec import encode
from trainmover_executor.state.packing.memory import bytes_of, flat_of, on_host, words_on_device

__all__ = [
    "LARGE",
    "Large",
    "exported",
    "held_in",
    "holds_prints",
    "is_told_whole",
    "is_whole",
    "marked",
    "print_of",
    "print_of_state",
    "signature_of",
]

LARGE: Final = "large"
"""How a portable tree tags one."""

_CONTAINERS: Final = (list, tuple, dict, collections.OrderedDict, collections.deque)
_MOST: Final = 4096
_DEPTH: Final = 4
_UNFIT: Final = -1
_WORD_BYTES: Final = 8
_BEGINNING_BYTES: Final = 1024
"""Of a parameter, looked at for writes: who writes to it, writes to all of it."""


class Large:
    """A tensor as it was at one look.

    Attributes:
        tensor: The tensor.
    """

    __slots__ = ("_kept", "_mark", "_print", "tensor")

    def __init__(self, tensor: torch.Tensor) -> None:
        self.tensor = tensor
        self._mark = _mark_of(tensor)
        self._print: str | None = None
        self._kept: torch.Tensor | None = None

    @property
    def is_current(self) -> bool:
        """Whether nobody has written to the tensor since."""
        return _mark_of(self.tensor) == self._mark

    def is_same(self, other: Large) -> bool:
        """Whether both are the same tensor, and nobody wrote to it in between."""
        return self.tensor is other.tensor and self._mark == other._mark

    def print(self) -> str:
        """See ``print_of``; only while ``is_current``."""
        if self._print is None:
            self._print = print_of(self.tensor.detach())
        return self._print

    def keep(self, memory: torch.Tensor | None) -> torch.Tensor:
        """Copy what it holds, into ``memory`` where that fits."""
        held = self.tensor.detach()
        fits = memory is not None and (memory.shape, memory.dtype) == (held.shape, held.dtype)
        self._kept = memory.copy_(held) if fits and memory is not None else held.clone()
        return self._kept

    @torch.no_grad()
    def again(self) -> torch.Tensor:
        """The tensor, holding what it did.

        Raises:
            ProtocolError: It was written to, and no copy was kept.
        """
        if not self.is_current:
            if self._kept is None:
                raise ProtocolError(
                    f"a tensor of shape {tuple(self.tensor.shape)} was changed in place, and no "
                    "copy was kept"
                )
            self.tensor.detach().copy_(self._kept)
            self._mark = _mark_of(self.tensor)
        return self.tensor

    def told(self) -> dict[str, Any]:
        """What other processes are told of it."""
        shape, dtype = list(self.tensor.shape), str(self.tensor.dtype)
        told: dict[str, Any] = {TAG: LARGE, "print": self.print(), "shape": shape, "dtype": dtype}
        if isinstance(self.tensor, nn.Parameter):
            told["trained"] = self.tensor.requires_grad
        return told if on_host(self.tensor) else {**told, "device": self.tensor.device.type}


def _mark_of(tensor: torch.Tensor) -> tuple[int, int]:
    """What differs once somebody has written to ``tensor``."""
    beginning = 0
    if type(tensor) is nn.Parameter:
        # Asked several times a step, of each of thousands: views would take most of that time.
        size = min(tensor.nbytes, _BEGINNING_BYTES)
        beginning = zlib.crc32(ctypes.string_at(tensor.data_ptr(), size)) if size else 0
    return tensor._version, beginning  # noqa: SLF001 - no public name


def print_of(tensor: torch.Tensor) -> str:
    """What differs when any bit of ``tensor`` does, or two of its words change places.

    The 64-bit words are laid out as a square, of which the sums of rows and columns are hashed: two
    passes at the speed of memory, where a hash of all bytes takes ten times as long.
    """
    rest = memoryview(b"")
    words: Any = words_on_device(tensor)
    if words is None:
        data = bytes_of(flat_of(tensor))
        whole = len(data) - len(data) % _WORD_BYTES
        words, rest = np.frombuffer(data[:whole], dtype=np.uint64), data[whole:]
    side = math.isqrt(len(words))
    square = words[: side * side].reshape(side, side)
    digest = hashlib.blake2b(rest, digest_size=16)
    for part in (square.sum(0), square.sum(1), words[side * side :]):
        digest.update(part.tobytes() if isinstance(part, np.ndarray) else bytes_of(flat_of(part)))
    return digest.hexdigest()


def print_of_state(state: Any) -> str:
    """The same of a ``state_dict``, whatever is in it."""
    skeleton, tensors = encode(state)
    digest = hashlib.blake2b(repr(skeleton).encode(), digest_size=16)
    for _, tensor in tensors:
        digest.update(print_of(tensor).encode())
    return digest.hexdigest()


def signature_of(value: Any, *, but: Collection[int] = ()) -> tuple[Any, ...] | None:
    """What differs when ``value``, or a tensor in it, is another one or was written to.

    Args:
        value: Any value.
        but: Ids of parameters that are seen to elsewhere: what holds one has no signature.

    Returns:
        None where ``value`` is no tensor and no container of tensors and plain values.
    """
    found: list[Any] = []
    tensors = _sign(value, found, _DEPTH, but)
    return tuple(found) if tensors > 0 else None


def _sign(value: Any, found: list[Any], depth: int, but: Collection[int]) -> int:
    """How many tensors there are; a negative number where something cannot be carried."""
    kind = type(value)
    if kind in PLAIN:
        found.append(kind)  # 1 is no 1.0
        found.append(value.hex() if kind is float else value)
        return 0
    if isinstance(value, torch.Tensor) and _is_fit(value) and id(value) not in but:
        found.append(id(value))
        found.append(_mark_of(value))
        return 1
    is_fit = kind in _CONTAINERS and depth > 0 and len(value) <= _MOST
    keys = list(value) if is_fit and isinstance(value, dict) else []
    if not is_fit or not all(map(is_key, keys)):
        return _UNFIT
    found.append(kind)
    found.append(len(value))
    found.extend(map(key_text, keys))
    count = 0
    for each in list_of(value):
        more = _sign(each, found, depth - 1, but)
        if more < 0:
            return more
        count += more
    return count


def _is_fit(tensor: torch.Tensor) -> bool:
    if tensor.is_inference():
        return False
    if type(tensor) is nn.Parameter:
        return tensor.layout is torch.strided and on_host(tensor) and tensor.is_contiguous()
    return is_tensor_of_program(tensor)


def marked(value: Any, known: Mapping[int, Large]) -> Any:
    """``value`` with a ``Large`` in the place of each tensor.

    Args:
        value: One that has a signature.
        known: Those of an earlier look, by ``id`` of the tensor: they have their prints.
    """
    if isinstance(value, torch.Tensor):
        new, old = Large(value), known.get(id(value))
        return old if old is not None and old.is_same(new) else new
    if isinstance(value, dict):
        held = copy.copy(value)
        held.update([(key, marked(each, known)) for key, each in held.items()])
        return held
    if isinstance(value, collections.deque):
        return collections.deque((marked(each, known) for each in list_of(value)), value.maxlen)
    if isinstance(value, list | tuple):
        return type(value)(marked(each, known) for each in value)
    return value


def _prints_in(tree: Any) -> Iterator[str]:
    """The prints in a portable tree of another process."""
    if isinstance(tree, dict):
        if tree.get(TAG) == LARGE:
            yield tree["print"]
        else:
            for each in tree.values():
                yield from _prints_in(each)
    elif isinstance(tree, list | tuple):
        for each in tree:
            yield from _prints_in(each)


def holds_prints(tree: Any) -> bool:
    """Whether anything is large in a portable tree of another process."""
    return any(True for _ in _prints_in(tree))


def is_told_whole(tree: Any) -> bool:
    """Whether the state of what was given by name can be made of a portable tree of it.

    It cannot of a print in place of all of it, as of what has kinds of its own.
    """
    return not isinstance(tree, str) and not holds_prints(tree)


def is_whole(tree: Any, contents: Collection[str]) -> bool:
    """Whether all that is large in a portable tree of another process is among ``contents``."""
    return all(each in contents for each in _prints_in(tree))


def held_in(tree: Any) -> Iterator[Large]:
    """All in a portable tree of this process."""
    if isinstance(tree, Large):
        yield tree
    elif isinstance(tree, dict):
        for each in tree.values():
            yield from held_in(each)
    elif isinstance(tree, list | tuple):
        for each in tree:
            yield from held_in(each)


def exported(tree: Any, *, whole: bool = False) -> Any:
    """A portable tree of this process for others.

    Args:
        tree: The tree.
        whole: With copies of all tensors in place of their prints.
    """
    if isinstance(tree, Large):
        return tree_of_tensor(tree.tensor) if whole else tree.told()
    if isinstance(tree, dict):
        return {key: exported(each, whole=whole) for key, each in tree.items()}
    if isinstance(tree, list | tuple):
        return type(tree)(exported(each, whole=whole) for each in tree)
    return tree
