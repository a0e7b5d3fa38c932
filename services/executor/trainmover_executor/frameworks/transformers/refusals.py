"""What of the Trainer is not carried: said when a trainer is made, with what to do instead."""

from __future__ import annotations

import inspect
from typing import Any, Final

import transformers
from transformers import Trainer

from trainmover.errors import ConfigError

__all__ = ["refuse", "refuse_other_loops"]

_EPOCH_OF: Final = (
    "self",
    "model",
    "epoch",
    "train_dataloader",
    "steps_in_epoch",
    "num_update_steps_per_epoch",
    "trial",
    "ignore_keys_for_eval",
    "start_time",
    "resume_from_checkpoint",
    "epochs_trained",
    "steps_trained_in_current_epoch",
)
"""Parameters of ``Trainer._run_epoch``, which the loop over steps stands in for."""
_REPORTS: Final = frozenset({"tensorboard"})

_SHARD: Final = (
    "leave it out: models in DistributedDataParallel are carried. To shard a model write the loop "
    "with fully_shard and trainmover.Session"
)
_OPTIONS: Final = {
    "deepspeed": _SHARD,
    "fsdp": _SHARD,
    "parallelism_config": _SHARD,
    "auto_find_batch_size": (
        "it begins the training loop again, which a joiner could not follow: set "
        "per_device_train_batch_size"
    ),
    "push_to_hub": (
        "a save that a crash interrupts would be pushed twice: push output_dir when the job is over"
    ),
    "enable_jit_checkpoint": (
        "the machine's agent ends processes that leave: set save_steps, and start the job with "
        "trainmover run --when-exhausted fail"
    ),
}
"""Options that are refused where they are set, and what to do."""


def refuse(arguments: Any, model: Any) -> None:
    """Make sure that all of a trainer's options are carried.

    Args:
        arguments: Its ``TrainingArguments``.
        model: Its model, as passed.

    Raises:
        ConfigError: One is not; names it and the cure.
    """
    for name, cure in _OPTIONS.items():
        if getattr(arguments, name, None):
            raise ConfigError(f"TrainingArguments({name}=...) is not carried: {cure}")
    if arguments.accelerator_config.dispatch_batches:
        raise ConfigError(
            "accelerator_config: dispatch_batches=True has one rank read for all, between their "
            "steps. Leave it out: each rank reads its share."
        )
    if arguments.accelerator_config.use_configured_state:
        raise ConfigError(
            "accelerator_config: use_configured_state=True takes over a state of Accelerate that "
            "the program made. Leave it out."
        )
    if not arguments.dataloader_in_order:
        raise ConfigError(
            "TrainingArguments(dataloader_in_order=False) gives batches no order that a joiner "
            "could repeat. Leave it out."
        )
    others = sorted(set(arguments.report_to) - _REPORTS)
    if others:
        raise ConfigError(
            f"TrainingArguments(report_to={others}) is not carried: whoever takes the place of the "
            "main process would begin a second run. Use report_to='tensorboard' or 'none', and "
            "trainmover run --metrics FOLDER."
        )
    if getattr(model, "is_distributed_loading_by_transformers", False):
        raise ConfigError(
            "the model was sharded when it was loaded (distributed_config=...): load it whole. "
            f"What shards it is not carried; {_SHARD}."
        )


def refuse_other_loops() -> None:
    """Make sure that the Trainer's loop is the one that this adapter knows.

    Raises:
        ConfigError: It is another one.
    """
    run = getattr(Trainer, "_run_epoch", None)
    if run is None or tuple(inspect.signature(run).parameters) != _EPOCH_OF:
        raise ConfigError(
            f"the training loop of transformers {transformers.__version__} is not the one that "
            "TrainMoverTrainer was made for: pip install 'transformers==5.24.0'"
        )
