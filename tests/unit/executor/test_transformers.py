"""The adapter for the Trainer of Hugging Face, without a job."""

from __future__ import annotations

import importlib
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

PACKAGE = "trainmover_executor.frameworks.transformers"

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning")
needs_transformers = pytest.mark.skipif(
    find_spec("transformers") is None or find_spec("accelerate") is None,
    reason="Hugging Face transformers is not installed",
)


def test_a_missing_framework_is_named_with_its_cure(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [each for each in sys.modules if each.startswith(PACKAGE)]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "accelerate", None)
    with pytest.raises(ModuleNotFoundError, match=r"pip install 'trainmover\[transformers\]'"):
        importlib.import_module(PACKAGE)


@needs_transformers
@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"fsdp": "full_shard"}, "fsdp=.*fully_shard"),
        ({"auto_find_batch_size": True}, "auto_find_batch_size.*per_device_train_batch_size"),
        ({"push_to_hub": True}, "push_to_hub.*when the job is over"),
        ({"enable_jit_checkpoint": True}, "enable_jit_checkpoint.*--when-exhausted"),
        ({"accelerator_config": {"dispatch_batches": True}}, "each rank reads its share"),
        ({"dataloader_in_order": False}, "no order"),
        ({"report_to": ["wandb", "tensorboard"]}, "'wandb'.*--metrics"),
    ],
)
def test_what_is_not_carried_is_refused(
    options: dict[str, Any], words: str, tmp_path: Path
) -> None:
    from transformers import TrainingArguments

    from trainmover.errors import ConfigError
    from trainmover_executor.frameworks.transformers.refusals import refuse

    arguments = TrainingArguments(str(tmp_path), use_cpu=True)
    refuse(arguments, None)
    for name, value in TrainingArguments(str(tmp_path), use_cpu=True, **options).__dict__.items():
        setattr(arguments, name, value)
    with pytest.raises(ConfigError, match=words):
        refuse(arguments, None)


@needs_transformers
def test_the_trainers_loop_is_the_one_that_is_replaced(monkeypatch: pytest.MonkeyPatch) -> None:
    from transformers import Trainer

    from trainmover.errors import ConfigError
    from trainmover_executor.frameworks.transformers.refusals import refuse_other_loops

    refuse_other_loops()
    monkeypatch.setattr(Trainer, "_run_epoch", lambda self, model: None)
    with pytest.raises(ConfigError, match="pip install 'transformers=="):
        refuse_other_loops()


@needs_transformers
def test_a_program_that_nobody_started_is_told_the_line() -> None:
    from trainmover.errors import ConfigError
    from trainmover_executor.frameworks.transformers import TrainMoverTrainer

    with pytest.raises(ConfigError, match="trainmover run --slots"):
        TrainMoverTrainer()


@needs_transformers
def test_a_history_is_carried_without_times() -> None:
    from trainmover_executor.frameworks.transformers.history import LogHistory

    mine = [{"loss": 0.1, "step": 5}, {"eval_loss": 2.5, "eval_runtime": 3.0, "step": 5}]
    theirs = [{"loss": 0.1, "step": 5}, {"eval_loss": 2.5, "eval_runtime": 4.0, "step": 5}]
    history, other = LogHistory(mine), LogHistory(theirs)
    assert history.state_dict()["entries"].equal(other.state_dict()["entries"])
    before = history.state_dict()
    mine.append({"loss": float("nan"), "step": 10})
    assert not history.state_dict()["entries"].equal(before["entries"])
    other.load_state_dict(history.state_dict())
    assert theirs[1]["eval_runtime"] == 4.0
    assert repr(theirs[2]) == repr(mine[2])
    other.load_state_dict(before)
    assert len(theirs) == 2
    LogHistory([]).load_state_dict(LogHistory([]).state_dict())


@needs_transformers
def test_an_entry_that_replaces_another_is_noticed() -> None:
    from trainmover_executor.frameworks.transformers.history import LogHistory

    entries = [{"loss": 1.0}]
    history = LogHistory(entries)
    before = history.state_dict()["entries"]
    entries[:] = [{"loss": 2.0}]
    assert not history.state_dict()["entries"].equal(before)
