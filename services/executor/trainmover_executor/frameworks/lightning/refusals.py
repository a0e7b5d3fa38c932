"""What a fit must not ask for here, and what to do in its place."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import timedelta
from typing import Any, Final

import torch
from lightning.pytorch import Callback, LightningModule
from lightning.pytorch import callbacks as lightnings
from lightning.pytorch.loggers import CSVLogger, TensorBoardLogger
from lightning.pytorch.loggers.logger import DummyLogger
from lightning.pytorch.plugins import Precision

from trainmover.errors import ConfigError
from trainmover.job.topology import Layout

__all__ = [
    "options_of_job",
    "refuse_callbacks",
    "refuse_loggers",
    "refuse_module",
    "refuse_optimizers",
]

_CARRIED: Final = (
    lightnings.Checkpoint,
    lightnings.EarlyStopping,
    lightnings.LearningRateMonitor,
    lightnings.ModelSummary,
    lightnings.ProgressBar,
    lightnings.LambdaCallback,
)
_STRATEGIES: Final = ("auto", "ddp")


def options_of_job(options: Mapping[str, Any], layout: Layout) -> dict[str, Any]:
    """Options for Lightning's trainer: as given, with the shape of the job.

    Raises:
        ConfigError: One of them is not carried, or says another shape.
    """
    if options.get("strategy", "auto") not in _STRATEGIES:
        raise ConfigError(
            f"Trainer(strategy={options['strategy']!r}): models are carried in "
            "DistributedDataParallel. Leave strategy out, and pass options of "
            "DistributedDataParallel as ddp={'find_unused_parameters': True}. To shard a model "
            "use fully_shard and trainmover.Session."
        )
    shape = {"devices": layout.ranks_per_slot, "num_nodes": layout.slots}
    for name, there in shape.items():
        said = options.get(name, "auto")
        if said not in ("auto", -1, "-1", there, str(there)):
            raise ConfigError(
                f"Trainer({name}={said!r}): this job has {there}. Leave devices and num_nodes out: "
                "trainmover run --slots N --nproc-per-node N says how many processes there are."
            )
    if options.get("max_time") is not None:
        raise ConfigError(
            "Trainer(max_time=...) ends a fit by the clock of one process, which its replacement "
            "does not have: use max_steps or max_epochs"
        )
    if isinstance(options.get("val_check_interval"), str | timedelta | Mapping):
        raise ConfigError(
            "Trainer(val_check_interval=...) by the clock is not carried: give a number of batches "
            "or a part of an epoch"
        )
    if options.get("reload_dataloaders_every_n_epochs"):
        raise ConfigError(
            "Trainer(reload_dataloaders_every_n_epochs=...): a joiner would have other loaders. "
            "Leave it out, and have the data set or its sampler change with set_epoch(epoch)"
        )
    for each in _listed(options.get("plugins")):
        if not isinstance(each, Precision):
            raise ConfigError(
                f"Trainer(plugins=[{type(each).__name__}]) is not carried: leave out all plugins "
                "but those for precision"
            )
    # Collectives cannot write to tensors that were made in inference mode.
    return {**options, **shape, "inference_mode": False}


def refuse_module(module: LightningModule) -> None:
    """Refuse what a LightningModule does that a step cannot be made of.

    Raises:
        ConfigError: It is of the kind.
    """
    for hook in ("configure_sharded_model", "configure_model"):
        if getattr(type(module), hook, None) is not getattr(LightningModule, hook, None):
            raise ConfigError(
                f"{type(module).__name__}.{hook}() is for strategies that shard a model, which are "
                "not carried: make the modules in __init__"
            )


def refuse_callbacks(callbacks: Iterable[Callback]) -> None:
    """Refuse callbacks of Lightning whose state is not carried.

    Raises:
        ConfigError: There is one.
    """
    for each in callbacks:
        name = type(each).__name__
        is_lightnings = type(each).__module__.startswith("lightning.")
        if is_lightnings and not isinstance(each, _CARRIED):
            raise ConfigError(
                f"the callback {name} keeps state or changes the model in ways that are not "
                "carried: leave it out"
            )
        if isinstance(each, lightnings.ModelCheckpoint):
            _refuse_checkpoints(each)


def _refuse_checkpoints(callback: lightnings.ModelCheckpoint) -> None:
    if callback._train_time_interval is not None:  # noqa: SLF001 - Lightning has no public name
        raise ConfigError(
            "ModelCheckpoint(train_time_interval=...) is not carried: use every_n_train_steps"
        )
    if callback.save_last == "link":
        raise ConfigError(
            "ModelCheckpoint(save_last='link') makes a link that is lost where a machine dies in "
            "between: use save_last=True"
        )
    if callback.save_on_exception:
        raise ConfigError(
            "ModelCheckpoint(save_on_exception=True) needs all ranks, and an error is one rank's: "
            "leave it out"
        )


def refuse_optimizers(optimizers: Iterable[torch.optim.Optimizer]) -> None:
    """Refuse optimizers that call forward and backward pass by themselves.

    Raises:
        ConfigError: There is one.
    """
    for each in optimizers:
        if isinstance(each, torch.optim.LBFGS):
            raise ConfigError(
                "LBFGS calls forward and backward pass by itself, more than once in a step, and a "
                "step is voted on in front of the optimizer: use another optimizer, or a loop of "
                "your own over trainmover.Session.steps"
            )


def refuse_loggers(loggers: Iterable[Any]) -> None:
    """Refuse loggers that a joiner could not go on with.

    Raises:
        ConfigError: There is one.
    """
    for each in loggers:
        if isinstance(each, DummyLogger):  # of fast_dev_run
            continue
        carried = type(each) in {CSVLogger, TensorBoardLogger}
        if not carried or "://" in str(each.save_dir):
            raise ConfigError(
                f"the logger {type(each).__name__} is not carried: whoever takes the place of the "
                "main process would begin a second run, or lose lines. Pass "
                "Trainer(logger=CSVLogger('logs')) or a TensorBoardLogger, with a folder that all "
                "machines share, or logger=False and trainmover run --metrics FOLDER"
            )


def _listed(value: Any) -> list[Any]:
    if value is None:
        return []
    return list(value) if isinstance(value, list | tuple | set) else [value]
