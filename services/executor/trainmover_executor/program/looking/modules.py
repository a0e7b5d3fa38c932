"""What the program's own modules keep as attributes, and change while they run.

A layer counts what it routes, or cools a temperature in ``forward``; a model keeps its meters, or a
random generator; a script sets the stage that its model is in. Such values are no buffers: no
``state_dict`` has them, and each rank has its own.
"""

from __future__ import annotations

import dis
import sys
import types
from collections.abc import Iterable, Iterator
from functools import lru_cache, partial
from typing import Final
from weakref import WeakKeyDictionary, ref

import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from trainmover_executor.program.frames import modules_of_program, program_frames
from trainmover_executor.program.looking.parts import (
    Part,
    cells_of,
    is_made_by_script,
    is_own,
    is_passed_over,
)
from trainmover_executor.program.values.plain import is_changeable

__all__ = ["Newcomers", "attributes_of", "hooks_of", "look_at", "names_of"]

_INTERNAL: Final = frozenset(vars(nn.Module()))
_seen_to_change: set[str] = set()
_Places = list[tuple[str, ref[nn.Module], str]]
_known: WeakKeyDictionary[nn.Module, tuple[int, _Places]] = WeakKeyDictionary()


def attributes_of(module: nn.Module) -> Iterator[Part]:
    """(path, value, how to set it) of what ``module`` and those in it may change of themselves."""
    for path, place, name in _places(module):
        holder = place()
        if holder is not None and hasattr(holder, name):
            yield path, getattr(holder, name), partial(setattr, holder, name)


def names_of(module: nn.Module) -> frozenset[tuple[int, str]]:
    """(id of a module, name) of all that ``attributes_of`` looks at."""
    return frozenset((id(place()), name) for _, place, name in _places(module))


def hooks_of(module: nn.Module) -> Iterator[tuple[str, object]]:
    """(path, value) of the communication hooks that DDP was given, and of what they keep.

    A hook that compresses gradients keeps what it left out, and nothing but DDP refers to that.
    """
    if isinstance(module, DistributedDataParallel):
        for at, (hook, state) in enumerate(module._comm_hooks):  # noqa: SLF001 - no public name
            yield f"_comm_hooks[{at}].hook", hook
            yield f"_comm_hooks[{at}].state", state


def _places(module: nn.Module) -> _Places:
    """Looked for once, and anew when modules come or go at the top."""
    size = len(module._modules) + len(_seen_to_change)  # noqa: SLF001 - children() makes up names
    known = _known.get(module)
    if known is None or known[0] != size:
        # Weak places: a program that copies its model each epoch lets go of the copies, too.
        places = [(path, ref(holder), name) for path, holder, name in _find(module)]
        known = _known[module] = (size, places)
    return known[1]


def _find(module: nn.Module) -> Iterator[tuple[str, nn.Module, str]]:
    by_program = _stored_by_program()
    for path, each in module.named_modules():
        if not is_own(type(each)):  # type: ignore[arg-type] # classes are hashable
            continue
        stored = _stored(type(each)) | by_program | _seen_to_change  # type: ignore[arg-type]
        for name, value in vars(each).items():
            is_looked_at = name in stored or _holds_state(type(value)) or _hides_module(value)
            if name not in _INTERNAL and is_looked_at:
                yield f"{path}.{name}".removeprefix("."), each, name


def look_at(names: Iterable[str]) -> None:
    """Look at attributes of modules that have these names, whoever sets them: some do change."""
    _seen_to_change.update(names)


def _hides_module(value: object) -> bool:
    """Whether it leads to a module that is none of its holder's: a teacher in a tuple, say."""
    if isinstance(value, types.FunctionType):
        value = tuple(cell.cell_contents for cell in cells_of(value).values())
    held = value if isinstance(value, tuple) else (value,)
    return any(isinstance(each, nn.Module) for each in held)


def _holds_state(kind: type[object]) -> bool:
    """Whether what is of a class may change without being assigned anew."""
    if is_changeable(kind):
        return True
    if is_passed_over(kind):  # type: ignore[arg-type] # as above
        return False
    is_object = kind.__dictoffset__ != 0 and is_own(kind)  # type: ignore[arg-type] # as above
    return is_object or is_made_by_script(kind)


@lru_cache(maxsize=4096)
def _stored(kind: type[object]) -> frozenset[str]:
    """Names of attributes that methods of a class set, those that make an object apart."""
    methods = [each for kinds in kind.__mro__ if is_own(kinds) for each in vars(kinds).values()]
    functions = [each for each in methods if isinstance(each, types.FunctionType)]
    return frozenset().union(*(_stored_by(each.__code__) for each in functions))


def _stored_by_program() -> frozenset[str]:
    """Names of attributes that the script and the modules that it brought along set."""
    frames = program_frames(sys._getframe())  # noqa: SLF001 - the documented way
    return _stored_in(tuple(each.f_code for each in frames), len(sys.modules))


@lru_cache(maxsize=256)
def _stored_in(running: tuple[types.CodeType, ...], count: int) -> frozenset[str]:
    """The same where ``running`` is under way; asked anew where modules were imported."""
    del count
    found = frozenset[str]().union(*map(_stored_by, running))
    for names in modules_of_program():
        for value in names.copy().values():
            if isinstance(value, types.FunctionType):
                found |= _stored_by(value.__code__)
            elif isinstance(value, type) and is_own(value):
                found |= _stored(value)
    return found


@lru_cache(maxsize=4096)
def _stored_by(code: types.CodeType) -> frozenset[str]:
    if code.co_name == "__init__":
        return frozenset()
    own = {each.argval for each in dis.get_instructions(code) if each.opname == "STORE_ATTR"}
    inside = [each for each in code.co_consts if isinstance(each, types.CodeType)]
    return frozenset(own).union(*map(_stored_by, inside))


class Newcomers:
    """Modules and optimizers that were met among the variables of a program.

    Attributes:
        count: How many; of modules, those that have tensors.
    """

    def __init__(self) -> None:
        self._met: set[int] = set()
        self.count = 0

    def meet(self, value: object) -> None:
        """``value`` is passed over: the session may know it, or not."""
        if isinstance(value, nn.Module | torch.optim.Optimizer) and id(value) not in self._met:
            self._met.add(id(value))
            is_bare = isinstance(value, nn.Module) and next(_tensors_of(value), None) is None
            self.count += not is_bare


def _tensors_of(module: nn.Module) -> Iterator[torch.Tensor]:
    yield from module.parameters()
    yield from module.buffers()
