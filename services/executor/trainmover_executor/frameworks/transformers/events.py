"""The events that callbacks get: once each, and from a shadow as from any process but the first."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Final, Protocol

from transformers.integrations import TensorBoardCallback
from transformers.trainer_callback import CallbackHandler, ProgressCallback

__all__ = ["Events", "Whose"]

_SAID_ONCE: Final = frozenset({"on_log", "on_evaluate", "on_predict"})
"""Events that are held back in work that may be done again."""

Held = list[tuple[str, dict[str, Any]]]


class Whose(Protocol):
    """What is asked of the trainer."""

    args: Any
    state: Any
    control: Any

    @property
    def is_shadow(self) -> bool:
        """Whether this process is a shadow."""

    def is_world_process_zero(self) -> bool:
        """Whether it is the first process of all."""

    def is_local_process_zero(self) -> bool:
        """Whether it is the first process of its machine."""


class Events(CallbackHandler):  # type: ignore[misc] # transformers is not looked into
    """A handler of callbacks that knows what a shadow is, and what may happen twice.

    Args:
        handler: The trainer's own, whose callbacks it takes over.
        trainer: Whose.
        folder: For TensorBoard, unless the program has named one: the same at all machines, since
            files in one folder are one run.
    """

    def __init__(self, handler: Any, trainer: Whose, *, folder: str) -> None:
        self.__dict__.update(vars(handler))
        self._trainer = trainer
        for callback in self.callbacks:
            if isinstance(callback, TensorBoardCallback) and callback.logging_dir is None:
                callback.logging_dir = folder
        self._held: Held | None = None
        self._began_as_shadow = False

    def call_event(self, event: str, args: Any, state: Any, control: Any, **options: Any) -> Any:
        """See ``CallbackHandler.call_event``."""
        if self._held is not None and event in _SAID_ONCE:
            self._held.append((event, options))
            return control
        self._settle(event, state)
        return super().call_event(event, args, state, control, **options)

    @contextmanager
    def holding(self) -> Iterator[Held]:
        """While it lasts, what is to be said once is held back; see ``say``."""
        held: Held = []
        self._held = held
        try:
            yield held
        finally:
            self._held = None

    def say(self, held: Held) -> None:
        """Say what was held back."""
        trainer = self._trainer
        for event, options in held:
            control = self.call_event(
                event, trainer.args, trainer.state, trainer.control, **options
            )
            trainer.control = control

    def _settle(self, event: str, state: Any) -> None:
        """Before an event: who this process is by now."""
        trainer = self._trainer
        state.is_world_process_zero = trainer.is_world_process_zero()
        state.is_local_process_zero = trainer.is_local_process_zero()
        if event == "on_train_begin":
            self._began_as_shadow = trainer.is_shadow
        elif self._began_as_shadow and not trainer.is_shadow:
            self._began_as_shadow = False
            if state.is_world_process_zero:
                self._begin_output(state)

    def _begin_output(self, state: Any) -> None:
        """A joiner is the first process from now on: show a bar, which a shadow had none of."""
        for callback in self.callbacks:
            if isinstance(callback, ProgressCallback):
                callback.on_train_begin(
                    self._trainer.args, state, self._trainer.control, model=self.model
                )
