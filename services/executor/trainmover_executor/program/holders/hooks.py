"""Hooks that the program registered with what the session has: modules, parameters, optimizers.

A hook may count, average or clip by what it saw before, and keep that in a closure or in an object
that nothing else of the program names. Hooks of torch, of other packages and of this one are not
looked into.
"""

from __future__ import annotations

import functools
import inspect
import operator
import sys
import types
from collections.abc import Iterator, Mapping, Sequence
from itertools import chain, compress
from typing import Any, Final

import torch
from torch import nn
from torch.nn.modules.module import _WrappedHook
from torch.utils.hooks import RemovableHandle

from trainmover_executor.program.frames import is_of_script

__all__ = ["Hooks", "Registered"]

_OF_MODULES: Final = (
    *("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks"),
    *("_state_dict_hooks", "_state_dict_pre_hooks"),
    *("_load_state_dict_pre_hooks", "_load_state_dict_post_hooks"),
)
_OF_PARAMETERS: Final = ("_backward_hooks", "_post_accumulate_grad_hooks")
_OF_OPTIMIZERS: Final = (
    *("_optimizer_step_pre_hooks", "_optimizer_step_post_hooks"),
    *("_optimizer_state_dict_pre_hooks", "_optimizer_state_dict_post_hooks"),
    *("_optimizer_load_state_dict_pre_hooks", "_optimizer_load_state_dict_post_hooks"),
)
_MODULE: Final = "torch.nn.modules.module"
_OPTIMIZER: Final = "torch.optim.optimizer"
_OF_ALL: Final = (
    *((_MODULE, "_global_forward_hooks"), (_MODULE, "_global_forward_pre_hooks")),
    *((_MODULE, "_global_backward_hooks"), (_MODULE, "_global_backward_pre_hooks")),
    (_OPTIMIZER, "_global_optimizer_pre_hooks"),
    (_OPTIMIZER, "_global_optimizer_post_hooks"),
)
"""Modules of torch, and how they name hooks of all modules or of all optimizers."""
_Table = Mapping[int, Any]
"""Hooks by a number that torch gave, in the order in which they are called."""


class Registered:
    """Which hooks of the program there are; a joiner has those that its own program registered.

    Attributes:
        names: Of each the place, and of its function or class.
    """

    def __init__(self, hooks: Sequence[tuple[str, Any]]) -> None:
        self.names = [(path, _name_of(hook)) for path, hook in hooks]


class Hooks:
    """Finds them. Where none was registered or removed since the last look, that costs little.

    Args:
        models: The session's.
        optimizers: The session's.
    """

    def __init__(
        self, models: Sequence[nn.Module], optimizers: Sequence[torch.optim.Optimizer]
    ) -> None:
        self._models = [
            _HooksOfModel(model, f"session.model[{at}]") for at, model in enumerate(models)
        ]
        self._optimizers = [
            (f"session.optimizer[{at}]", each) for at, each in enumerate(optimizers)
        ]
        self._registered = -1
        self._tables: list[_Table] = []
        self._lengths: list[int] = []
        self._found: list[tuple[str, Any]] = []

    def found(self, *, closely: bool) -> list[tuple[str, Any]]:
        """(path, hook) of each hook of the program.

        Args:
            closely: Also those that came with a module which had them before.
        """
        registered = RemovableHandle.next_id  # torch counts all that anybody registers
        is_still = registered == self._registered and [*map(len, self._tables)] == self._lengths
        if closely or not is_still:
            same = [each.is_still() for each in self._models]  # each of them is asked
            is_still = is_still and all(same)
        if not is_still:
            tables = [*self._registered_now()]
            self._registered = registered
            self._tables = [table for _, table in tables]
            self._lengths = [*map(len, self._tables)]
            self._found = [each for path, table in tables for each in _hooks_in(table, path)]
        return self._found

    def _registered_now(self) -> Iterator[tuple[str, _Table]]:
        """Places where hooks are registered, with those that are."""
        for of, name in _OF_ALL:
            if table := vars(sys.modules[of]).get(name):
                yield f"{of}.{name}", table
        for model in self._models:
            yield from model.tables()
        for path, optimizer in self._optimizers:
            held = vars(optimizer)
            for name in _OF_OPTIMIZERS:
                if table := held.get(name):
                    yield f"{path}.{name}", table


def _hooks_in(table: _Table, path: str) -> list[tuple[str, Any]]:
    mine = [each for each in map(_bare, [*table.values()]) if _is_of_program(each)]
    return [(f"{path}[{at}]", hook) for at, hook in enumerate(mine)]


class _HooksOfModel:
    """Where hooks are registered in a model: noted once, and anew when modules come or go.

    Args:
        model: The model; whoever has this has the model, too.
        path: Of it.
    """

    def __init__(self, model: nn.Module, path: str) -> None:
        self._model = model
        self._path = path
        self._inside: list[dict[str, nn.Module | None]] = []
        self._counts: list[int] = []
        self._holders: list[dict[str, nn.Module | None]] = []
        self._modules: list[nn.Module | None] = []
        self._places: list[tuple[str, _Table]] = []
        self._tables: list[_Table] = []
        self._parameters: list[tuple[str, dict[str, nn.Parameter | None]]] = []
        self._enter()

    def is_still(self) -> bool:
        """Whether it has the same modules as when this was asked last."""
        if [*map(len, self._inside)] == self._counts:
            now = chain.from_iterable(map(dict.values, self._holders))
            if all(map(operator.is_, now, self._modules)):
                return True
        self._enter()
        return False

    def tables(self) -> Iterator[tuple[str, _Table]]:
        """Places where hooks are registered, with those that are."""
        yield from compress(self._places, self._tables)
        for path, held in self._parameters:
            for name, each in held.items():
                if each is not None and (
                    each._backward_hooks or each._post_accumulate_grad_hooks  # noqa: SLF001
                ):
                    for of in _OF_PARAMETERS:
                        if table := getattr(each, of):
                            yield f"{path}.{name}.{of}", table

    def _enter(self) -> None:
        named = [
            (f"{self._path}.{name}".removesuffix("."), module)
            for name, module in self._model.named_modules()
        ]
        self._inside = [module._modules for _, module in named]  # noqa: SLF001 - as in _places
        self._counts = [*map(len, self._inside)]
        self._holders = [each for each in self._inside if each]
        self._modules = [*chain.from_iterable(map(dict.values, self._holders))]
        self._places = [
            (f"{path}.{of}", vars(module)[of])
            for path, module in named
            for of in _OF_MODULES
            if of in vars(module)
        ]
        self._tables = [table for _, table in self._places]
        held = [(path, module._parameters) for path, module in named]  # noqa: SLF001 - as above
        self._parameters = [(path, each) for path, each in held if each]


def _bare(hook: Any) -> Any:
    """Without what torch put around it, ``torch.no_grad()`` as a decorator say."""
    return inspect.unwrap(hook.hook if isinstance(hook, _WrappedHook) else hook)


def _is_of_program(hook: Any) -> bool:
    """Whether a function or an object that can be called is the script's, or holds what is."""
    if isinstance(hook, functools.partial):
        return any(map(_is_of_program, (hook.func, *hook.args, *hook.keywords.values())))
    if isinstance(hook, types.MethodType):
        return _is_of_program(hook.__self__)
    if isinstance(hook, types.FunctionType):
        return is_of_script(hook.__globals__.get("__name__", ""))
    return is_of_script((hook if isinstance(hook, type) else type(hook)).__module__)


def _name_of(hook: Any) -> str:
    return getattr(hook, "__qualname__", type(hook).__qualname__)
