"""A standby that waits compares what it would be given with what its rank was given."""

from __future__ import annotations

import dataclasses
import os
import select
import signal
import socket
import time
from collections import UserDict
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader, TensorDataset

from trainmover.errors import ConfigError
from trainmover_executor.checks import same_batches
from trainmover_executor.checks.same_batches import Drawn, GivenPrints, SameBatches
from trainmover_executor.feed.batches.prints import print_of_batch
from trainmover_executor.feed.trial import Trial


def _outcome(trial: Trial) -> dict[str, Any]:
    while (found := trial.outcome()) is None:
        select.select([trial._read], [], [], 0.05)  # until it has written, or has ended
    return found


# -- prints ----------------------------------------------------------------------------------------


@dataclasses.dataclass
class Sample:
    x: torch.Tensor
    name: str = "a"


def _images() -> torch.Tensor:
    return torch.arange(4 * 3 * 32 * 32, dtype=torch.float32).view(4, 3, 32, 32)


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ((torch.zeros(3), 1), (torch.zeros(3), 2)),
        ({"x": torch.zeros(3)}, {"y": torch.zeros(3)}),
        (["a", "b"], ["b", "a"]),
        (torch.zeros(3), torch.zeros(3, dtype=torch.int32)),
        (torch.zeros(2, 3), torch.zeros(3, 2)),
        (np.arange(5), np.arange(5) + 1),
        (np.array(["a", "b"]), np.array(["a", "c"])),
        (Sample(torch.zeros(2)), Sample(torch.ones(2))),
        (UserDict(x=torch.zeros(2)), UserDict(x=torch.ones(2))),
        (_images(), _images().flip(0)),
        (_images(), _images() + 1),
        (torch.zeros(2, dtype=torch.bfloat16), torch.ones(2, dtype=torch.bfloat16)),
        (torch.tensor(1), torch.tensor(2)),
        (1.0, 2.0),
    ],
)
def test_other_batches_have_other_prints(one: Any, other: Any) -> None:
    assert print_of_batch(one) != print_of_batch(other)


class Odd(torch.Tensor):
    """A tensor subclass of a library that wants none of what is asked of it."""

    @classmethod
    def __torch_function__(cls, *_: Any, **__: Any) -> Any:
        raise NotImplementedError


@pytest.mark.parametrize(
    "make",
    [
        lambda: [torch.ones(100, 100), {"label": torch.arange(5), "path": "a/b.jpg"}],
        lambda: torch.eye(3).to_sparse(),
        lambda: torch.zeros(0),
        lambda: torch.zeros(2, 0, 3),
        lambda: torch.ones(4, 4).t(),
        lambda: torch.ones(3).expand(2, 3),
        lambda: torch.nested.nested_tensor([torch.ones(2), torch.ones(3)], layout=torch.jagged),
        lambda: torch.zeros(3, device="meta"),
        lambda: np.array([object()], dtype=object),
        lambda: torch.ones(2).as_subclass(Odd),
        lambda: {1, 2, 3},
        object,
        lambda: torch.ones(3, dtype=torch.complex64),
        lambda: [list(range(1000))] * 1000,
    ],
)
def test_what_is_alike_has_the_same_print_and_nothing_raises(make: Callable[[], Any]) -> None:
    assert print_of_batch(make()) == print_of_batch(make())


# -- trials ----------------------------------------------------------------------------------------


def test_of_a_trial_nothing_stays_but_its_outcome() -> None:
    held = [1]

    def work() -> dict[str, Any]:
        held.append(2)
        return {"held": held}

    assert _outcome(Trial(work)) == {"held": [1, 2]}
    assert held == [1]


def test_a_trial_that_fails_has_no_outcome() -> None:
    def work() -> dict[str, Any]:
        raise ValueError("a thread that is not there")

    assert _outcome(Trial(work)) == {}


def test_a_trial_has_none_of_the_sockets() -> None:
    one, other = socket.socketpair()
    with one, other:
        trial = Trial(lambda: time.sleep(30) or {})
        one.close()
        other.settimeout(5)
        assert other.recv(1) == b""  # else the copy holds its end open
        trial.end()


