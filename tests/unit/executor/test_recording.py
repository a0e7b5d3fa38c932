"""What the first steps' collectives returned, recorded and replayed."""

from __future__ import annotations

import asyncio
import socket
import threading
import time
from collections.abc import Sequence

import pytest
import torch
import torch.distributed as dist

from trainmover_executor.collectives.communicator.reduction import reduction_of
from trainmover_executor.collectives.sandbox import recording as recordings
from trainmover_executor.collectives.sandbox.recording import (
    Mark,
    Recording,
    RecordingCommunicator,
)
from trainmover_executor.collectives.sandbox.replay import Replay, ReplayingCommunicator
from trainmover_executor.collectives.sandbox.stand_ins import SandboxCommunicator
from trainmover_executor.training.loop import SHADOW_ITERATIONS
from trainmover_executor.worker.to_standbys.record import serve_recording, take_in

SUM = reduction_of(dist.ReduceOp.SUM)


class Sevens(SandboxCommunicator):
    """Stands for a real communicator: every result is full of sevens, times what is set."""

    times = 1

    def _fill(self, *outs: torch.Tensor) -> None:
        for out in outs:
            out.fill_(7 * self.times)

    def allreduce(self, tensor: torch.Tensor, reduction: object) -> None:
        self._fill(tensor)

    def reduce(self, tensor: torch.Tensor, reduction: object, *, root: int) -> None:
        self._fill(tensor)

    def reduce_scatter(self, out: torch.Tensor, inputs: object, reduction: object) -> None:
        self._fill(out)

    def all_gather(self, outs: Sequence[torch.Tensor], tensor: torch.Tensor) -> None:
        self._fill(*outs)

    def broadcast(self, tensor: torch.Tensor, *, root: int) -> None:
        self._fill(tensor)

    def recv(self, tensor: torch.Tensor, *, source: int, tag: int) -> None:
        self._fill(tensor)


class Pair:
    """An active rank that records, and the standby that replays."""

    def __init__(self) -> None:
        self.recording = Recording()
        self.real = Sevens(rank=0)
        self.active = RecordingCommunicator(self.real, group="0", recording=self.recording)
        self.replay = Replay(self.recording)
        self.standby = ReplayingCommunicator(rank=0, group="0", replay=self.replay)

    def step(self, times: int = 1) -> None:
        """A whole step with one all-reduce that returns ``7 * times``."""
        self.recording.begin_step()
        self.real.times = times
        self.active.allreduce(torch.zeros(3), SUM)
        self.recording.add(Mark.COMMIT)

    def replayed(self, size: int = 3) -> list[float]:
        mine = torch.ones(size)
        self.standby.allreduce(mine, SUM)
        return mine.tolist()


@pytest.fixture
def pair() -> Pair:
    return Pair()


def test_every_kind_of_result_comes_back(pair: Pair) -> None:
    pair.recording.begin_step()
    pair.replay.begin_step()
    for communicator in (pair.active, pair.standby):
        own, pieces, first = torch.ones(4), [torch.ones(2), torch.ones(2)], torch.ones(2)
        communicator.allreduce(own, SUM)
        communicator.reduce(own[:3], SUM, root=0)
        communicator.reduce_scatter(first, pieces, SUM)
        communicator.all_gather(pieces, torch.ones(2))
        sizes, message = torch.ones(1, dtype=torch.int64), torch.ones(5)
        communicator.broadcast(sizes, root=1)
        communicator.recv(message, source=1, tag=3)
        for result in (own, first, *pieces, sizes, message):
            assert set(result.tolist()) == {7}


def test_every_iteration_takes_the_results_of_the_first_step(pair: Pair) -> None:
    pair.active.allreduce(torch.zeros(3), SUM)  # the set-up
    pair.step(times=2)
    pair.step(times=3)
    assert pair.recording.complete
    assert pair.replayed() == [7.0] * 3
    for _ in range(SHADOW_ITERATIONS):
        pair.replay.begin_step()
        assert pair.replayed() == [14.0] * 3


