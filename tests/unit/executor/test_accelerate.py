"""The adapter for Hugging Face Accelerate, without a job."""

from __future__ import annotations

import importlib
import sys
from importlib.util import find_spec
from typing import Any

import pytest
import torch
from torch.utils.data import DataLoader, TensorDataset

PACKAGE = "trainmover_executor.frameworks.accelerate"

needs_accelerate = pytest.mark.skipif(
    find_spec("accelerate") is None, reason="Hugging Face Accelerate is not installed"
)


def test_a_missing_accelerate_is_named_with_its_cure(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [each for each in sys.modules if each.startswith(PACKAGE)]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "accelerate", None)
    with pytest.raises(ModuleNotFoundError, match=r"pip install 'trainmover\[accelerate\]'"):
        importlib.import_module(PACKAGE)


@needs_accelerate
@pytest.mark.parametrize("workers", [0, 1])
def test_batches_are_moved_to_the_device(workers: int) -> None:
    from trainmover_executor.frameworks.accelerate.reading import place_batches

    loader: DataLoader[Any] = DataLoader(
        TensorDataset(torch.arange(6)), batch_size=2, num_workers=workers
    )
    place_batches(loader, torch.device("meta"), non_blocking=False)
    assert [batch.device.type for (batch,) in loader] == ["meta"] * 3
    assert [batch.device.type for (batch,) in loader] == ["meta"] * 3


@needs_accelerate
def test_dispatched_batches_are_refused() -> None:
    from accelerate.utils import DataLoaderConfiguration

    from trainmover.errors import ConfigError
    from trainmover_executor.frameworks.accelerate.accelerator import _movable

    with pytest.raises(ConfigError, match="each rank reads its share"):
        _movable(DataLoaderConfiguration(dispatch_batches=True))
    assert _movable(DataLoaderConfiguration(data_seed=3)).data_seed == 3
    assert _movable(None).use_seedable_sampler


@needs_accelerate
def test_a_program_that_nobody_started_is_told_the_line() -> None:
    from trainmover.errors import ConfigError
    from trainmover_executor.frameworks.accelerate import TrainMoverAccelerator

    with pytest.raises(ConfigError, match="trainmover run --slots 4 --standbys 1"):
        TrainMoverAccelerator()