def test_a_trial_reads_on_in_files_and_moves_none(tmp_path: Path) -> None:
    """A data set that streams from an archive goes on where it was."""
    path = tmp_path / "records"
    path.write_bytes(bytes(range(200)))
    with path.open("rb", buffering=0) as file, path.open("ab", buffering=0) as end:
        file.read(50)
        read = _outcome(Trial(lambda: {"read": list(file.read(100)), "at": end.tell()}))
        assert read == {"read": list(range(50, 150)), "at": 200}
        assert list(file.read(3)) == [50, 51, 52]


def test_a_trial_takes_nothing_from_a_pipe() -> None:
    read, write = os.pipe()
    os.write(write, b"what a decompressor gave")
    assert _outcome(Trial(lambda: {"read": os.read(read, 4).decode()})) == {}
    assert os.read(read, 100) == b"what a decompressor gave"


def test_a_program_may_ignore_what_becomes_of_its_children() -> None:
    before = signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    try:
        assert _outcome(Trial(lambda: {"done": True})) == {"done": True}
        Trial(lambda: time.sleep(30) or {}).end()
    finally:
        signal.signal(signal.SIGCHLD, before)


def test_a_trial_has_workers_of_its_own() -> None:
    """Which need the pipe of a process that keeps account of semaphores."""
    loader = DataLoader(TensorDataset(torch.arange(8)), batch_size=4, num_workers=2)
    expected = [batch.tolist() for (batch,) in loader]

    def work() -> dict[str, Any]:
        return {"batches": [batch.tolist() for (batch,) in loader]}

    deadline = time.monotonic() + 30
    while not Trial.is_possible() and time.monotonic() < deadline:
        time.sleep(0.01)
    assert _outcome(Trial(work)) == {"batches": expected}


def test_a_trial_that_hangs_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("trainmover_executor.feed.trial._PATIENCE_S", 0.1)
    assert _outcome(Trial(lambda: time.sleep(60) or {})) == {}


def test_a_trial_ends_with_the_process_that_began_it() -> None:
    read, write = os.pipe()
    pid = os.fork()
    if pid == 0:
        trial = Trial(lambda: time.sleep(60) or {})
        os.write(write, str(trial._pid).encode())
        time.sleep(60)
    tried = os.pidfd_open(int(os.read(read, 16)))
    os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)
    assert select.select([tried], [], [], 10)[0], "it lives on"


# -- comparisons -----------------------------------------------------------------------------------


