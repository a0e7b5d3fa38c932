"""What a trainer and its callbacks hold and change, for the session to look at and carry."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Any, Final

from trainmover_executor.program.holders.names import Root
from trainmover_executor.program.variables import LoopVariables

__all__ = ["watch"]

_NOT_STATE: Final = frozenset(
    {
        *("args", "accelerator", "callback_handler", "state", "control"),
        *("model", "model_wrapped", "optimizer", "lr_scheduler"),
        *("train_dataset", "eval_dataset", "processing_class", "gather_function"),
        *("_memory_tracker", "_session", "_runtime"),
    }
)
"""Attributes of a trainer that are looked at elsewhere, carried otherwise, or never changed."""
_OWN_TO_PROCESS: Final = frozenset(
    {"is_world_process_zero", "is_local_process_zero", "log_history"}
)
"""Attributes of a trainer's state that each process has for itself, or that ``history`` carries."""


def watch(trainer: Any, loader: Any, variables: LoopVariables) -> None:
    """Have ``variables`` look at ``trainer``, its state, its control and its callbacks.

    Args:
        trainer: Which.
        loader: What it trains on, whose place the session keeps.
        variables: Look at them.
    """
    known = [trainer, loader, trainer.args, trainer.accelerator, trainer.callback_handler]
    variables.look_besides(
        partial(_roots, trainer), known=[*known, trainer.state, trainer.processing_class]
    )


def _roots(trainer: Any) -> Iterator[Root]:
    yield "trainer", _apart_from(_NOT_STATE, trainer), partial(setattr, trainer)
    state = trainer.state
    yield "trainer:state", _apart_from(_OWN_TO_PROCESS, state), partial(setattr, state)
    control = trainer.control
    yield "trainer:control", vars(control), partial(setattr, control)
    for at, callback in enumerate(trainer.callback_handler.callbacks):
        root = f"{type(callback).__name__}@{at}"
        yield root, vars(callback), partial(setattr, callback)


def _apart_from(names: frozenset[str], holder: object) -> dict[str, Any]:
    return {name: value for name, value in vars(holder).items() if name not in names}
