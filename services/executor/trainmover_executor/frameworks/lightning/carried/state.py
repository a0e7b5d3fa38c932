"""Where a fit is, beside models, optimizers and schedulers, as part of the session's state."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from lightning.pytorch.trainer.states import RunningStage

from trainmover_executor.frameworks.lightning.carried.besides import Besides
from trainmover_executor.frameworks.lightning.carried.holdings import Holdings
from trainmover_executor.frameworks.lightning.carried.results import load_results, results_tree
from trainmover_executor.frameworks.lightning.carried.rows import Rows
from trainmover_executor.frameworks.lightning.carried.scalars import Scalars
from trainmover_executor.frameworks.lightning.carried.text import from_text, to_text
from trainmover_executor.program.values.plain import PLAIN, is_plain
from trainmover_executor.program.values.restored import restored
from trainmover_executor.program.values.trees import portable
from trainmover_executor.state.optimizers.settings import load_settings, settings_of

if TYPE_CHECKING:
    from trainmover_executor.frameworks.lightning.trainer import TrainMoverTrainer

__all__ = ["FitState"]

_CONNECTOR: Final = (
    *("_progress_bar_metrics", "_logged_metrics", "_callback_metrics"),
    *("_current_fx", "_first_loop_iter"),
)


class FitState:
    """Lightning's counters, what was logged, and what callbacks and module keep.

    Args:
        trainer: Whose; its fit has begun.
        rows: What its loggers write.

    Attributes:
        output: What ``training_step`` returned in the running body.
    """

    def __init__(self, trainer: TrainMoverTrainer, rows: list[Rows | Scalars]) -> None:
        self._trainer = trainer
        self._rows = rows
        self._module = trainer.lightning_module
        self._holdings = Holdings(self._module, trainer.callbacks, trainer.optimizers)
        self._besides = Besides(trainer)
        self.output: dict[str, Any] = {}

    def state_dict(self) -> dict[str, Any]:
        """As text, in pieces."""
        return {"text": to_text(self._tree())}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Take it back, and forget what an aborted body or evaluation left under way."""
        self._load(from_text(state["text"], device=self._trainer.strategy.root_device))

    def _tree(self) -> dict[str, Any]:
        trainer, loop = self._trainer, self._trainer.fit_loop.epoch_loop
        connector = trainer._logger_connector  # noqa: SLF001 - Lightning has no public name
        stage = trainer.state.stage
        return {
            "should_stop": trainer.should_stop,
            "stage": None if stage is None else stage.value,
            "stepped": loop._batches_that_stepped,  # noqa: SLF001 - as above
            "progress": {name: _numbers(each) for name, each in self._progress().items()},
            "validated": [loop.val_loop._has_run, self._seen()],  # noqa: SLF001 - as above
            "connector": {name: portable(getattr(connector, name)) for name in _CONNECTOR},
            "results": [results_tree(each) for each in self._results()],
            "groups": [_plain_groups(each) for each in trainer.optimizers],
            "holdings": self._holdings.tree(),
            "besides": self._besides.tree(),
            "rows": [each.state_dict() for each in self._rows],
            "output": portable(self.output) if is_plain(self.output) else None,
        }

    def _load(self, state: dict[str, Any]) -> None:
        trainer, loop = self._trainer, self._trainer.fit_loop.epoch_loop
        connector = trainer._logger_connector  # noqa: SLF001 - as above
        trainer.should_stop = state["should_stop"]
        trainer.state.stage = None if state["stage"] is None else RunningStage(state["stage"])
        loop._batches_that_stepped = state["stepped"]  # noqa: SLF001 - as above
        for name, each in self._progress().items():
            _load_numbers(each, state["progress"][name])
        loop.val_loop._has_run, seen = state["validated"]  # noqa: SLF001 - as above
        loop.val_loop._seen_batches_per_dataloader.clear()  # noqa: SLF001 - as above
        loop.val_loop._seen_batches_per_dataloader.update(map(tuple, seen))  # noqa: SLF001 - as above
        for name, value in state["connector"].items():
            setattr(connector, name, restored(value, None))
        for results, tree in zip(self._results(), state["results"], strict=True):
            load_results(results, tree, module=self._module, reduce=trainer.strategy.reduce)
        for optimizer, groups in zip(trainer.optimizers, state["groups"], strict=True):
            load_settings(optimizer, groups)
        self._holdings.load(state["holdings"])
        self._besides.load(state.get("besides", {}))  # none from a release before
        for one, rows in zip(self._rows, state["rows"], strict=True):
            one.load_state_dict(rows)
        if state["output"] is not None:
            self.output = restored(state["output"], None)
        self._module._current_fx_name = None  # noqa: SLF001 - as above
        self._untoggle()

    def _untoggle(self) -> None:
        """Thaw what ``toggle_optimizer`` has frozen in a body that was left before it thawed it."""
        for parameter, trained in self._module._param_requires_grad_state.items():  # noqa: SLF001
            parameter.requires_grad = trained
        self._module._param_requires_grad_state = {}  # noqa: SLF001 - as above

    def promoted(self) -> None:
        """This process is the main one from now on."""
        for each in self._rows:
            each.promoted()

    def _progress(self) -> dict[str, Any]:
        fit, loop = self._trainer.fit_loop, self._trainer.fit_loop.epoch_loop
        return {
            "epoch": fit.epoch_progress,
            "batch": loop.batch_progress,
            "scheduler": loop.scheduler_progress,
            "step": loop.automatic_optimization.optim_progress.optimizer.step,
            "zero_grad": loop.automatic_optimization.optim_progress.optimizer.zero_grad,
            "manual": loop.manual_optimization.optim_step_progress,
            "validation": loop.val_loop.batch_progress,
        }

    def _results(self) -> tuple[Any, Any]:
        loop = self._trainer.fit_loop.epoch_loop
        return loop._results, loop.val_loop._results  # noqa: SLF001 - as above

    def _seen(self) -> list[list[int]]:
        loop = self._trainer.fit_loop.epoch_loop.val_loop
        return list(map(list, loop._seen_batches_per_dataloader.items()))  # noqa: SLF001 - as above


def _numbers(progress: Any) -> dict[str, Any]:
    own = {name: each for name, each in vars(progress).items() if type(each) in PLAIN}
    return {**own, "total": dict(vars(progress.total)), "current": dict(vars(progress.current))}


def _load_numbers(progress: Any, tree: dict[str, Any]) -> None:
    vars(progress.total).update(tree["total"])
    vars(progress.current).update(tree["current"])
    vars(progress).update({k: v for k, v in tree.items() if k not in {"total", "current"}})


def _plain_groups(optimizer: Any) -> list[dict[str, Any]]:
    """Learning rates and the like; callbacks and plateau schedulers set them between steps."""
    return [
        {key: portable(value) for key, value in group.items() if type(value) in PLAIN}
        for group in settings_of(optimizer)
    ]
