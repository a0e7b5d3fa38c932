"""What callbacks and the LightningModule keep in attributes, as portable trees by path."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, Final

import structlog
import torch
from lightning.pytorch import Callback, LightningModule
from lightning.pytorch.callbacks import ProgressBar
from torch import nn

from trainmover.errors import ConfigError
from trainmover_executor.program.looking.modules import attributes_of
from trainmover_executor.program.looking.parts import Part, is_own, nowhere, parts_of
from trainmover_executor.program.values.plain import is_plain
from trainmover_executor.program.values.restored import restored
from trainmover_executor.program.values.trees import portable

__all__ = ["Holdings"]

log = structlog.get_logger(__name__)

_DEPTH: Final = 4
_LEFT_OUT: Final = frozenset({"_last_time_checked", "lrs"})
"""Of Lightning's callbacks: a clock, and a record that grows and that nobody reads."""
_LIGHTNINGS: Final = frozenset({*vars(LightningModule()), "_current_fx_name"})


class Holdings:
    """Attributes that change while a job is trained.

    Args:
        module: The LightningModule.
        callbacks: The trainer's. Progress bars are left out: each process has its own.
        optimizers: Likewise.
    """

    def __init__(
        self,
        module: LightningModule,
        callbacks: list[Callback],
        optimizers: list[torch.optim.Optimizer],
    ) -> None:
        self._module = module
        self._callbacks = [each for each in callbacks if not isinstance(each, ProgressBar)]
        self._optimizers = optimizers
        self._carried: set[str] = set()
        self._seen: dict[str, tuple[int, int]] = {}

    def tree(self) -> dict[str, Any]:
        """All of them.

        Raises:
            ConfigError: A callback keeps what cannot be carried.
        """
        tree = {path: portable(value) for path, value, _ in self._parts() if is_plain(value)}
        self._carried |= tree.keys()
        return tree

    def load(self, tree: dict[str, Any]) -> None:
        """Have them be what ``tree`` returned here or elsewhere."""
        here = {path: (value, put) for path, value, put in self._parts()}
        for path, value in tree.items():
            like, put = here.get(path, (None, self._setter(path)))
            put(restored(value, like))

    def _setter(self, path: str) -> Callable[[Any], None]:
        """Sets an attribute that this process has not had so far."""
        where, _, name = path.rpartition(".")
        for at, callback in enumerate(self._callbacks):
            if where == _name(at, callback):
                return lambda value: setattr(callback, name, value)
        if where == "module":
            return lambda value: setattr(self._module, name, value)
        return nowhere  # of an object that does not exist here yet

    def _parts(self) -> Iterator[Part]:
        seen: set[int] = {id(self._module)}
        for at, callback in enumerate(self._callbacks):
            yield from self._of_callback(callback, _name(at, callback), seen, 0)
        for name, value in list(vars(self._module).items()):
            if name not in _LIGHTNINGS:
                yield f"module.{name}", value, _attribute(self._module, name)
        for path, value, put in attributes_of(self._module):
            if "." in path:
                yield f"module.{path}", value, put

    def _of_callback(self, holder: Any, path: str, seen: set[int], depth: int) -> Iterator[Part]:
        seen.add(id(holder))
        parts = parts_of(holder)
        if parts is None:  # Lightning's own
            parts = [(name, each, _attribute(holder, name)) for name, each in vars(holder).items()]
        for name, value, put in list(parts):
            where = f"{path}.{name}"
            if name in _LEFT_OUT:
                continue
            if is_plain(value):
                yield where, value, put
                continue
            self._refuse(where, value)
            kind = type(value)
            if depth < _DEPTH and is_own(kind) and id(value) not in seen:  # type: ignore[arg-type]
                yield from self._of_callback(value, where, seen, depth + 1)

    def _refuse(self, path: str, value: Any) -> None:
        found = value
        if isinstance(value, dict):
            found = next(iter(value.values()), None)
        elif isinstance(value, list | tuple):
            found = next(iter(value), None)
        if isinstance(found, torch.Tensor):
            now = (id(found), found._version)  # noqa: SLF001 - torch has no public name
            held = self._seen.setdefault(path, now) != now
        else:
            held = isinstance(found, nn.Module | torch.optim.Optimizer) and not any(
                found is each for each in (*self._module.modules(), *self._optimizers)
            )
        if held:
            raise ConfigError(
                f"{path} ({type(value).__name__}) is not carried: a callback may keep "
                "numbers, strings, small tensors and up to 1,024 of them. Keep modules and "
                "tensors in the LightningModule, as submodules and buffers."
            )
        if path in self._carried:
            self._carried.discard(path)
            log.warning(
                "an attribute of a callback has grown too large to be carried: a joiner would not "
                "have it. Keep the last 1,024 values, or sums of them",
                attribute=path,
            )


def _name(at: int, callback: Callback) -> str:
    return f"{type(callback).__name__}[{at}]"


def _attribute(holder: Any, name: str) -> Callable[[Any], None]:
    return lambda value: setattr(holder, name, value)
