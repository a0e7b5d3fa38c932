"""Where the variables of the training loop are.

Looked at are the local variables of the running functions of the program, the globals of their
modules, attributes of the program's own objects and classes that these hold, what its functions
close over, and what the session's models change of themselves besides tensors.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from types import FrameType, FunctionType, GeneratorType
from typing import Any, Final

import torch
from torch import nn
from torch.optim.lr_scheduler import LRScheduler
from torch.utils.data import DataLoader, Dataset, Sampler

from trainmover_executor.program.holders.data import (
    DataSets,
    OfOthers,
    held_by_data,
    is_large,
    is_resumed,
)
from trainmover_executor.program.holders.hooks import Hooks, Registered
from trainmover_executor.program.holders.identities import Identities
from trainmover_executor.program.holders.names import Root, Roots
from trainmover_executor.program.looking.modules import attributes_of, hooks_of, look_at
from trainmover_executor.program.looking.parts import (
    MOST_MEMBERS,
    NO_PATHS,
    SCALARS,
    Paths,
    Seen,
    is_looked_into,
    is_made_by_script,
    is_mere_code,
    is_passed_over,
    members_of,
    nowhere,
    parts_of,
    wraps,
)
from trainmover_executor.program.looking.shapes import (
    Kind,
    Members,
    Suspended,
    entries_of,
    has_kind,
)
from trainmover_executor.program.values.kinds.components import key_text
from trainmover_executor.program.values.kinds.derived import base_of
from trainmover_executor.program.values.kinds.named import CODE, is_named
from trainmover_executor.program.values.large import print_of_state, signature_of
from trainmover_executor.program.values.lasting import EXTRA, MODULE, LastingValues
from trainmover_executor.program.values.plain import (
    CONTAINERS,
    is_changeable,
    is_generator,
    is_plain,
)
from trainmover_executor.state.optimizers.settings import load_settings, settings_of
from trainmover_executor.state.packing.memory import without_history
from trainmover_executor.state.training import Stateful

__all__ = ["Finder", "Root", "Untold", "Variable"]

_DEPTH: Final = 64
_STEP: Final = 8
_STEP_IN_LIBRARIES: Final = 24
"""Objects of installed packages, a framework's trainer say, are large, and mostly no state."""
_OF_VALUES: Final = frozenset({"omegaconf"})
"""Packages whose objects hold values of the program, some layers deep: as good as containers."""
_STEP_OF_A_WRAPPER: Final = 1
"""From an object to one of its own kind that it wraps: an environment in several others, say."""
_MOST_OBJECTS: Final = 4096
"""So many objects, so deep, are looked into at each look."""
_FAR: Final = 4
"""So many times as deep, and as many objects, where one looks far."""
_OF_MODEL: Final = "session.model["
_HOOKS: Final = "session.hooks"
"""How the log names which hooks there are."""
_UNCHANGEABLE: Final = (int, float, str, bytes, tuple)
"""What a class of the program's own may be derived from, and be more than its attributes."""


@dataclass(frozen=True, slots=True)
class Variable:
    """One variable: where it is, and what it holds.

    Attributes:
        path: Its name for people and for the joiner: ``main.global_step``, ``train.meter.sum``.
        value: What it holds.
        put: Has it hold something else.
    """

    path: str
    value: Any
    put: Callable[[Any], None]


class Untold:
    """What the session was given by name, whose state cannot be carried as a variable.

    Attributes:
        of: It.
    """

    __slots__ = ("of",)

    def __init__(self, of: Stateful) -> None:
        self.of = of


