"""``torch.distributed.checkpoint`` in a job whose machines are replaced.

Loads need no other rank, so that a standby can load at any time. Saves in the background get what
they need to live beside steps; see ``saves``.
"""

from __future__ import annotations

import functools
import os
import warnings
from pathlib import Path
from typing import Any

import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint import state_dict_loader, state_dict_saver
from torch.distributed.checkpoint.filesystem import FileSystemReader
from torch.distributed.checkpoint.state_dict_saver import AsyncCheckpointerType

from trainmover.errors import ConfigError
from trainmover_executor.collectives.engine import GroupEngine
from trainmover_executor.collectives.process_group import TrainMoverProcessGroup
from trainmover_executor.collectives.saves import BackgroundSave
from trainmover_executor.worker.runtime import Runtime

__all__ = ["adapt_checkpoints"]


def adapt_checkpoints(runtime: Runtime) -> None:
    """Have this process load without other ranks, and save in the background beside steps."""
    load = _loading(state_dict_loader.load)
    async_save = _saving(runtime, state_dict_saver.async_save)
    for module, name, ours in (
        (dcp, "load", load),
        (state_dict_loader, "load", load),
        (dcp, "async_save", async_save),
        (state_dict_saver, "async_save", async_save),
    ):
        setattr(module, name, ours)


def _loading(original: Any) -> Any:
    @functools.wraps(original)
    def load(state_dict: dict[str, Any], **options: Any) -> None:
        """Torch's ``load``; of a folder each rank plans for itself.

        Torch has rank 0 plan for all, and changes nothing in the plans. A standby would have to
        wait for plans of the job's start, and those of a large model are not kept.
        """
        path = options.get("checkpoint_id")
        reader = options.get("storage_reader")
        if path is None and type(reader) is FileSystemReader:
            path = reader.path
        plain = options.get("planner") is None and type(reader) in {type(None), FileSystemReader}
        if not plain or path is None or not (Path(path) / ".metadata").is_file():
            original(state_dict, **options)
            return
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", "torch.distributed is disabled")
            original(state_dict, **{**options, "no_dist": True})

    return load


def _saving(runtime: Runtime, original: Any) -> Any:
    @functools.wraps(original)
    def async_save(state_dict: dict[str, Any], **options: Any) -> Any:
        """Torch's ``async_save``, after the one before has ended.

        Raises:
            ConfigError: Training could not go on beside it.
        """
        if options.get("no_dist", False) or not options.get("use_collectives", True):
            return original(state_dict, **options)
        engine = _check(runtime, options)
        runtime.saves.wait()
        save = BackgroundSave(_place_of(options))
        engine.background = save
        try:
            result = original(state_dict, **options)
        except BaseException:
            engine.background = None
            raise
        save.began(getattr(result, "upload_completion", result))
        runtime.saves.began(save)
        return result

    return async_save


def _check(runtime: Runtime, options: dict[str, Any]) -> GroupEngine:
    """What runs the operations of the group that a save was given."""
    if options.get("async_checkpointer_type") == AsyncCheckpointerType.PROCESS:
        raise ConfigError(
            "async_save with a process of its own makes a group of backend gloo there, whose "
            "members could not be exchanged. Leave out async_checkpointer_type: it saves in a "
            "thread then."
        )
    group = options.get("process_group")
    if not isinstance(group, TrainMoverProcessGroup) or group is dist.group.WORLD:
        raise ConfigError(
            "async_save talks to the other ranks while training does, so it needs a group that "
            "nothing else uses. At the top of the program: saves = dist.new_group(); then "
            "async_save(..., process_group=saves)."
        )
    if not runtime.saves.allowed:
        raise ConfigError(
            "async_save was called where a machine that dies meanwhile would leave ranks with "
            "different checkpoints. Begin it between steps: session.between_steps(lambda: "
            "async_save(...))."
        )
    return group.engine


def _place_of(options: dict[str, Any]) -> str:
    path = options.get("checkpoint_id")
    if path is None:
        path = getattr(options.get("storage_writer"), "path", "")
    return os.fspath(path) if isinstance(path, os.PathLike) else str(path)