class Standby:
    """A waiting standby, as far as comparisons go: trials run at once, in this process."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = 0.0
        self.said: list[tuple[str, int]] = []
        self.draws = 0
        self.check = SameBatches(differs=lambda what, batch: self.said.append((what, batch)))
        monkeypatch.setattr(same_batches, "Trial", _AtOnce)

    def sees(self, committed: int, drawn: GivenPrints, *, draws: Any, call: int = 1) -> None:
        def draw() -> Drawn:
            self.draws += 1
            if isinstance(draws, Exception):
                raise draws
            return Drawn(draws, whole=True) if isinstance(draws, int) else draws

        place = {"open": [[call, committed]], "committed": committed}
        self.check.look({"place": place, "prints": drawn.to_tree()}, now=self.now, draw=draw)


class _AtOnce:
    def __init__(self, work: Callable[[], dict[str, Any]]) -> None:
        self._found = work()

    is_possible = staticmethod(lambda: True)

    def outcome(self) -> dict[str, Any]:
        return self._found


def _drawn(*prints: tuple[int, int], call: int = 1) -> GivenPrints:
    drawn = GivenPrints()
    for committed, number in prints:
        drawn.add([[call, committed]], number)
    return drawn


def test_another_batch_is_said_once(monkeypatch: pytest.MonkeyPatch) -> None:
    standby = Standby(monkeypatch)
    standby.sees(4, _drawn((3, 33)), draws=999)
    standby.sees(4, _drawn((3, 33)), draws=999)
    assert not standby.said  # nobody knows yet what the rank is given there
    standby.sees(6, _drawn((3, 33), (4, 44), (5, 55)), draws=999)
    assert standby.said == [("it is another one than that of the rank", 5)]
    for committed in range(7, 300):
        standby.now += 10
        standby.sees(committed, _drawn((committed - 1, 1)), draws=999)
    assert len(standby.said) == 1


def test_the_same_batch_is_compared_again_ever_more_seldom(monkeypatch: pytest.MonkeyPatch) -> None:
    standby = Standby(monkeypatch)
    for committed in range(4000):
        standby.now += 1
        before = _drawn(*((each, each) for each in range(max(0, committed - 5), committed)))
        standby.sees(committed, before, draws=committed)
    assert not standby.said
    assert 8 <= standby.draws <= 16


def test_the_first_calls_begin_with_a_comparison(monkeypatch: pytest.MonkeyPatch) -> None:
    """What a program computes for an epoch is seen in it, and not minutes later."""
    standby = Standby(monkeypatch)
    for call in range(1, 8):
        for committed in range(4):
            before = _drawn(*((each, each) for each in range(committed)), call=call)
            standby.sees(committed, before, draws=committed, call=call)
    assert standby.draws == 3


def test_a_batch_that_was_given_too_long_ago_is_not_waited_for(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    standby = Standby(monkeypatch)
    standby.sees(4, _drawn(), draws=44)
    standby.sees(4, _drawn(), draws=44)
    standby.sees(900, _drawn((899, 1)), draws=1)  # it had been away
    standby.now += 10
    for committed in (901, 902, 903):
        standby.sees(committed, _drawn((901, 3), (902, 3)), draws=999)
    assert standby.said == [("it is another one than that of the rank", 902)]


def test_a_trial_may_take_longer_than_a_rank_remembers(monkeypatch: pytest.MonkeyPatch) -> None:
    standby = Standby(monkeypatch)
    waits = [None] * 200
    monkeypatch.setattr(
        _AtOnce, "outcome", lambda trial: waits.pop() if waits else trial._found, raising=True
    )
    for committed in range(4, 300):
        before = _drawn(*((each, each) for each in range(max(0, committed - 64), committed)))
        standby.sees(committed, before, draws=999)
    assert standby.said == [("it is another one than that of the rank", 5)]


def test_variables_that_did_not_come_are_no_difference(monkeypatch: pytest.MonkeyPatch) -> None:
    standby = Standby(monkeypatch)
    for committed in (4, 5, 6):
        standby.sees(committed, _drawn((4, 44), (5, 55)), draws=Drawn(999, whole=False))
    assert not standby.said


def test_no_room_for_a_process_is_no_difference(monkeypatch: pytest.MonkeyPatch) -> None:
    def no_room(_: Any) -> None:
        raise BlockingIOError(11, "Resource temporarily unavailable")

    standby = Standby(monkeypatch)
    no_room.is_possible = lambda: True  # type: ignore[attr-defined]
    monkeypatch.setattr(same_batches, "Trial", no_room)
    for committed in (4, 5, 6):
        standby.sees(committed, _drawn((4, 44)), draws=1)
    assert not standby.said


def test_data_that_has_ended_or_failed_is_no_difference(monkeypatch: pytest.MonkeyPatch) -> None:
    standby = Standby(monkeypatch)
    for committed in (4, 5, 6):
        standby.sees(committed, _drawn((4, 44)), draws=Drawn(None, whole=True))
    assert not standby.said


def test_data_that_is_refused_is_said_before_anything_happens(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    standby = Standby(monkeypatch)
    standby.sees(4, _drawn(), draws=ConfigError("the batches are others"))
    standby.sees(4, _drawn(), draws=ConfigError("the batches are others"))
    assert standby.said == [("the batches are others", 5)]


def test_a_rank_of_the_release_before_shows_no_prints(monkeypatch: pytest.MonkeyPatch) -> None:
    standby = Standby(monkeypatch)
    for committed in (4, 5, 100):
        place = {"open": [[1, committed]], "committed": committed}
        standby.check.look({"place": place}, now=0.0, draw=lambda: Drawn(1, whole=True))
    assert not standby.said
