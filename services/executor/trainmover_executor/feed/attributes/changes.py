"""What a program changes of its loader in the middle of a pass: weights of a mixture, a difficulty.

A joiner draws what is before its place again. It has to draw with what the job drew with.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, Final

from trainmover.errors import ConfigError
from trainmover_executor.feed.attributes.holders import (
    Holder,
    get_attribute,
    held_by,
    set_attribute,
)
from trainmover_executor.feed.attributes.runs import Run, added, before
from trainmover_executor.program.looking.parts import is_threaded
from trainmover_executor.program.values.plain import PLAIN
from trainmover_executor.program.values.restored import restored
from trainmover_executor.program.values.trees import portable

__all__ = ["Changes"]

_MOST: Final = 256
"""It goes to other machines with each vote."""
_MOST_ITEMS: Final = 32
_FEW: Final = (list, tuple, dict)


class Changes:
    """Of one pass, by the number of batches that were drawn before.

    Looked at are numbers, strings and short containers of them, which take microseconds.

    Args:
        loader: What the pass is over.
        holders: It, and what it holds of the program's objects.
        told: Changes that are to be made again.

    Raises:
        ConfigError: There were too many to be told.
    """

    def __init__(
        self, loader: Any, holders: Iterable[Holder], *, told: Sequence[Any] | None = ()
    ) -> None:
        if told is None:
            raise ConfigError(
                f"the program changes attributes of its {type(loader).__name__} more than {_MOST} "
                "times in a pass. Its batches cannot be drawn again elsewhere: change them between "
                "passes, or draw from a loader with state_dict and load_state_dict."
            )
        self._loader = loader
        self._places = [
            (f"{path}.{name}", holder, name)
            for path, holder in (() if is_threaded(loader) else holders)
            for name, value in held_by(holder)
            if _is_few(value)
        ]
        self._runs: dict[str, list[Run]] | None = _runs_of(told)
        self._again = _runs_of(told)
        self._seen = self._now()
        self._drawn = 0

    @property
    def told(self) -> list[list[Any]] | None:
        """The changes as a portable tree; None if there are too many."""
        if self._runs is None:
            return None
        return [[path, [run.tree() for run in runs]] for path, runs in self._runs.items()]

    def before(self, *, dropped: bool) -> None:
        """A batch is about to be drawn.

        Args:
            dropped: To get to a place; else the program asks for it.
        """
        again = self._made_again()
        if again:
            self._make(again)
        elif not dropped and self._runs is not None and (now := self._now()) != self._seen:
            changed = {
                path for path in now.keys() & self._seen.keys() if now[path] != self._seen[path]
            }
            self._note({path: portable(now[path]) for path in sorted(changed)})

    def after(self) -> None:
        """It was drawn."""
        self._drawn += 1
        if self._drawn == 1 and is_threaded(self._loader):
            self._places = []  # a thread changes what it likes at any time
        self._seen = self._now()

    def go_on(self, told: Sequence[Any] | None) -> bool:
        """Make further changes again as another process of the pass has told.

        Args:
            told: Its changes, up to some later batch.

        Returns:
            Whether batches that were drawn here were drawn with the same.
        """
        if told is None or self._runs is None:
            return False
        runs = _runs_of(told)
        for path in runs.keys() | self._runs.keys():
            theirs, mine = (
                list(before(of.get(path, ()), self._drawn)) for of in (runs, self._runs)
            )
            if theirs != mine:
                return False
        self._runs, self._again = runs, _runs_of(told)
        return True

    def _made_again(self) -> dict[str, Any]:
        """What is to be changed now."""
        values = {}
        for path, runs in self._again.items():
            while runs and runs[0].before(self._drawn) == runs[0]:
                del runs[0]  # its changes are all made
            if runs and runs[0].has(self._drawn):
                values[path] = runs[0].value_at(self._drawn)
        return values

    def _note(self, changed: dict[str, Any]) -> None:
        assert self._runs is not None  # noqa: S101 - asked before
        for path, value in changed.items():
            self._runs[path] = added(self._runs.get(path, ()), self._drawn, value)
        if sum(map(len, self._runs.values())) > _MOST:
            self._runs = None

    def _make(self, changes: dict[str, Any]) -> None:
        for path, holder, name in self._places:
            if path in changes:
                live = get_attribute(holder, name)
                set_attribute(holder, name, restored(changes[path], live))

    def _now(self) -> dict[str, Any]:
        held = ((path, get_attribute(holder, name)) for path, holder, name in self._places)
        return {path: _copy_of(value) for path, value in held if _is_few(value)}


def _runs_of(told: Iterable[Any]) -> dict[str, list[Run]]:
    return {path: [Run.of_tree(each) for each in runs] for path, runs in told}


def _is_few(value: Any) -> bool:
    if type(value) not in _FEW:
        return type(value) in PLAIN
    items = value.values() if isinstance(value, dict) else value
    return len(value) <= _MOST_ITEMS and PLAIN.issuperset(map(type, items))


def _copy_of(value: Any) -> Any:
    if type(value) is list:
        return list(value)
    return dict(value) if type(value) is dict else value
