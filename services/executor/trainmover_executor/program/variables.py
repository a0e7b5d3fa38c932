"""The variables of the training loop: found by looking, and carried to a joiner.

Scripts count steps, average losses and remember the best score in plain variables, which no session
was told of. All of them that hold plain values (``values``) are looked at between steps: the local
variables of the running functions of the program, the globals of their modules, and attributes of
the program's own objects and classes that these hold, and what its functions close over. What has
changed since the first step belongs to the state of the rank. What never changes is left alone,
since a joiner set it for itself: the name of its host, a path, a process id.

The small state of what the session was given by name is looked at, too: a replica hands over its
own, and a normalizer or a replay memory may be each rank's.

Large tensors, the best weights so far say, are told of by a print (see ``values.large``).
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from types import FrameType, MappingProxyType, ModuleType
from typing import Any, Final

import torch
from torch import nn
from torch.optim.lr_scheduler import LRScheduler
from torch.utils.data import DataLoader, Sampler

from trainmover.errors import ProtocolError
from trainmover_executor.program.frames import (
    is_of_script,
    local_setter,
    modules_of_program,
    program_frames,
)
from trainmover_executor.program.liveness import needed
from trainmover_executor.program.modules import Newcomers, attributes_of, hooks_of
from trainmover_executor.program.parts import (
    BAGS,
    MOST_MEMBERS,
    NO_PATHS,
    SCALARS,
    Held,
    Paths,
    Seen,
    entries_of,
    is_looked_into,
    is_mere_code,
    is_passed_over,
    members_of,
    nowhere,
    parts_of,
)
from trainmover_executor.program.values.compare import equal
from trainmover_executor.program.values.large import is_whole
from trainmover_executor.program.values.lasting import LastingValues
from trainmover_executor.program.values.named import CODE, is_named
from trainmover_executor.program.values.plain import (
    CONTAINERS,
    MUTABLE,
    NOWHERE,
    Shared,
    in_two_places,
    is_generator,
    is_plain,
)
from trainmover_executor.program.values.restored import reserve, restored
from trainmover_executor.program.values.trees import portable
from trainmover_executor.state.training import Stateful

__all__ = ["LoopVariables", "Root"]

Root = tuple[str, dict[str, Any], Callable[[str, Any], None]]
"""Where variables live: path, names and values, how to set one."""

_DEPTH: Final = 8
_STEP_IN_LIBRARIES: Final = 3
"""Objects of installed packages, a framework's trainer say, are large, and mostly no state."""
_MOST_OBJECTS: Final = 4096
"""So many objects, so deep, are looked into at each look."""
_UNSEEN: Final = object()
_MEMBERS_OF: Final = "[]"
"""Ends the path of a variable that says which members a container has."""


@dataclass(frozen=True, slots=True)
class _Variable:
    """One variable: where it is, and what it holds.

    Attributes:
        path: Its name for people and for the joiner: ``main.global_step``, ``train.meter.sum``.
        value: What it holds.
        put: Has it hold something else.
    """

    path: str
    value: Any
    put: Callable[[Any], None]


