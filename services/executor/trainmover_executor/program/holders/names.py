"""Names of the program's frames and modules: where its variables live."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from types import FrameType, ModuleType
from typing import Any

from trainmover_executor.program.frames import local_setter, modules_of_program, program_frames
from trainmover_executor.program.liveness import needed, read_names
from trainmover_executor.program.looking.parts import is_mere_code
from trainmover_executor.program.looking.still import StillModule
from trainmover_executor.program.values.kinds.named import CODE

__all__ = ["Root", "Roots"]

Root = tuple[str, dict[str, Any], Callable[[str, Any], None]]
"""Where variables live: path, names and values, how to set one."""


class Roots:
    """Where variables live.

    Attributes:
        besides: What an adapter of a framework holds; see ``LoopVariables.look_besides``.
        left_out: Modules that the last look that was asked for it has left out.
    """

    def __init__(self) -> None:
        self.besides: Callable[[], Iterable[Root]] = tuple
        self.left_out: list[StillModule] = []
        self._still: dict[int, StillModule] = {}

    def leave_out(self, still: Iterable[tuple[int, StillModule]]) -> None:
        """Modules that a look need not go through, as long as they hold what they hold now."""
        self._still.update(still)

    def seen_from(
        self,
        frame: FrameType | None,
        *,
        live: bool,
        leave_out: Callable[[Iterable[int]], None] | None = None,
    ) -> Iterator[Root]:
        """All of them.

        Args:
            frame: The innermost frame.
            live: Only those still needed.
            leave_out: Where given, it is told the ids of what modules hold that are left out, for
                they hold what they held at first.
        """
        yield from self.besides()
        modules: set[int] = set()
        frames = program_frames(frame)
        scripts = {id(each.f_globals): each for each in frames if _is_module(each)}
        for each in frames:
            names = each.f_globals
            if id(names) not in modules:
                modules.add(id(names))
                script = scripts.get(id(names))
                wanted = names if script is None else needed(names, script, live=live)
                yield _name_of(names), wanted, names.__setitem__
        for names in modules_of_program():
            if id(names) not in modules and not (leave_out and self._is_left(names, leave_out)):
                modules.add(id(names))
                yield names["__name__"], _own_of(names), names.__setitem__
        for depth, each in enumerate(frames):
            if not _is_module(each):
                wanted = needed(each.f_locals, each, live=live)
                yield _root_of(each, depth), wanted, local_setter(each)

    def read_from(self, frame: FrameType | None) -> frozenset[str]:
        """How the paths begin of what functions read of their variables, more than a shape."""
        return frozenset(
            f"{_root_of(each, depth)}.{name}"
            for depth, each in enumerate(program_frames(frame))
            for name in read_names(each)
        )

    def _is_left(self, names: dict[str, Any], leave_out: Callable[[Iterable[int]], None]) -> bool:
        still = self._still.get(id(names))
        if still is None:
            return False
        if not still.is_still:
            del self._still[id(names)]
            return False
        leave_out(still.holders)
        self.left_out.append(still)
        return True


def _root_of(frame: FrameType, depth: int) -> str:
    if _is_module(frame):
        return _name_of(frame.f_globals)
    return f"{frame.f_code.co_qualname}@{depth}".replace(".", ":")


def _name_of(names: Mapping[str, Any]) -> str:
    return str(names.get("__name__", "?")).strip("_")


def _is_module(frame: FrameType) -> bool:
    return frame.f_locals is frame.f_globals


def _own_of(names: dict[str, Any]) -> dict[str, Any]:
    """Those of a module's ``names`` that it has not imported, and that are no mere code."""
    own = names["__name__"]
    return {
        name: value
        for name, value in names.copy().items()
        if not is_mere_code(value)
        and type(value) is not ModuleType
        and not (isinstance(value, CODE) and value.__module__ != own)
    }
