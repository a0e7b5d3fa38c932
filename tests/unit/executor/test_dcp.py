"""Distributed checkpoints beside steps: what is refused, and how a save ends."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint import state_dict_loader, state_dict_saver
from torch.distributed.checkpoint.state_dict_saver import AsyncCheckpointerType

from trainmover.errors import ConfigError
from trainmover_executor.collectives.communicator.checks import CollectiveError
from trainmover_executor.collectives.process_group import TrainMoverProcessGroup
from trainmover_executor.collectives.saves import BackgroundSave, BackgroundSaves, SaveLostError
from trainmover_executor.links.link import LinkBrokenError
from trainmover_executor.worker.adapters.checkpoints import adapt_checkpoints

STATE = {"weight": torch.ones(3)}


@pytest.fixture
def saves(monkeypatch: pytest.MonkeyPatch) -> BackgroundSaves:
    for module, name in (
        (dcp, "load"),
        (dcp, "async_save"),
        (state_dict_loader, "load"),
        (state_dict_saver, "async_save"),
    ):
        monkeypatch.setattr(module, name, getattr(module, name))
    made = BackgroundSaves()
    adapt_checkpoints(SimpleNamespace(saves=made))  # type: ignore[arg-type]
    return made


@pytest.fixture
def group() -> TrainMoverProcessGroup:
    engine: Any = SimpleNamespace(background=None)
    return TrainMoverProcessGroup(rank=0, size=1, name="saves", ranks=[0], engine=engine)


def test_a_save_without_a_group_of_its_own_is_refused(saves: BackgroundSaves) -> None:
    with saves.allowing(), pytest.raises(ConfigError, match=r"saves = dist\.new_group\(\)"):
        dcp.async_save(dict(STATE), checkpoint_id="folder")


def test_a_save_at_another_place_is_refused(
    saves: BackgroundSaves, group: TrainMoverProcessGroup
) -> None:
    del saves
    with pytest.raises(ConfigError, match=r"session\.between_steps"):
        dcp.async_save(dict(STATE), checkpoint_id="folder", process_group=group)


def test_a_process_of_its_own_is_refused(
    saves: BackgroundSaves, group: TrainMoverProcessGroup
) -> None:
    with saves.allowing(), pytest.raises(ConfigError, match="Leave out async_checkpointer_type"):
        dcp.async_save(
            dict(STATE),
            checkpoint_id="folder",
            process_group=group,
            async_checkpointer_type=AsyncCheckpointerType.PROCESS,
        )


@pytest.mark.filterwarnings("ignore:torch.distributed is disabled")
def test_one_rank_alone_saves_where_it_wants(saves: BackgroundSaves, tmp_path: Path) -> None:
    written: Any = dcp.async_save(dict(STATE), checkpoint_id=tmp_path / "one", no_dist=True)
    written.result()
    assert not saves.under_way
    loaded = {"weight": torch.zeros(3)}
    dcp.load(loaded, checkpoint_id=tmp_path / "one")
    assert loaded["weight"].tolist() == [1, 1, 1]


@pytest.fixture
def thread() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(1) as pool:
        yield pool


def test_a_group_that_saves_carries_nothing_else() -> None:
    with pytest.raises(CollectiveError, match="a group for saves alone"):
        BackgroundSave("folder").run(lambda _: None, SimpleNamespace())  # type: ignore[arg-type]


def test_an_operation_that_breaks_ends_the_save(thread: ThreadPoolExecutor) -> None:
    save = BackgroundSave("folder/40")
    run: Callable[..., Future[None]] = lambda work: thread.submit(save.run, work, None)  # noqa: E731 - as short

    def breaks(_: object) -> None:
        raise LinkBrokenError("rank 1 is gone")

    for work in (breaks, lambda _: None):
        with pytest.raises(SaveLostError, match="folder/40 is not complete"):
            run(work).result()


def test_to_give_up_waits_for_the_operation_that_uses_links(thread: ThreadPoolExecutor) -> None:
    save = BackgroundSave("folder")
    begun, ends = threading.Event(), threading.Event()

    def operation(_: object) -> None:
        begun.set()
        assert ends.wait(10)

    running = thread.submit(save.run, operation, None)  # type: ignore[arg-type]
    assert begun.wait(10)
    saves = BackgroundSaves()
    saves.began(save)
    save.began(running)
    assert saves.under_way
    with ThreadPoolExecutor(1) as other:
        giving_up = other.submit(saves.give_up)
        assert not giving_up.done()
        ends.set()
        giving_up.result(timeout=10)
    saves.wait()
    assert not saves.under_way