class LoopVariables:
    """Looks at the variables of the program.

    Attributes:
        lasting: Looks at what is large.
        contents: The large tensors of the last ``changed`` from a place where the program asked for
            a step or for work, by their prints.
        newcomers: Modules and optimizers that were met and are not known.

    Args:
        known: Objects that the session carries already.
        extras: Those among them whose small state may differ from rank to rank, by name.
        models: The session's; what they change of themselves besides tensors is looked at.
        lasting: Looks at what is large.
    """

    def __init__(
        self,
        known: Collection[object],
        *,
        extras: Mapping[str, Stateful] = MappingProxyType({}),
        models: Sequence[nn.Module] = (),
        lasting: LastingValues | None = None,
    ) -> None:
        self.lasting = lasting or LastingValues()
        self._known = {id(each) for each in known}
        self._data: dict[int, object] = {}
        self._extras = extras
        self._models = models
        self._first: dict[str, Any] | None = None
        self._changing: set[str] = set()
        self._kept: dict[str, Any] = {}
        self._holders: dict[str, Any] = {}
        self.contents: dict[str, torch.Tensor] = {}
        self._passed_over: list[tuple[str, Any]] | None = None
        self._outgrown: set[str] = set()
        self.newcomers = Newcomers()
        self._besides: Callable[[], Iterable[Root]] = tuple

    def ignore(self, data: object) -> None:
        """Steps are made of ``data``: what is large in it is no result of theirs."""
        self._data[id(data)] = data
        if not is_looked_into(data):
            self._known.add(id(data))

    def look_besides(self, roots: Callable[[], Iterable[Root]], *, known: Iterable[object]) -> None:
        """Look at what an adapter of a framework holds, too, which no frame of the program shows.

        Args:
            roots: Asked at each look for (path, names and values, how to set one).
            known: Objects that are not to be looked into.
        """
        self._besides = roots
        self._known.update(map(id, known))

    def passed_over(self, frame: FrameType | None) -> list[tuple[str, Any]]:
        """(path, value) of what is needed on from ``frame`` and cannot be carried as a value."""
        self._passed_over = []
        for _ in self._all(frame):
            pass
        found, self._passed_over = self._passed_over, None
        return found

    @property
    def outgrown(self) -> int:
        """How many variables could be carried at first, and then not any more."""
        return len(self._outgrown)

    def was_plain(self, path: str) -> bool:
        """Whether the variable, or what it is a part of now, could be carried at first."""
        first = self._first or {}
        while path and path not in first:
            path = path[: max(path.rfind("["), path.rfind("."), 0)]
        return bool(path)

    def changed(
        self, frame: FrameType | None, *, asks: bool = False, votes: bool = False
    ) -> dict[str, Any]:
        """What changed since the first call, as a portable tree by path.

        Args:
            frame: The innermost frame to look at.
            asks: The program asks for a step.
            votes: The program is in a body, in front of what cannot be taken back.
        """
        now, _ = self._told(frame, asks=asks)
        if votes:
            self.lasting.note_changes(self._kept)
        if self._first is None:
            self._first = now
        for path, value in now.items():
            first = self._first.get(path, _UNSEEN)
            if path not in self._changing and (first is _UNSEEN or not equal(first, value)):
                self._changing.add(path)
                self._first[path] = None  # it may be large, and was all that it was kept for
        if not votes:
            self.contents = self.lasting.contents(self._changing)
        exported = self.lasting.exported
        return {path: exported(path, now[path]) for path in now if path in self._changing}

    def roots(self, frame: FrameType | None) -> frozenset[str]:
        """How the paths begin of all variables that can be seen from ``frame``."""
        return frozenset(root for root, _, _ in self._roots(frame, live=False))

    def load(
        self,
        values: Mapping[str, Any],
        frame: FrameType | None,
        *,
        contents: Mapping[str, torch.Tensor] = MappingProxyType({}),
    ) -> list[str]:
        """Take over what ``changed`` returned at another process.

        Args:
            values: By path.
            frame: The innermost frame, at the same place of the program.
            contents: That process's, as far as they came.

        Returns:
            Paths that do not exist here, or that hold what did not come.
        """
        self._changing.update(values)
        return self._put(values, frame, contents=contents)

    def keep(self, frame: FrameType | None, *, whole: bool = False) -> None:
        """Remember all values, for a step that may be done again.

        Args:
            frame: The innermost frame to look at.
            whole: Copy all that is large; else what bodies were seen to change in place.
        """
        self._kept, self._holders = self._told(frame, everything=whole)
        self.lasting.keep(self._kept, whole=whole)

    def note_changes(self) -> None:
        """What was changed in place since the last ``keep`` is copied by the next ones."""
        self.lasting.note_changes(self._kept)

    def _told(
        self, frame: FrameType | None, *, asks: bool = False, everything: bool = False
    ) -> tuple[dict[str, Any], dict[str, Any]]:
        """All variables as portable trees, and as they are, by path."""
        held = {one.path: one.value for one in self._all(frame, everything=asks or everything)}
        self.lasting.end(asks=asks)
        shared = in_two_places(held.items())
        return {path: self._tree(path, value, shared) for path, value in held.items()}, held

    def _tree(self, path: str, value: Any, shared: Shared) -> Any:
        if isinstance(value, Held):
            return value.tree()
        large = self.lasting.tree(path, value)
        return portable(value, shared) if large is None else large

    def put_back(self, frame: FrameType | None) -> None:
        """Have all variables hold what they held at the last ``keep``.

        In the same objects: a name may stand for another one by now, the batch of the step.
        """
        self._put(self._kept, frame, holders=self._holders)

    def put(self, values: Mapping[str, Any], frame: FrameType | None) -> None:
        """Have variables hold what ``kept`` said at another time."""
        self._put(values, frame)

    @property
    def kept(self) -> dict[str, Any]:
        """What the last ``keep`` remembered."""
        return self._kept

    def _put(
        self,
        values: Mapping[str, Any],
        frame: FrameType | None,
        *,
        holders: Mapping[str, Any] | None = None,
        contents: Mapping[str, torch.Tensor] = MappingProxyType({}),
    ) -> list[str]:
        missing = {path: tree for path, tree in values.items() if is_whole(tree, contents)}
        not_here = set(values.keys() - missing.keys())
        held = {} if holders is None else holders
        found: list[tuple[_Variable, Any, Any]] = []
        shared: dict[str, Any] = {**contents}
        taken: set[int] = set()
        paths = Paths(missing)
        self._put_members(missing, frame, held, paths)
        for path in [path for path in missing if path.endswith(_MEMBERS_OF)]:
            not_here.add(path)
            del missing[path]
        for one in self._all(frame, live=False, everything=True, paths=paths):
            if one.path in missing:
                like, tree = held.get(one.path, one.value), missing.pop(one.path)
                if type(like) in MUTABLE and id(like) in taken:
                    like = None  # one object here, and two there
                taken.add(id(like))
                reserve(tree, like, shared)
                found.append((one, like, tree))
        for one, like, tree in found:
            if not equal(self._tree(one.path, like, NOWHERE), tree):
                one.put(self._restored(one.path, tree, like, shared))
            elif like is not one.value:
                one.put(like)
        for root, _, put in self._roots(frame, live=False):
            for path in [path for path in missing if path.rpartition(".")[0] == root]:
                put(path.rpartition(".")[2], restored(missing.pop(path), held.get(path), shared))
        return sorted({*missing, *not_here})

    def _put_members(
        self,
        missing: dict[str, Any],
        frame: FrameType | None,
        held: Mapping[str, Any],
        paths: Paths,
    ) -> None:
        """Have containers of objects hold as many as there were; what is in them comes next."""
        for one in self._all(frame, live=False, everything=True, paths=paths):
            if isinstance(one.value, Held) and one.path in missing:
                tree = missing.pop(one.path)
                if one.path in held:
                    held[one.path].put_back()
                elif not equal(one.value.tree(), tree):
                    one.value.become(tree, missing, one.path.removesuffix(_MEMBERS_OF))

    @staticmethod
    def _restored(path: str, tree: Any, like: Any, shared: dict[str, Any]) -> Any:
        try:
            return restored(tree, like, shared)
        except ProtocolError as error:
            raise ProtocolError(
                f"a step has to be done again, and the variable {path!r} cannot be put back: "
                f"{error}. It is kept in steps from now on; session.track() keeps it from the first"
            ) from error

    # -- where they are --------------------------------------------------------------------------

    def _all(
        self,
        frame: FrameType | None,
        *,
        live: bool = True,
        everything: bool = False,
        paths: Paths = NO_PATHS,
    ) -> Iterator[_Variable]:
        """Every variable that holds a plain value.

        Args:
            frame: The innermost frame.
            live: Only those still needed.
            everything: What is large, too.
            paths: By these all are found, whatever other names an object has.
        """
        self.lasting.begin(everything=everything)
        seen = Seen(self._known, paths=paths)
        for root, holder, put in self._roots(frame, live=live):
            for name, value in list(holder.items()):
                if not name.startswith("__"):
                    yield from self._visit(value, f"{root}.{name}", partial(put, name), seen, 0)
        for at, model in enumerate(self._models):
            yield from self._visit_module(model, f"session.model[{at}]", seen)
        for name, extra in self._extras.items():
            state = extra.state_dict()
            if is_plain(state):
                yield _Variable(f"session.{name}", state, extra.load_state_dict)

    def _roots(self, frame: FrameType | None, *, live: bool) -> Iterator[Root]:
        """Where variables live: (path, names and values, how to set one)."""
        yield from self._besides()
        modules: set[int] = set()
        frames = program_frames(frame)
        scripts = {id(each.f_globals): each for each in frames if _is_module(each)}
        for each in frames:
            names = each.f_globals
            if id(names) not in modules:
                modules.add(id(names))
                script = scripts.get(id(names))
                wanted = names if script is None else needed(names, script, live=live)
                yield names.get("__name__", "?").strip("_"), wanted, names.__setitem__
        for names in modules_of_program():
            if id(names) not in modules:
                modules.add(id(names))
                yield names["__name__"], _own_of(names), names.__setitem__
        for depth, each in enumerate(frames):
            if not _is_module(each):
                root = f"{each.f_code.co_qualname}@{depth}".replace(".", ":")
                yield root, needed(each.f_locals, each, live=live), local_setter(each)

    def _visit(
        self, value: Any, path: str, put: Callable[[Any], None], seen: Seen, depth: int
    ) -> Iterator[_Variable]:
        kind = type(value)
        if isinstance(value, CODE):
            yield from self._visit_name(value, path, put)
        if is_mere_code(value):
            return
        if is_passed_over(kind):  # type: ignore[arg-type] # classes are hashable
            yield from self._visit_known(value, path, seen)
            return
        over = depth >= _DEPTH or len(seen) > _MOST_OBJECTS or seen.has(value, path)
        if kind in SCALARS or is_plain(value) or (not over and self.lasting.admits(path, value)):
            yield _Variable(path, value, put)
            return
        if over:
            return
        seen.add(id(value))
        if kind in CONTAINERS and len(value) <= MOST_MEMBERS:
            yield from self._visit_items(value, path, seen, depth)
        elif (parts := parts_of(value, is_loader=id(value) in self._data)) is not None:
            of = value if isinstance(value, type) else kind
            mine = kind in BAGS or is_of_script(of.__module__)
            deeper = depth + (1 if mine else _STEP_IN_LIBRARIES)
            for name, member, setter in parts:
                yield from self._visit(member, f"{path}.{name}", setter, seen, deeper)
        else:
            self._pass_over(path, value)

    def _visit_known(self, value: Any, path: str, seen: Seen) -> Iterator[_Variable]:
        """What the session or the data sees to, and the program may change besides."""
        if isinstance(value, LRScheduler) and not seen.has(value, path):
            seen.add(id(value))
            if is_plain(state := value.state_dict()):  # it may have been made in the middle
                yield _Variable(path, state, value.load_state_dict)
                return
        self._pass_over(path, value)
        if isinstance(value, nn.Module):
            yield from self._visit_module(value, path, seen)
        elif hasattr(value, "state_dict"):  # a loader or a sampler that is resumed by that
            return
        elif isinstance(value, DataLoader):
            batches = value.batch_sampler
            sampler = value.sampler if batches is None else batches  # one may have no length
            yield from self._visit_sampler(sampler, f"{path}.sampler", seen)
        elif isinstance(value, Sampler):
            yield from self._visit_sampler(value, path, seen)

    def _visit_sampler(self, value: Any, path: str, seen: Seen) -> Iterator[_Variable]:
        """What a sampler keeps; what it makes of its own in each pass, the feed sees to."""
        if seen.has(value, path) or hasattr(value, "state_dict"):
            return
        seen.add(id(value))
        for name, member, put in members_of(value):
            where = f"{path}.{name}"
            if isinstance(member, Sampler):
                yield from self._visit_sampler(member, where, seen)
            elif is_generator(member):
                continue  # the feed sets it to where the pass has it
            elif is_plain(member) or self.lasting.admits(where, member):
                yield _Variable(where, member, put)

    def _visit_name(self, value: Any, path: str, put: Callable[[Any], None]) -> Iterator[_Variable]:
        """A name that may stand for another function later: a loss, an activation."""
        if path.rpartition(".")[2] == value.__name__:
            return
        if is_named(value):
            yield _Variable(path, value, put)
        else:
            self._pass_over(path, value)

    def _visit_module(self, module: nn.Module, path: str, seen: Seen) -> Iterator[_Variable]:
        if seen.has(module, path):
            return
        seen.add(id(module))
        for name, value, put in attributes_of(module):
            if is_plain(value):
                yield _Variable(f"{path}.{name}", value, put)
        for name, value in hooks_of(module):
            yield from self._visit(value, f"{path}.{name}", nowhere, seen, 0)

    def _pass_over(self, path: str, value: Any) -> None:
        if path not in self._outgrown and self.was_plain(path):
            self._outgrown.add(path)
        self.newcomers.meet(value)
        if self._passed_over is not None:
            self._passed_over.append((path, value))

    def _visit_items(self, value: Any, path: str, seen: Seen, depth: int) -> Iterator[_Variable]:
        if not isinstance(value, tuple | set | frozenset):
            yield _Variable(f"{path}{_MEMBERS_OF}", Held(value), nowhere)
        for key, member in entries_of(value):
            if isinstance(value, tuple):
                if is_plain(member):
                    continue  # a tuple cannot be written
                put: Callable[[Any], None] = nowhere
            else:
                put = partial(value.__setitem__, key)
            yield from self._visit(member, f"{path}[{key!r}]", put, seen, depth + 1)


def _is_module(frame: FrameType) -> bool:
    return frame.f_locals is frame.f_globals


def _own_of(names: dict[str, Any]) -> dict[str, Any]:
    """Those of a module's ``names`` that it has not imported, and that are no mere code."""
    own = names["__name__"]
    return {
        name: value
        for name, value in names.items()
        if not is_mere_code(value)
        and type(value) is not ModuleType
        and not (isinstance(value, CODE) and value.__module__ != own)
    }
