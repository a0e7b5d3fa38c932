"""What the adapter for Lightning refuses, and how it carries state."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest
import torch
from torch.utils.data import BatchSampler, DataLoader, RandomSampler
from torchdata.stateful_dataloader import StatefulDataLoader

from trainmover.errors import ConfigError
from trainmover.job.topology import Layout

pytest.importorskip("lightning")

from lightning.pytorch import Callback
from lightning.pytorch.callbacks import (
    EarlyStopping,
    ModelCheckpoint,
    StochasticWeightAveraging,
    Timer,
)
from lightning.pytorch.loggers import CSVLogger, TensorBoardLogger
from lightning.pytorch.utilities import CombinedLoader

from trainmover_executor.frameworks.lightning.carried.text import (
    from_text,
    to_text,
)
from trainmover_executor.frameworks.lightning.data import movable_loader
from trainmover_executor.frameworks.lightning.refusals import (
    options_of_job,
    refuse_callbacks,
    refuse_loggers,
)

pytestmark = pytest.mark.filterwarnings("ignore:.*LeafSpec:FutureWarning")  # of Lightning's own use

LAYOUT = Layout(slots=3, ranks_per_slot=2)


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"strategy": "fsdp"}, "fully_shard"),
        ({"devices": 4}, "this job has 2"),
        ({"num_nodes": 2}, "this job has 3"),
        ({"max_time": "00:01:00:00"}, "max_steps"),
        ({"val_check_interval": timedelta(minutes=5)}, "number of batches"),
        ({"reload_dataloaders_every_n_epochs": 1}, "set_epoch"),
        ({"plugins": [object()]}, "precision"),
    ],
)
def test_options_that_are_not_carried_are_refused(options: dict[str, Any], says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        options_of_job(options, LAYOUT)


@pytest.mark.parametrize(
    "options", [{}, {"devices": "auto", "num_nodes": 3}, {"devices": 2}, {"strategy": "ddp"}]
)
def test_the_shape_is_the_jobs(options: dict[str, Any]) -> None:
    made = options_of_job({**options, "max_epochs": 3}, LAYOUT)
    assert (made["devices"], made["num_nodes"], made["max_epochs"]) == (2, 3, 3)


@pytest.mark.parametrize(
    ("callback", "says"),
    [
        (StochasticWeightAveraging(0.01), "StochasticWeightAveraging"),
        (Timer("00:01:00:00"), "Timer"),
        (ModelCheckpoint(train_time_interval=timedelta(minutes=1)), "every_n_train_steps"),
        (ModelCheckpoint(save_last="link"), "save_last=True"),
        (ModelCheckpoint(save_on_exception=True), "leave it out"),
    ],
)
def test_callbacks_that_are_not_carried_are_refused(callback: Callback, says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        refuse_callbacks([callback])


def test_usual_callbacks_are_not_refused() -> None:
    class Own(Callback):
        pass

    refuse_callbacks([Own(), EarlyStopping("loss"), ModelCheckpoint(every_n_train_steps=5)])


def test_a_logger_that_is_not_carried_is_refused() -> None:
    refuse_loggers([CSVLogger("logs"), TensorBoardLogger("logs")])
    with pytest.raises(ConfigError, match="CSVLogger"):
        refuse_loggers([object()])
    with pytest.raises(ConfigError, match="share"):
        refuse_loggers([CSVLogger("memory://logs")])
    with pytest.raises(ConfigError, match="TensorBoardLogger"):
        refuse_loggers([TensorBoardLogger("memory://logs")])


def test_an_epoch_is_cut_to_its_limit_each_time() -> None:
    sampler = BatchSampler(RandomSampler(range(40)), batch_size=4, drop_last=False)
    loader = DataLoader(list(range(40)), batch_sampler=sampler)
    cut = movable_loader(CombinedLoader(loader, "max_size_cycle"), batches=3.0)
    assert [len(list(cut)), len(list(cut)), len(cut)] == [3, 3, 3]


def test_a_loader_that_cannot_be_gone_to_is_refused() -> None:
    class Stream(torch.utils.data.IterableDataset[int]):
        def __iter__(self) -> Any:
            return iter(range(10))

    whole = DataLoader(list(range(8)))
    with pytest.raises(ConfigError, match="__getitem__"):
        movable_loader(CombinedLoader(DataLoader(Stream()), "max_size_cycle"), batches=9.0)
    with pytest.raises(ConfigError, match="one train_dataloader"):
        movable_loader(CombinedLoader([whole, whole], "max_size_cycle"), batches=8.0)


@pytest.mark.filterwarnings("ignore:'set_vital':UserWarning")
def test_a_stateful_loader_is_read_whole() -> None:
    loader = StatefulDataLoader(list(range(40)), batch_size=4)
    assert movable_loader(CombinedLoader(loader, "max_size_cycle"), batches=10.0) is loader
    with pytest.raises(ConfigError, match="leave out limit_train_batches"):
        movable_loader(CombinedLoader(loader, "max_size_cycle"), batches=3.0)


def test_a_tree_comes_back_from_text_to_the_bit() -> None:
    odd = torch.tensor([0.1, float("nan"), -0.0], dtype=torch.float64)
    tree = {
        "numbers": [1, 0.1, None, True, float("inf")],
        "pair": (1, ("x", [2])),
        "tensors": [odd, torch.tensor(3), torch.ones(2, 2).bfloat16(), torch.zeros(0, 2)],
        "raw": b"\x00\xff",
        "long": "x" * 50_000,
    }
    text = to_text(tree)
    assert max(map(len, text)) <= 16 * 1024
    back = from_text(text, device=torch.device("cpu"))
    tensors = back.pop("tensors")
    assert all(
        (mine.dtype, mine.shape, mine.view(-1).view(torch.uint8).tolist())
        == (theirs.dtype, theirs.shape, theirs.view(-1).view(torch.uint8).tolist())
        for mine, theirs in zip(tensors, tree.pop("tensors"), strict=True)
    )
    assert back == tree