def test_other_collectives_in_between_shift_nothing(pair: Pair) -> None:
    pair.step()
    pair.replay.begin_step()
    pair.recording.close()
    assert pair.replayed(size=99) == [1.0] * 99
    assert pair.replayed() == [7.0] * 3
    assert pair.replayed() == [1.0] * 3, "the step had one of these"


def test_a_result_that_is_too_large_is_a_stand_in(pair: Pair) -> None:
    pair.recording.begin_step()
    pair.active.allreduce(torch.zeros(100_000), SUM)
    pair.active.allreduce(torch.zeros(3), SUM)
    pair.replay.begin_step()
    assert set(pair.replayed(size=100_000)) == {1.0}
    assert pair.replayed() == [7.0] * 3
    assert pair.recording.dropped == 1


def test_numbers_leave_room_for_what_programs_look_at(
    pair: Pair, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(recordings, "_PART_LIMIT_BYTES", 100_000)
    monkeypatch.setattr(pair.recording, "_room", 100_000)
    for _ in range(10):
        pair.active.allreduce(torch.zeros(10_000), SUM)
    pair.active.broadcast(torch.zeros(5_000, dtype=torch.int64), root=1)
    assert pair.recording.nbytes == 80_000
    assert pair.recording.dropped == 9


def test_a_void_step_is_replayed_as_it_was_redone(pair: Pair) -> None:
    pair.recording.begin_step()
    for times in (1, 2):  # broken, then redone
        pair.real.times = times
        pair.active.allreduce(torch.zeros(3), SUM)
        pair.recording.add(Mark.VOID if times == 1 else Mark.COMMIT)
    pair.active.allreduce(torch.zeros(5), SUM)  # between this step and the next
    pair.recording.add(Mark.VOID)
    pair.recording.begin_step()
    pair.replay.begin_step()
    assert pair.replayed() == [14.0] * 3
    assert pair.replayed() == [1.0] * 3


def test_results_are_waited_for(pair: Pair) -> None:
    pair.replay.begin_step()
    later = threading.Timer(0.2, pair.step)
    later.start()
    assert pair.replayed() == [7.0] * 3
    later.join()


def test_what_cannot_come_in_this_step_is_not_waited_for(pair: Pair) -> None:
    pair.step()
    pair.recording.begin_step()
    pair.replay.begin_step()
    assert pair.replayed(size=99) == [1.0] * 99


def test_a_silent_rank_is_not_waited_for_without_end(pair: Pair) -> None:
    pair.recording.begin_step()
    began = time.monotonic()
    assert pair.recording.find(1, "0|allreduce", 0, patience_s=0.05) is None
    assert time.monotonic() - began < 30


def test_a_job_that_waits_for_the_standby_ends_its_waiting(
    pair: Pair, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(recordings, "_HASTE_S", 0.01)
    pair.recording.begin_step()
    later = threading.Timer(0.1, pair.recording.hurry)
    later.start()
    assert pair.recording.find(1, "0|recv", 0, patience_s=None) is None
    later.join()


async def test_a_recording_travels_while_it_grows(pair: Pair) -> None:
    ours, theirs = socket.socketpair()
    ours.setblocking(False)
    theirs.setblocking(False)
    copy = Recording()
    pair.recording.begin_step()
    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(serve_recording(ours, pair.recording))
        arriving = tasks.create_task(take_in(theirs, copy))
        pair.active.allreduce(torch.zeros(3), SUM)
        await asyncio.sleep(0)
        pair.recording.keep("exotic", [torch.zeros(2, dtype=torch.float8_e4m3fn)])
        pair.recording.add(Mark.COMMIT)
        pair.recording.close()
        await arriving
    theirs.close()
    copy.close()
    pair.replay = Replay(copy)
    pair.standby = ReplayingCommunicator(rank=0, group="0", replay=pair.replay)
    assert copy.committed == 1
    pair.replay.begin_step()
    assert pair.replayed() == [7.0] * 3
    assert copy.find(1, "exotic", 0, patience_s=None) is None
