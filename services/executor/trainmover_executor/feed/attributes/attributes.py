"""What loaders and samplers keep and change: weights, a stage, a count of passes.

A pass over the data depends on it as it was when it began, so that is what a joiner begins it with.
What it is now is among the program's variables.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

import structlog
from torch.utils.data import Dataset

from trainmover.errors import ConfigError
from trainmover_executor.feed.attributes.holders import (
    Holder,
    held_by,
    holders_in,
    identity_of,
    set_attribute,
)
from trainmover_executor.feed.attributes.trees import (
    LONG,
    MOST_BYTES,
    ORDER,
    PRINT,
    can_be_told,
    has,
    is_long,
    ordered,
    print_of,
    size_of,
    tree_of,
    tree_of_list,
)
from trainmover_executor.feed.attributes.uses import Namespace
from trainmover_executor.program.values.compare import equal
from trainmover_executor.program.values.restored import restored

__all__ = ["Attributes", "attributes_of", "attributes_of_chain"]

log = structlog.get_logger(__name__)


@dataclass(slots=True)
class _Seen:
    """What one holder had when it was first seen, whichever loader held it.

    Attributes:
        holder: Gives the holder, as long as there is one.
        first: Its attributes as portable trees, by name; of long lists nothing.
        orders: Its long lists.
        changed: Names of attributes that were another value since.
    """

    holder: Callable[[], Any]
    first: dict[str, Any] = field(default_factory=dict)
    orders: dict[str, list[Any]] = field(default_factory=dict)
    changed: set[str] = field(default_factory=set)

    def look(self, name: str, value: Any) -> None:
        """``name`` is first seen, as ``value``."""
        if is_long(value):
            self.orders[name] = list(value)
        else:
            self.first[name] = tree_of(value)

    def knows(self, name: str) -> bool:
        """Whether it has looked at ``name``."""
        return name in self.first or name in self.orders

    def tree(self, name: str, value: Any) -> Any:
        """``value`` as a portable tree; None for a long list that is as it was."""
        return tree_of_list(value, self.orders.get(name)) if is_long(value) else tree_of(value)


_seen: dict[int, _Seen] = {}


class Attributes:
    """Of objects that a pass over the data depends on.

    What has changed is told: data may be long, and stays; a number may be the handle of a file.

    Args:
        holders: Asked for the objects each time. All is told of those that come later.

    Attributes:
        holders: As given.
    """

    _were_told = False
    """Whether this process has begun a pass: what a global variable is then is not its first."""

    def __init__(self, holders: Callable[[], Iterable[Holder]]) -> None:
        self.holders = holders
        self._said: set[str] = set()
        for _, holder in holders():
            is_shared = isinstance(holder, Namespace)
            is_first = not Attributes._were_told if is_shared else _known(holder) is None
            seen = _seen_of(holder)
            for name, value in _attributes_in(holder):
                if is_first and not seen.knows(name):
                    seen.look(name, value)

    def state(self) -> dict[str, Any]:
        """What they are now; portable. What is too large to be told is named in the log, once."""
        Attributes._were_told = True
        told = {}
        left = MOST_BYTES
        for of, holder in self.holders():
            seen = _seen_of(holder)
            for name, value in _attributes_in(holder):
                tree = seen.tree(name, value)
                if name not in seen.changed:
                    if tree is None or equal(seen.first.get(name), tree):
                        continue
                    seen.changed.add(name)
                nbytes = size_of(tree, value)
                if nbytes > left:
                    self._say(f"{of}.{name}", nbytes)
                    tree = {PRINT: print_of(tree)}
                else:
                    left -= nbytes
                told[f"{of}.{name}"] = tree
        return told

    def load(self, state: dict[str, Any]) -> None:
        """Have attributes be what ``state`` said; others what they were at first.

        Raises:
            ConfigError: One that is too large to be told is another one here.
        """
        for of, holder in self.holders():
            seen = _seen_of(holder)
            for name, value in _attributes_in(holder):
                path = f"{of}.{name}"
                here = seen.tree(name, value)
                there = state.get(path, seen.first.get(name))
                if has(there, PRINT):
                    if print_of(here) != there[PRINT]:
                        raise _too_large(path)
                elif has(there, ORDER):
                    value[:] = ordered(path, seen.orders.get(name, []), there[ORDER])
                elif there is None and has(here, ORDER):
                    value[:] = seen.orders[name]
                elif has(there, LONG):
                    value[:] = there[LONG].tolist()
                elif there is not None and not equal(here, there):
                    set_attribute(holder, name, restored(there, value))

    def _say(self, path: str, nbytes: int) -> None:
        if path not in self._said:
            self._said.add(path)
            log.warning(
                "an attribute of the loader changes and is too large for a neighbour to keep: no "
                "standby can take this rank's place in passes that depend on it",
                attribute=path,
                nbytes=nbytes,
                most=MOST_BYTES,
                cure="make the order of a pass from its number: numpy.random.RandomState(epoch)",
            )


def attributes_of_chain(samplers: Sequence[Any]) -> Attributes:
    """Those of a loader's sampler, of the one that it wraps, and so on; the outermost first.

    Data sets that these know of are not looked into.
    """
    named = [(f"{type(each).__name__}[{at}]", each) for at, each in enumerate(samplers)]
    return Attributes(lambda: holders_in(named, apart=(Dataset,)))


def attributes_of(loader: Any) -> Attributes:
    """Those of ``loader`` and of the program's objects in it, and globals that its code uses."""
    return Attributes(lambda: holders_in([(type(loader).__name__, loader)]))


def _known(holder: Any) -> _Seen | None:
    identity = identity_of(holder)
    seen = _seen.get(id(identity))
    return seen if seen is not None and seen.holder() is identity else None


def _seen_of(holder: Any) -> _Seen:
    seen, identity = _known(holder), identity_of(holder)
    at = id(identity)
    if seen is None:
        try:
            seen = _Seen(weakref.ref(identity, lambda _: _seen.pop(at, None)))
        except TypeError:  # names of a module, or something with slots
            seen = _Seen(lambda: identity)
        _seen[at] = seen
    return seen


def _attributes_in(holder: Any) -> list[tuple[str, Any]]:
    """Names and values that can be told."""
    return [(name, each) for name, each in held_by(holder) if can_be_told(each)]


def _too_large(path: str) -> ConfigError:
    return ConfigError(
        f"the attribute {path} of the loader changes from pass to pass and is too large to be "
        f"told: {MOST_BYTES} bytes can be kept for a machine that is replaced. Make the order of "
        "a pass from its number, numpy.random.RandomState(epoch).permutation(n) say, keep it in a "
        "smaller type, or draw the indices in session.between_steps(work) and make a loader of "
        "them."
    )