class Finder:
    """Goes through the program's variables.

    Args:
        known: Objects that the session carries already.
        extras: Those among them whose small state may differ from rank to rank, by name.
        models: The session's.
        optimizers: The session's.
        lasting: Says which large values are variables, too.
        pass_over: Told (path, value) of what cannot be carried as a value.

    Attributes:
        roots: Where variables live.
        identities: Which objects names stand for.
    """

    def __init__(
        self,
        known: Collection[object],
        *,
        extras: Mapping[str, Stateful],
        models: Sequence[nn.Module],
        optimizers: Sequence[torch.optim.Optimizer],
        lasting: LastingValues,
        pass_over: Callable[[str, Any], None],
    ) -> None:
        self._known = {id(each) for each in known}
        self._data: dict[int, object] = {}
        self._extras = extras
        self._models = models
        self._hooks = Hooks(models, optimizers)
        self._schedulers = [each for each in known if isinstance(each, LRScheduler)]
        self._lasting = lasting
        self._pass_over = pass_over
        self._in_module = self._in_data = False
        self._data_sets = DataSets()
        self._times = 1
        self._opened: set[str] = set()
        self._ways = NO_PATHS
        self.roots = Roots()
        self.identities = Identities()

    def open(self, paths: Iterable[str]) -> None:
        """Look at these variables however deep they are."""
        if not self._opened.issuperset(paths := set(paths)):
            self._opened |= paths
            self._ways = Paths(self._opened)
            of_models = (path for path in paths if path.startswith(_OF_MODEL))
            look_at(path.rpartition(".")[2] for path in of_models)

    def ignore(self, data: object) -> None:
        """Steps are made of ``data``: what is large in it is no result of theirs."""
        self._data[id(data)] = data
        if not is_looked_into(data):
            self._known.add(id(data))

    def is_data(self, value: object) -> bool:
        """Whether steps are made of ``value``."""
        return id(value) in self._data

    def look_besides(self, roots: Callable[[], Iterable[Root]], *, known: Iterable[object]) -> None:
        """See ``LoopVariables``."""
        self.roots.besides = roots
        self._known.update(map(id, known))

    def all(
        self,
        frame: FrameType | None,
        *,
        live: bool = True,
        everything: bool = False,
        paths: Paths = NO_PATHS,
        but_still: bool = False,
        far: bool = False,
        votes: bool = False,
    ) -> Iterator[Variable]:
        """Every variable that holds a plain value.

        Args:
            frame: The innermost frame.
            live: Only those still needed.
            everything: What is large, too.
            paths: By these all are found, whatever other names an object has.
            but_still: But those of modules that hold what they held at first.
            far: Look deeper, which takes longer.
            votes: In front of what cannot be taken back: what code behind reads, too.
        """
        self._times = _FAR if far else 1
        self._data_sets.begin()
        read = self.roots.read_from(frame) if votes else frozenset()
        self._lasting.begin(everything=everything, read=read)
        seen = Seen(self._known, paths=paths)
        if but_still:
            self.roots.left_out.clear()
        leave_out = seen.leave_out if but_still else None
        for root, holder, put in self.roots.seen_from(frame, live=live, leave_out=leave_out):
            for name, value in holder.copy().items():
                if not name.startswith("__"):
                    yield from self._visit(value, f"{root}.{name}", partial(put, name), seen, 0)
        for at, model in enumerate(self._models):
            yield from self._visit_module(model, f"{_OF_MODEL}{at}]", seen)
        yield from self._visit_hooks(seen, closely=everything)
        for name, extra in self._extras.items():
            path = f"{EXTRA}{name}"
            if not self._lasting.is_left(path):
                yield from self._visit_extra(extra, path)
        yield from self._visit_data(seen)

    def _visit_extra(self, value: Stateful, path: str) -> Iterator[Variable]:
        if isinstance(value, nn.Module):
            versions = sum(each._version for each in value.parameters())  # noqa: SLF001
            yield Variable(path, f"{MODULE}{versions}", nowhere)
            return
        state = without_history(value.state_dict())
        if is_plain(state) or self._lasting.admits(path, state):
            yield Variable(path, state, value.load_state_dict)
        elif signature_of(state) is None:  # large, and of other kinds: only told apart
            yield Variable(path, print_of_state(state), nowhere)
        else:
            self._pass_over(path, Untold(value))

    def _visit(
        self, value: Any, path: str, put: Callable[[Any], None], seen: Seen, depth: int
    ) -> Iterator[Variable]:
        kind = type(value)
        if isinstance(value, Dataset) and not (self._in_data or id(value) in self._data):
            self._data_sets.meet(value, path, put, depth, by_name=True)
            return
        if self._in_data and is_generator(value):
            return  # the feed sets it to where the pass has it
        if isinstance(value, CODE):
            yield from self._visit_name(value, path, put)
        if is_mere_code(value):
            return
        if is_passed_over(kind):  # type: ignore[arg-type] # classes are hashable
            yield from self._visit_known(value, path, seen)
            return
        known, is_deep = seen.has(value, path), self._is_deep(path, depth, seen)
        may_last = not (is_deep or known or self._in_module or self._in_data)
        small = kind in SCALARS or (not (self._in_data and is_large(value)) and is_plain(value))
        if small or (may_last and self._lasting.admits(path, value)):
            yield Variable(path, value, put)
            return
        if known and not is_deep and has_kind(value):
            yield self._kind(value, path, put)  # by another name
        if known or is_deep:
            return
        seen.add(id(value))
        if self._is_one_too_many(path, seen):
            self._pass_over(path, value)
        else:
            yield from self._visit_inside(value, path, put, seen, depth)

    def _is_one_too_many(self, path: str, seen: Seen) -> bool:
        """Whether as many objects in the data were looked into before as may be."""
        if not (self._in_data and self._data_sets.is_one_too_many(times=self._times)):
            return False
        return not (self._ways.lead_to(path) or seen.seeks(path))

    def _visit_data(self, seen: Seen) -> Iterator[Variable]:
        """What is in data sets, and makes batches of their items: examples are no state."""
        for met in self._data_sets.met():
            yield from self._visit_member(met.value, met.path, met.put, seen, met.depth, data=True)

    def _visit_member(
        self,
        value: Any,
        path: str,
        put: Callable[[Any], None],
        seen: Seen,
        depth: int,
        *,
        data: bool,
    ) -> Iterator[Variable]:
        """As ``_visit``, as a part of the data, or as one of any other variable."""
        outside, self._in_data = self._in_data, data
        try:
            yield from self._visit(value, path, put, seen, depth)
        finally:
            self._in_data = outside

    def _is_deep(self, path: str, depth: int, seen: Seen) -> bool:
        times = self._times
        if depth < times * _DEPTH and len(seen) <= times * _MOST_OBJECTS:
            return False
        return not (self._ways.lead_to(path) or seen.seeks(path))

    def _visit_inside(
        self, value: Any, path: str, put: Callable[[Any], None], seen: Seen, depth: int
    ) -> Iterator[Variable]:
        kind = type(value)
        parts = parts_of(value, is_loader=id(value) in self._data)
        if parts is None and isinstance(value, Dataset):
            parts = [(name, held, nowhere) for name, held in held_by_data(value)]
        mine = is_made_by_script(value if isinstance(value, type) else kind)
        holds = kind in CONTAINERS or (base_of(kind) is not None and parts is not None)
        if holds and len(value) <= MOST_MEMBERS:
            yield from self._visit_items(value, path, put, seen, depth)
        elif self._in_data and not (holds or mine or isinstance(value, CODE)):
            self._pass_over(path, OfOthers(value))
        elif holds or parts is None or isinstance(value, _UNCHANGEABLE):
            self._pass_over(path, value)
        if parts is None:
            return
        if has_kind(value):
            yield self._kind(value, path, put)
            path = self.identities.path_inside(value, path)
            if not seen.enters(path):
                return
        if kind is GeneratorType:
            yield Variable(f"{path}{Suspended.MARK}", Suspended(value), put)
        is_near = mine or kind.__module__.partition(".")[0] in _OF_VALUES
        step = _STEP if is_near else _STEP_IN_LIBRARIES
        met = self._data_sets.now
        has_name = met is not None and met.by_name and met.value is value
        for name, member, setter in parts:
            is_wrapped = wraps(kind, type(member))  # type: ignore[arg-type] # as above
            deeper = depth + (_STEP_OF_A_WRAPPER if is_wrapped else step)
            # Lists of a data set are looked at like others where a variable leads to it.
            data = self._in_data and not (has_name and type(member) in CONTAINERS)
            where = f"{path}.{name}"
            yield from self._visit_member(member, where, setter, seen, deeper, data=data)

    def _kind(self, value: Any, path: str, put: Callable[[Any], None]) -> Variable:
        name = self.identities.name_of(value, path)
        kind = Kind(value, name=name, inside=self.identities.path_inside(value, path))
        return Variable(f"{path}{Kind.MARK}", kind, put)

    def _visit_known(self, value: Any, path: str, seen: Seen) -> Iterator[Variable]:
        """What the session or the data sees to, and the program may change besides."""
        if isinstance(value, LRScheduler) and not seen.has(value, path):
            seen.add(id(value))
            yield from self._visit_lambdas(value, path, seen)
            yield from self._visit_scheduled(value.optimizer, f"{path}.optimizer")
            if is_plain(state := value.state_dict()):  # it may have been made in the middle
                yield Variable(path, state, value.load_state_dict)
                return
        self._pass_over(path, value)
        if isinstance(value, nn.Module):
            yield from self._visit_module(value, path, seen)
            return
        if isinstance(value, DataLoader) and not is_resumed(value.dataset):
            self._data_sets.meet_in(value, path, partial(setattr, value), _STEP)
        if hasattr(value, "state_dict"):  # a loader or a sampler that is resumed by that
            return
        if isinstance(value, DataLoader):
            batches = value.batch_sampler
            sampler = value.sampler if batches is None else batches  # one may have no length
            yield from self._visit_sampler(sampler, f"{path}.sampler", seen)
        elif isinstance(value, Sampler):
            yield from self._visit_sampler(value, path, seen)

    def _visit_sampler(self, value: Any, path: str, seen: Seen) -> Iterator[Variable]:
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
            elif is_plain(member) or self._lasting.admits(where, member):
                yield Variable(where, member, put)

    def _visit_name(self, value: Any, path: str, put: Callable[[Any], None]) -> Iterator[Variable]:
        """A name that may stand for another function later: a loss, an activation."""
        if path.rpartition(".")[2] == value.__name__:
            return
        if is_named(value):
            yield Variable(path, value, put)
        else:
            self._pass_over(path, value)

    def _visit_module(self, module: nn.Module, path: str, seen: Seen) -> Iterator[Variable]:
        if seen.has(module, path):
            return
        seen.add(id(module))
        for name, value, put in attributes_of(module):
            yield from self._visit_attribute(value, f"{path}.{name}", put, seen)
        for name, value in hooks_of(module):
            yield from self._visit(value, f"{path}.{name}", nowhere, seen, 0)

    def _visit_hooks(self, seen: Seen, *, closely: bool) -> Iterator[Variable]:
        """What hooks keep that the program registered with models and optimizers of the session."""
        hooks = self._hooks.found(closely=closely)
        if self._models:
            self._pass_over(_HOOKS, Registered(hooks))
        for path, hook in hooks:
            yield from self._visit_called(hook, path, seen)
        for at, scheduler in enumerate(self._schedulers):
            yield from self._visit_lambdas(scheduler, f"session.scheduler[{at}]", seen)

    def _visit_scheduled(self, optimizer: Any, path: str) -> Iterator[Variable]:
        """What a schedule sets of an optimizer that nobody steps: the rate of something else."""
        if id(optimizer) in self._known or not isinstance(optimizer, torch.optim.Optimizer):
            return
        if is_plain(settings := settings_of(optimizer)):
            yield Variable(path, settings, partial(load_settings, optimizer))

    def _visit_lambdas(self, scheduler: LRScheduler, path: str, seen: Seen) -> Iterator[Variable]:
        """What functions keep that give a learning rate; objects are in its ``state_dict``."""
        for at, each in enumerate(getattr(scheduler, "lr_lambdas", ())):
            if isinstance(each, FunctionType):
                yield from self._visit_called(each, f"{path}.lr_lambdas[{at}]", seen)

    def _visit_called(self, hook: Any, path: str, seen: Seen) -> Iterator[Variable]:
        """What a function or an object keeps that is called from a place of its own."""
        if not isinstance(hook, FunctionType):
            yield from self._visit(hook, path, nowhere, seen, 0)
        elif not (is_mere_code(hook, objects=True) or seen.has(hook, path)):
            seen.add(id(hook))
            yield from self._visit_inside(hook, path, nowhere, seen, 0)

    def _visit_attribute(
        self, value: Any, path: str, put: Callable[[Any], None], seen: Seen
    ) -> Iterator[Variable]:
        """Of a module: what is large there is mostly made anew by each step, an activation say."""
        if isinstance(value, torch.Tensor) and not is_plain(value):
            self._pass_over(path, value)
            return
        outside, self._in_module = self._in_module, True
        try:
            yield from self._visit(value, path, put, seen, _STEP)
        finally:
            self._in_module = outside

    def _visit_items(
        self, value: Any, path: str, put: Callable[[Any], None], seen: Seen, depth: int
    ) -> Iterator[Variable]:
        if not isinstance(value, tuple | set | frozenset):
            yield Variable(f"{path}{Members.MARK}", Members(value), put)
        for key, member in entries_of(value):
            if isinstance(value, tuple):
                if is_plain(member) and not is_changeable(type(member)):
                    continue  # a tuple cannot be written
                write: Callable[[Any], None] = nowhere
            else:
                write = partial((base_of(type(value)) or type(value)).__setitem__, value, key)
            yield from self._visit(member, f"{path}[{key_text(key)}]", write, seen, depth + _STEP)
