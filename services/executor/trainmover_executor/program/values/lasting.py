"""Which variables hold large tensors from step to step, and what these hold.

Looked at again and again, most of them have not changed: what was made of them is kept as long as
no tensor is another one, and none was written to.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Final

import torch
from torch.nn.parameter import is_lazy

from trainmover_executor.program.values.large import (
    Large,
    exported,
    held_in,
    marked,
    signature_of,
)
from trainmover_executor.program.values.passing import PassingValues
from trainmover_executor.program.values.trees import portable
from trainmover_executor.state.packing.shards import local_of, made_of
from trainmover_executor.state.training import TrainingState

__all__ = ["EXTRA", "MODULE", "LastingValues"]

EXTRA: Final = "session."
"""How the paths begin of what the session was given by name."""
MODULE: Final = "module:"
"""How it begins what stands for a module that the session was given by name. Whether another rank
has that module, too, is all that can be told from it: a replica has its tensors."""

_LIMIT_BYTES: Final = 64 * 1024 * 1024
_TIMES_THE_STATE: Final = 2
_OWN_BYTES: Final = 1024 * 1024
"""Goes to other machines with each vote, however short a step is."""
_OWN_BYTES_A_SECOND: Final = 2 * _OWN_BYTES
"""Of a step: they take some 0.6 % of it, and of each collective between steps 3 %."""
_MOST_OWN_BYTES: Final = 16 * _OWN_BYTES


@dataclass(slots=True)
class _Entry:
    """What was seen of one variable.

    Attributes:
        value: What it holds.
        signature: See ``signature_of``.
        tree: Its portable tree for this process.
        nbytes: How large it is.
        exported: The same for others, once somebody asked.
    """

    value: Any
    signature: tuple[Any, ...]
    tree: Any
    nbytes: int
    exported: Any = None


class LastingValues:
    """Asked for each variable that is not small, at each look.

    What a step makes and the next one makes anew, a batch or its logits, is left alone: only what
    the program still holds when it asks for the next step is carried.

    Args:
        state: The session's: its own memory is not looked at here, and no more is carried than
            twice as much, and 64 MiB.

    Attributes:
        passing: What a body made that the code behind its vote reads.
    """

    def __init__(self, state: TrainingState | None = None) -> None:
        self._state = state
        self._entries: dict[str, _Entry] = {}
        self._before: dict[str, _Entry] = {}
        self._refused: dict[str, tuple[Any, ...]] = {}
        self._left: set[str] = set()
        self._lasting: frozenset[str] = frozenset()
        self._own: dict[str, int] = {}
        self._in_place: set[str] = set()
        self._copies: dict[int, torch.Tensor] = {}
        self._all = False
        self._spent = 0
        self._parameters = self._ids()
        self.passing = PassingValues(limit=_OWN_BYTES, addresses=self._addresses_of_models)

    def _addresses_of_models(self) -> Iterator[int]:
        if self._state is not None:
            yield from map(_address_of, (*self._state.parameters(), *self._state.buffers()))

    def _ids(self) -> frozenset[int]:
        """Of the session's parameters: a list of them is quickly known to be no variable."""
        return frozenset(() if self._state is None else map(id, self._state.parameters()))

    # -- a look ----------------------------------------------------------------------------------

    def begin(self, *, everything: bool, read: Collection[str] = ()) -> None:
        """A look begins.

        Args:
            everything: Also what was not there when the program asked for a step.
            read: See ``PassingValues.begin``.
        """
        self.passing.begin(everything=everything, read=read)
        self._before, self._entries = self._entries, {}
        self._all = everything
        self._spent = 0

    def end(self, *, asks: bool) -> None:
        """A look ends.

        Args:
            asks: The program asked for a step: what is there, lasts.
        """
        self._before = {}
        if asks:
            self._lasting = frozenset(self._entries)

    def admits(self, path: str, value: Any) -> bool:
        """Whether a variable that is not small can be carried."""
        if self._all:
            self.passing.lasts(path)
        elif path not in self._lasting:
            return self.passing.admits(path, value)
        signature = signature_of(value, but=self._parameters)
        if signature is None or self._refused.get(path) == signature:
            return False
        entry = self._before.get(path)
        if entry is None or entry.value is not value or entry.signature != signature:
            known = {} if entry is None else {id(one.tensor): one for one in held_in(entry.tree)}
            tree = portable(marked(value, known))
            if not self._is_apart(one for one in held_in(tree) if id(one.tensor) not in known):
                self._refused[path] = signature
                self._parameters = self._ids()  # the session may have others by now
                return False
            nbytes = sum(one.tensor.nbytes for one in held_in(tree))
            entry = _Entry(value, signature, tree, nbytes)
        self._spent += entry.nbytes
        if self._spent > self._limit:
            return False
        self._entries[path] = entry
        return True

    @cached_property
    def _limit(self) -> int:
        held = [] if self._state is None else [*self._state.parameters(), *self._state.buffers()]
        total = sum(local_of(each).nbytes for each in held if not is_lazy(each))
        return _TIMES_THE_STATE * total + _LIMIT_BYTES

    def _is_apart(self, held: Iterable[Large]) -> bool:
        """Whether none of ``held`` is a view of what the session carries anyway."""
        addresses = {each.tensor.untyped_storage().data_ptr() for each in held} - {0}
        if self._state is None or not addresses:
            return True
        return addresses.isdisjoint(_addresses(self._state))

    # -- what was seen ---------------------------------------------------------------------------

    def tree(self, path: str, value: Any) -> Any:
        """The portable tree of a variable that was admitted; None for others."""
        entry = self._entries.get(path)
        if entry is None or entry.value is not value:
            return self.passing.tree(path, value)
        return entry.tree

    def exported(self, path: str, tree: Any) -> Any:
        """``tree``, which a variable has, for other processes."""
        entry = self._entries.get(path)
        if entry is None or entry.tree is not tree:
            return tree
        if entry.exported is None:
            entry.exported = exported(tree, whole=path in self._own)
        return entry.exported

    def tell_whole(self, path: str, *, step_s: float) -> bool:
        """From now on, tell others what a variable holds: each rank has its own.

        Args:
            path: The variable.
            step_s: How long a step takes, in seconds: in a long one there is time for more.

        Returns:
            Whether it is small enough for that.
        """
        entry = self._entries.get(path)
        if entry is None or entry.nbytes > self._left_for_own(step_s):
            return False
        self.know_own(path, nbytes=entry.nbytes)
        entry.exported = None
        return True

    def _left_for_own(self, step_s: float) -> int:
        limit = min(max(_OWN_BYTES, step_s * _OWN_BYTES_A_SECOND), _MOST_OWN_BYTES)
        return int(limit) - sum(self._own.values())

    def pass_on(self, *, step_s: float) -> dict[str, int]:
        """Have what passes take what is left of a step's time.

        Args:
            step_s: How long a step takes, in seconds.

        Returns:
            See ``PassingValues.too_large``.
        """
        self.passing.limit = self._left_for_own(step_s)
        return self.passing.too_large()

    def know_own(self, path: str, *, nbytes: int = 0) -> None:
        """Others are told what a variable holds: each rank has its own.

        Args:
            path: The variable.
            nbytes: How large it is.
        """
        self._own[path] = nbytes
        if self._state is not None and path.startswith(EXTRA):
            self._state.own_extras.add(path.removeprefix(EXTRA))

    def leave(self, path: str) -> None:
        """All ranks have the same there, and whoever gives a joiner state gives it that."""
        self._left.add(path)

    def is_left(self, path: str) -> bool:
        """Whether ``leave`` was called for it."""
        return path in self._left

    def contents(self, paths: Collection[str]) -> dict[str, torch.Tensor]:
        """The tensors of variables, by their prints."""
        return {
            each.print(): each.tensor
            for path, entry in self._entries.items()
            if path in paths
            for each in held_in(entry.tree)
        }

    # -- steps that may be done again ------------------------------------------------------------

    def keep(self, kept: Mapping[str, Any], *, whole: bool) -> None:
        """Copy what bodies change in place.

        Args:
            kept: Portable trees by path.
            whole: Copy everything.
        """
        paths = self._entries.keys() if whole else self._in_place & self._entries.keys()
        copies = {
            id(each.tensor): each.keep(self._copies.get(id(each.tensor)))
            for path in paths
            if path in kept
            for each in held_in(kept[path])
        }
        if not whole:
            self._copies = copies

    def note_changes(self, kept: Mapping[str, Any]) -> None:
        """Before a step is committed: what of ``kept`` was changed in place is copied from now."""
        for path in self._entries.keys() & kept.keys():
            if not all(each.is_current for each in held_in(kept[path])):
                self._in_place.add(path)


def _addresses(state: TrainingState) -> Iterator[int]:
    yield from map(_address_of, (*state.parameters(), *state.buffers()))
    yield from map(_address_of, state.gradients())
    for optimizer in state.optimizers:
        yield from map(_address_of, _tensors_in(optimizer.state))


def _tensors_in(entries: Mapping[Any, Any]) -> Iterator[Any]:
    for value in entries.values():
        inside = value if isinstance(value, Mapping) else made_of(value)
        if inside is None:
            yield value
        else:
            yield from _tensors_in(inside)


def _address_of(held: Any) -> int:
    """Where a tensor's memory is; zero for what has none."""
    if not isinstance(held, torch.Tensor) or is_lazy(held) or held.layout is not torch.strided:
        return 0
    return local_of(held).untyped_storage().data_ptr()
