"""What a body made that the code behind its vote reads, and that is large: outputs, a batch.

Whoever replaces a machine that dies runs that code again, behind the vote of the dead rank, and its
own body has made other outputs. So with each vote neighbours are told what such variables hold, of
those that only their shape is asked of no more than that, and the log names what is too large.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable
from typing import Any, Final

import torch

from trainmover_executor.program.values.large import (
    Large,
    exported,
    held_in,
    marked,
    signature_of,
)
from trainmover_executor.program.values.plain import is_plain
from trainmover_executor.program.values.trees import TAG, portable, tree_of_tensor

__all__ = ["SHAPE", "PassingValues", "is_shape_of", "tensor_of"]

SHAPE: Final = "shape"
"""How a portable tree tags a tensor of which the shape alone is told."""
_EVERY: Final = 64
"""Tensors after which it is looked again where parameters are: there may be thousands."""


class PassingValues:
    """Asked at a look in front of what cannot be taken back.

    Args:
        limit: Bytes that may be told with one vote.
        addresses: Asked for where the session's parameters and buffers are: a name for one of them
            is right at a joiner, whose state is.

    Attributes:
        limit: See above.
        batch: That of the running step.
    """

    def __init__(self, *, limit: int, addresses: Callable[[], Iterable[int]] = tuple) -> None:
        self.limit = limit
        self._addresses = addresses
        self._of_session: frozenset[int] = frozenset()
        self._asked = 0
        self.batch: object = None
        self._lasting: set[str] = set()
        self._read: Collection[str] = frozenset()
        self._told: dict[str, tuple[Any, Any]] = {}
        self._spent = 0
        self._too_large: dict[str, int] = {}
        self._said: set[str] = set()

    def begin(self, *, everything: bool, read: Collection[str]) -> None:
        """A look begins.

        Args:
            everything: It is one from a place where the program asks for a step: what is there
                lasts, a name for a parameter say.
            read: How the paths begin of what code behind a vote reads; empty elsewhere.
        """
        self._read, self._told, self._spent = read, {}, 0
        if everything:
            self._lasting = set()

    def lasts(self, path: str) -> None:
        """A variable is there where the program asks for a step."""
        self._lasting.add(path)

    def admits(self, path: str, value: Any) -> bool:
        """Whether others are told something of a variable that is not small."""
        if not self._read or path in self._lasting or signature_of(value) is None:
            return False
        tree = portable(marked(value, {}))
        if any(map(self._is_of_session, held_in(tree))):
            return False
        is_read = outermost_name(path) in self._read
        nbytes = sum(each.tensor.nbytes for each in held_in(tree))
        fits = is_read and self._spent + nbytes <= self.limit
        if fits:
            self._spent += nbytes
        elif is_read and path not in self._said:
            self._too_large[path] = nbytes
        self._told[path] = value, exported(tree, whole=True) if fits else _shapes_in(tree)
        return True

    def _is_of_session(self, held: Large) -> bool:
        if self._asked % _EVERY == 0:
            self._of_session = frozenset(self._addresses()) - {0}
        self._asked += 1
        return held.tensor.untyped_storage().data_ptr() in self._of_session

    def passes_over(self, path: str, value: Any) -> None:
        """A variable cannot be carried: an object of a library, which may be the batch."""
        is_batch = value is self.batch and value is not None
        if is_batch and outermost_name(path) in self._read and path not in self._said:
            self._too_large[path] = 0

    def tree(self, path: str, value: Any) -> Any:
        """The portable tree of a variable that was admitted; None for others."""
        known = self._told.get(path)
        return None if known is None or known[0] is not value else known[1]

    def too_large(self) -> dict[str, int]:
        """Bytes of what the code behind reads and is told no more than the shape of, by path; once.

        Zero for objects that cannot be carried.
        """
        found, self._too_large = self._too_large, {}
        self._said.update(found)
        return found


def outermost_name(path: str) -> str:
    """Of the path of a variable, the name that a frame has for it, or for what holds it."""
    root, dot, rest = path.partition(".")
    ends = (rest.find(each) for each in ".[")
    return root + dot + rest[: min((at for at in ends if at >= 0), default=len(rest))]


def is_shape_of(tree: Any, value: Any) -> bool:
    """Whether ``tree`` tells the shape of a tensor alone, which is that of ``value``."""
    if not (isinstance(tree, dict) and tree.get(TAG) == SHAPE and isinstance(value, torch.Tensor)):
        return False
    return (list(value.shape), str(value.dtype)) == (tree["shape"], tree["dtype"])


def tensor_of(tree: dict[str, Any]) -> torch.Tensor:
    """One of that shape: of what it holds nothing was told."""
    dtype = getattr(torch, tree["dtype"].removeprefix("torch."))
    return torch.zeros(tree["shape"], dtype=dtype, device=tree["device"])


def _shapes_in(tree: Any) -> Any:
    """``tree``, of this process, for others: with shapes in the place of what is large."""
    if isinstance(tree, Large):
        tensor = tree.tensor
        if is_plain(tensor):
            return tree_of_tensor(tensor)
        told = {TAG: SHAPE, "shape": list(tensor.shape), "dtype": str(tensor.dtype)}
        return {**told, "device": tensor.device.type}
    if isinstance(tree, dict):
        return {key: _shapes_in(each) for key, each in tree.items()}
    if isinstance(tree, list | tuple):
        return type(tree)(map(_shapes_in, tree))
    return tree
