"""The variables of the training loop: found by looking, and carried to a joiner.

Scripts count steps, average losses and remember the best score in plain variables, which no session
was told of. All of them that hold plain values (``values``) are looked at between steps, wherever
they are (``finding``). What has changed since the first step belongs to the state of the rank. What
never changes is left alone, since a joiner set it for itself: the name of its host, a path, a
process id.

The small state of what the session was given by name is looked at, too: a replica hands over its
own, and a normalizer or a replay memory may be each rank's.

Large tensors, the best weights so far say, are told of by a print (see ``values.large``).
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from types import FrameType, MappingProxyType
from typing import Any, Final

import torch
from torch import nn

from trainmover_executor.program.frames import (
    modules_of_program,
    program_frames,
    write_locals,
)
from trainmover_executor.program.holders.data import bare_of_data
from trainmover_executor.program.holders.names import Root
from trainmover_executor.program.liveness import deleted_names
from trainmover_executor.program.looking.finding import Finder
from trainmover_executor.program.looking.modules import Newcomers
from trainmover_executor.program.looking.parts import is_name, name_in
from trainmover_executor.program.looking.putting import Putting
from trainmover_executor.program.looking.shapes import Shape, made_later, members_in
from trainmover_executor.program.looking.still import StillModule
from trainmover_executor.program.values.compare import equal
from trainmover_executor.program.values.kinds.components import name_components
from trainmover_executor.program.values.kinds.records import one_look
from trainmover_executor.program.values.large import is_told_whole
from trainmover_executor.program.values.lasting import EXTRA, LastingValues
from trainmover_executor.program.values.plain import (
    NOWHERE,
    Shared,
    in_two_places,
    is_generator,
)
from trainmover_executor.program.values.trees import portable
from trainmover_executor.state.training import Stateful

__all__ = ["LoopVariables"]

_UNSEEN: Final = object()


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
        optimizers: The session's; what hooks keep is looked at, of models as well.
        lasting: Looks at what is large.
    """

    def __init__(
        self,
        known: Collection[object],
        *,
        extras: Mapping[str, Stateful] = MappingProxyType({}),
        models: Sequence[nn.Module] = (),
        optimizers: Sequence[torch.optim.Optimizer] = (),
        lasting: LastingValues | None = None,
    ) -> None:
        self.lasting = lasting or LastingValues()
        named = [(f"model[{at}]", model) for at, model in enumerate(models)]
        name_components([*named, *_modules_in(known)])
        self._finder = Finder(
            known,
            extras=extras,
            models=models,
            optimizers=optimizers,
            lasting=self.lasting,
            pass_over=self._pass_over,
        )
        self._first: dict[str, Any] | None = None
        self._changing: set[str] = set()
        self._kept: dict[str, Any] = {}
        self._holders: dict[str, Any] = {}
        self._bound: dict[str, Any] = {}
        self._met: dict[str, Any] = {}
        self.contents: dict[str, torch.Tensor] = {}
        self._passed_over: list[tuple[str, Any]] | None = None
        self._outgrown: set[str] = set()
        self._told_wholly = {""}
        self._settles = False
        self._explored: dict[str, Any] | None = None
        self._still: list[StillModule] = []
        self.newcomers = Newcomers()

    def ignore(self, data: object) -> None:
        """Steps are made of ``data``: what is large in it is no result of theirs."""
        self._finder.ignore(data)

    def settle(self) -> None:
        """Modules that have not changed by the next ``changed`` are compared only from then on.

        What shadow iterations made, and the program does not hold, is let go.
        """
        self._settles = True
        self._met.clear()
        self._finder.identities.let_go()

    def look_besides(self, roots: Callable[[], Iterable[Root]], *, known: Iterable[object]) -> None:
        """Look at what an adapter of a framework holds, too, which no frame of the program shows.

        Args:
            roots: Asked at each look for (path, names and values, how to set one).
            known: Objects that are not to be looked into.
        """
        self._finder.look_besides(roots, known=known)

    @one_look()
    def passed_over(self, frame: FrameType | None) -> list[tuple[str, Any]]:
        """(path, value) of what is needed on from ``frame`` and cannot be carried as a value.

        Loaders of steps are carried by themselves: a name may stand for another one in each round.
        """
        self._passed_over = []
        for _ in self._finder.all(frame):
            pass
        found, self._passed_over = self._passed_over, None
        return [(path, value) for path, value in found if not self._finder.is_data(value)]

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
        modules = modules_of_program() if self._settles else []
        met = [(id(each), StillModule(each)) for each in modules]
        now, _ = self._told(frame, asks=asks, votes=votes)
        if votes:
            self.lasting.note_changes(self._kept)
        if self._first is None:
            self._first = now
        for path, value in now.items():
            first = self._first.get(path, _UNSEEN)
            if path not in self._changing and (first is _UNSEEN or not equal(first, value)):
                self._changing.add(path)
                self._first[path] = None  # it may be large, and was all that it was kept for
                self._finder.open(members_in(path, value))
        self._tell_wholly(now)
        if met:
            self._settles = False
            self._finder.roots.leave_out(each for each in met if self._is_settled(each[1]))
        if not votes:
            self.contents = self.lasting.contents(self._changing)
        exported = self.lasting.exported
        return {path: exported(path, now[path]) for path in now if path in self._changing}

    def _tell_wholly(self, now: Mapping[str, Any]) -> None:
        """All that objects hold that were made since the first look: no joiner has them."""
        begins = {made_later(path, now[path]) for path in self._changing & now.keys()}
        if begins := begins - self._told_wholly:
            self._told_wholly |= begins
            inside = tuple(begins)
            self._changing.update(path for path in now if path.startswith(inside))

    def _is_settled(self, module: StillModule) -> bool:
        within = f"{module.name}."
        return module.is_simple and not any(path.startswith(within) for path in self._changing)

    @one_look()
    def explore(self, frame: FrameType | None, *, ends: bool) -> None:
        """Look deeper than usual, into objects of libraries: what changes there is looked at, too.

        Args:
            frame: The innermost frame to look at.
            ends: It is the last time for now.
        """
        found = self._finder.all(frame, everything=True, but_still=True, far=True)
        now = {one.path: self._tree(one.path, one.value, NOWHERE) for one in found}
        if self._explored is not None:
            before = self._explored
            self._finder.open(
                path for path in now if path not in before or not equal(before[path], now[path])
            )
        self._explored = None if ends else now

    def roots(self, frame: FrameType | None) -> frozenset[str]:
        """How the paths begin of all variables that can be seen from ``frame``."""
        return frozenset(root for root, _, _ in self._finder.roots.seen_from(frame, live=False))

    def note_generators(self, frame: FrameType | None) -> None:
        """Remember what cannot be made anew: a program may have made it in a shadow iteration.

        What it is held by is put back behind that, and the job may have one there.
        """
        for one in self._finder.all(frame, live=False, everything=True):
            if is_generator(one.value):
                self._met[one.path] = one.value

    def bind_deleted(self, frame: FrameType | None) -> None:
        """Have names stand for something that the program deletes before it reads them.

        What a step left in them is not carried, and at a standby no step may have set them.
        """
        for each in program_frames(frame):
            for name in deleted_names(each) - each.f_locals.keys():
                write_locals(each, {name: None})

    def load(
        self,
        values: Mapping[str, Any],
        frame: FrameType | None,
        *,
        contents: Mapping[str, torch.Tensor] = MappingProxyType({}),
        borrowed: Collection[int] = (),
    ) -> list[str]:
        """Take over what ``changed`` returned at another process.

        Args:
            values: By path.
            frame: The innermost frame, at the same place of the program.
            contents: That process's, as far as they came.
            borrowed: Ids of tensors and arrays that belong to a loader: names get others.

        Returns:
            Paths that do not exist here, or that hold what did not come.
        """
        self._changing.update(values)
        for path, tree in values.items():
            if path.startswith(EXTRA) and is_told_whole(tree):
                self.lasting.know_own(path)
        self._finder.open(values)
        return self._put(values, frame, contents=contents, borrowed=borrowed)

    def keep(self, frame: FrameType | None, *, whole: bool = False) -> None:
        """Remember all values, for a step that may be done again.

        Args:
            frame: The innermost frame to look at.
            whole: Copy all that is large; else what bodies were seen to change in place.
        """
        self._passed_over = []
        kept, self._holders = self._told(frame, everything=whole)
        self._kept = {path: kept[path] for path in kept if not self._is_kept_apart(path)}
        bound = {path: value for path, value in self._passed_over if is_name(path)}
        self._bound = {path: bare_of_data(value) for path, value in bound.items()}
        self._passed_over = None
        self._still = [*self._finder.roots.left_out]
        self.lasting.keep(self._kept, whole=whole)

    def _is_kept_apart(self, path: str) -> bool:
        """Whether it is large and of what the session was given: see ``StepStart``."""
        if not path.startswith(EXTRA):
            return False
        return self.lasting.tree(path, self._holders[path]) is not None

    def note_changes(self) -> None:
        """What was changed in place since the last ``keep`` is copied by the next ones."""
        self.lasting.note_changes(self._kept)

    @one_look()
    def _told(
        self,
        frame: FrameType | None,
        *,
        asks: bool = False,
        votes: bool = False,
        everything: bool = False,
    ) -> tuple[dict[str, Any], dict[str, Any]]:
        """All variables as portable trees, and as they are, by path."""
        everything = asks or everything
        found = self._finder.all(frame, everything=everything, but_still=True, votes=votes)
        held = {one.path: one.value for one in found}
        self._finder.identities.end_first_look()
        self.lasting.end(asks=asks)
        shared = in_two_places(held.items())
        return {path: self._tree(path, value, shared) for path, value in held.items()}, held

    def _tree(self, path: str, value: Any, shared: Shared) -> Any:
        if isinstance(value, Shape):
            return value.tree()
        large = self.lasting.tree(path, value)
        return portable(value, shared) if large is None else large

    def put_back(self, frame: FrameType | None) -> None:
        """Have all variables hold what they held at the last ``keep``.

        In the same objects: a name may stand for another one by now, the batch of the step.
        """
        for module in self._still:
            module.put_back()
        for root, names, put in self._finder.roots.seen_from(frame, live=False):
            for path, value in self._bound.items():
                name = name_in(root, path)
                if name and names.get(name) is not value:
                    put(name, value)  # not carried, but it is still here
        self._put(self._kept, frame, holders=self._holders)

    def put(self, values: Mapping[str, Any], frame: FrameType | None) -> None:
        """Have variables hold what ``kept`` said at another time."""
        self._put(values, frame)

    @property
    def kept(self) -> dict[str, Any]:
        """What the last ``keep`` remembered."""
        return self._kept

    @one_look()
    def _put(
        self,
        values: Mapping[str, Any],
        frame: FrameType | None,
        *,
        holders: Mapping[str, Any] | None = None,
        contents: Mapping[str, torch.Tensor] = MappingProxyType({}),
        borrowed: Collection[int] = (),
    ) -> list[str]:
        putting = Putting(
            self._finder,
            frame,
            tree_of=self._tree,
            held={} if holders is None else holders,
            met=self._met,
            contents=contents,
            borrowed=borrowed,
        )
        return putting.put(values)

    def _pass_over(self, path: str, value: Any) -> None:
        self.lasting.passing.passes_over(path, value)
        if path not in self._outgrown and self.was_plain(path):
            self._outgrown.add(path)
        self.newcomers.meet(value)
        if self._passed_over is not None:
            self._passed_over.append((path, value))


def _modules_in(known: Iterable[object]) -> list[tuple[str, nn.Module]]:
    """Models that the session got by another name, a teacher say."""
    return [(f"given[{at}]", each) for at, each in enumerate(known) if isinstance(each, nn.Module)]
