"""Variables hold what portable trees say: what was here at another time, or at another process."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from types import FrameType
from typing import Any

import torch

from trainmover.errors import ProtocolError
from trainmover_executor.program.looking.finding import Finder, Variable
from trainmover_executor.program.looking.parts import Paths, name_in
from trainmover_executor.program.looking.shapes import SHAPES, Members, Shape, Told, bare
from trainmover_executor.program.values.compare import equal
from trainmover_executor.program.values.large import is_whole
from trainmover_executor.program.values.passing import is_shape_of
from trainmover_executor.program.values.plain import MUTABLE, NOWHERE, Shared, is_generator
from trainmover_executor.program.values.restored import reserve, restored
from trainmover_executor.program.values.trees import is_only_set

__all__ = ["Putting"]


class Putting:
    """Puts values into the variables that can be seen from one place of the program.

    Args:
        finder: Finds them.
        frame: The innermost frame.
        tree_of: The portable tree of a variable, of its path and value.
        held: Objects that are to hold the values, by path; else those that do now.
        met: Generators that variables had at another time, by path: none can be made anew.
        contents: Large tensors of another process, by their prints.
        borrowed: Ids of tensors and arrays that belong to a loader: names get others.
    """

    def __init__(
        self,
        finder: Finder,
        frame: FrameType | None,
        *,
        tree_of: Callable[[str, Any, Shared], Any],
        held: Mapping[str, Any],
        met: Mapping[str, Any],
        contents: Mapping[str, torch.Tensor],
        borrowed: Collection[int],
    ) -> None:
        self._finder = finder
        self._frame = frame
        self._tree_of = tree_of
        self._held = held
        self._met = met
        self._contents = contents
        self._borrowed = borrowed

    def put(self, values: Mapping[str, Any]) -> list[str]:
        """Put ``values``, portable trees by path.

        Returns:
            Paths that do not exist here, or that hold what did not come.
        """
        missing = {path: tree for path, tree in values.items() if is_whole(tree, self._contents)}
        not_here = set(values.keys() - missing.keys())
        shared: dict[str, Any] = {**self._contents}
        told = Told({**missing}, self._contents, self._finder.identities)
        self._put_shapes(missing, told)
        for path in [path for path in missing if path != bare(path)]:
            not_here.add(path)
            del missing[path]
        found = self._find(missing, shared, Paths(missing))
        not_here |= {one.path for one, like, tree in found if like is None and is_only_set(tree)}
        for one, like, tree in found:
            if not equal(self._tree_of(one.path, like, NOWHERE), tree):
                one.put(_restored(one.path, tree, like, shared))
            elif like is not one.value:
                one.put(like)
        for root, _, put in self._finder.roots.seen_from(self._frame, live=False):
            for path in [path for path in missing if name_in(root, path)]:
                held = self._held.get(path)
                put(name_in(root, path), restored(missing.pop(path), held, shared))
        return sorted({*missing, *not_here})

    def _find(
        self, missing: dict[str, Any], shared: dict[str, Any], paths: Paths
    ) -> list[tuple[Variable, Any, Any]]:
        """(variable, what is to hold its value or None for a new object, tree), off ``missing``."""
        found: list[tuple[Variable, Any, Any]] = []
        taken: set[int] = set()
        for one in self._finder.all(self._frame, live=False, everything=True, paths=paths):
            if one.path in missing:
                tree = missing.pop(one.path)
                if is_shape_of(tree, one.value):
                    continue  # it has that
                like = self._holder_of(one, tree)
                if id(like) in self._borrowed or (type(like) in MUTABLE and id(like) in taken):
                    like = None  # not the program's; or one object here, and two there
                taken.add(id(like))
                reserve(tree, like, shared)
                found.append((one, like, tree))
        return found

    def _holder_of(self, one: Variable, tree: Any) -> Any:
        like = self._held.get(one.path, one.value)
        return self._met.get(one.path) if is_only_set(tree) and not is_generator(like) else like

    def _put_shapes(self, missing: dict[str, Any], told: Told) -> None:
        """Have objects and containers be there, as many as there were; what is in them comes next.

        What is made holds nothing yet: what it is to hold is made when it is looked at again.
        """
        for root, names, put in self._finder.roots.seen_from(self._frame, live=False):
            for path in missing:
                name = name_in(root, bare(path))
                if path != bare(path) and name and name not in names:
                    put(name, None)  # it stands for nothing here yet
        left = -1
        while left != (left := len(missing)):
            paths = Paths(missing)
            for one in self._finder.all(self._frame, live=False, everything=True, paths=paths):
                self._put_shape(one, missing, told)

    def _put_shape(self, one: Variable, missing: dict[str, Any], told: Told) -> None:
        here, path = one.value, bare(one.path)
        value = here.of if isinstance(here, Shape) else here
        for shape in SHAPES:
            if (marked := path + shape.MARK) in missing:
                tree, kept = missing.pop(marked), self._held.get(marked)
                if kept is None:
                    wanted = shape.like(tree, value, path, told)
                else:
                    kept.put_back()
                    wanted = kept.of
                if wanted is not value:
                    one.put(wanted)
                if "inside" in tree:
                    self._move(missing, tree["inside"], wanted, path)
                return
        if isinstance(here, Members) and path in missing:
            value.clear()  # it is empty there, or holds plain values
        elif isinstance(here, Shape) and path in missing:
            one.put(None)

    def _move(self, missing: dict[str, Any], theirs: str, wanted: Any, path: str) -> None:
        """Have what was told of an object be looked for by the path that it has here."""
        mine = self._finder.identities.path_inside(wanted, path)
        if mine != theirs:
            for told in [told for told in missing if told.startswith(f"{theirs}.")]:
                missing[mine + told.removeprefix(theirs)] = missing.pop(told)


def _restored(path: str, tree: Any, like: Any, shared: dict[str, Any]) -> Any:
    try:
        return restored(tree, like, shared)
    except ProtocolError as error:
        raise ProtocolError(
            f"a step has to be done again, and the variable {path!r} cannot be put back: "
            f"{error}. It is kept in steps from now on; session.track() keeps it from the first"
        ) from error
