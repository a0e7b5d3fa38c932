"""What becomes of operations that fail, and of those that nobody would answer."""

from __future__ import annotations

import threading
from datetime import timedelta

import pytest
import torch
import torch.distributed as dist
from tests.unit.executor.decisions import active, plan
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from trainmover.errors import ProtocolError
from trainmover.telemetry.records import Flag
from trainmover_executor.clock.reader import ClockReader
from trainmover_executor.clock.writer import CollectiveClock
from trainmover_executor.collectives.communicator.reduction import Reduction
from trainmover_executor.collectives.engine import GroupEngine
from trainmover_executor.collectives.latch import Latch
from trainmover_executor.collectives.process_group import TrainMoverProcessGroup
from trainmover_executor.collectives.sandbox.stand_ins import SandboxCommunicator
from trainmover_executor.decisions.effects import Agreed, HandedOut, Recovers, Stopped, VoteBroke
from trainmover_executor.decisions.shell import RankDecisions


class Peerless:
    """A communicator whose all-reduces fail for the program's own reason, once it is told to."""

    def __init__(self) -> None:
        self.calls = 0
        self.fails = False
        self.blocks: threading.Event | None = None

    def allreduce(self, tensor: torch.Tensor, reduction: Reduction) -> None:
        self.calls += 1
        if self.blocks is not None:
            assert self.blocks.wait(20)
        if self.fails:
            raise ProtocolError("rank 1 is in another collective of group 'g'")

    def __getattr__(self, name: str) -> object:
        return getattr(SandboxCommunicator(rank=0), name)


@pytest.fixture
def role() -> RankDecisions:
    return RankDecisions(active())


@pytest.fixture
def communicator() -> Peerless:
    return Peerless()


@pytest.fixture
def group(role: RankDecisions, communicator: Peerless) -> TrainMoverProcessGroup:
    latch = Latch(role)
    latch.protected = True
    engine = GroupEngine(
        group="g",
        ranks=[0],
        communicator=communicator,
        real=communicator,
        sandbox=SandboxCommunicator(rank=0),
        latch=latch,
        clock=CollectiveClock(rank=0),
    )
    return TrainMoverProcessGroup(rank=0, size=1, name="g", ranks=[0], engine=engine)


def test_an_error_of_the_program_reaches_it_through_ddp(group, communicator):
    """C++ must not see it: it would look for tensors in the error, and die of that."""
    model = DistributedDataParallel(nn.Linear(2, 2), process_group=group)
    communicator.fails = True
    model(torch.ones(1, 2)).sum().backward()
    with pytest.raises(ProtocolError, match="in another collective"):
        group.engine.drain()
    with pytest.raises(ProtocolError, match="in another collective"):
        group.barrier()


def test_what_several_queues_find_at_the_same_time_is_added_up(group, monkeypatch):
    both = threading.Barrier(2, timeout=20)

    def found_by_both(tensors):
        both.wait()
        return len(tensors)

    monkeypatch.setattr("trainmover_executor.collectives.engine.nonfinite_in", found_by_both)
    clock = group.engine._timing
    for key in ("one", "other"):
        tensor = torch.zeros(2)
        reduces = [tensor] * 3
        group.engine.run("allreduce", lambda _: None, [tensor], queue_key=key, reduces=reduces)
    group.engine.drain()
    reader = ClockReader(rank=0, memory=clock.memory)
    times = dict.fromkeys(("duration_ns", "loader_ns", "outside_ns", "cpu_ns"), 0)
    clock.committed(step=0, flags=Flag.LOSS, loss=0.5, checksum=0, **times)
    assert reader.read()[0].steps["nonfinite"].tolist() == [6]


def test_an_error_of_the_program_is_raised_where_it_waits(group, communicator):
    communicator.fails = True
    work = group.allreduce([torch.ones(1)])
    with pytest.raises(ProtocolError, match="in another collective"):
        work.wait()
    assert work.is_completed()
    assert not work.is_success()
    assert isinstance(work.exception(), ProtocolError)


def test_an_operation_in_a_callback_of_another_is_refused(group, communicator):
    communicator.blocks = threading.Event()
    first = group.allreduce([torch.ones(1)])
    then = first.get_future().then(lambda _: group.allreduce([torch.ones(1)]))
    communicator.blocks.set()
    with pytest.raises(RuntimeError, match="PowerSGD"):
        then.wait()
    with pytest.raises(ProtocolError, match=r"in a callback of another operation's future"):
        group.allreduce([torch.ones(1)])


def test_a_wait_ends_at_its_timeout(group, communicator):
    """Whoever waits is told; what it waited for is not undone."""
    options = dist.BarrierOptions()
    options.timeout = timedelta(milliseconds=20)
    communicator.blocks = threading.Event()
    slow = group.allreduce([torch.ones(1)])
    with pytest.raises(ProtocolError, match=r"allreduce is not complete after 0\.01 s"):
        slow.wait(timedelta(milliseconds=10))
    with pytest.raises(ProtocolError, match=r"barrier is not complete after 0\.02 s"):
        group.barrier(options).wait()
    communicator.blocks.set()
    assert slow.wait(timedelta(seconds=20))


def test_a_destroyed_group_keeps_no_thread(group):
    before = set(threading.enumerate())
    group.allreduce([torch.ones(1)]).wait()
    (working,) = set(threading.enumerate()) - before
    group.shutdown()
    working.join(timeout=20)
    assert not working.is_alive()
    group.allreduce([torch.ones(1)]).wait()  # and is still one


def test_what_follows_a_step_that_recovery_found_committed_is_not_sent(group, communicator, role):
    recovery = plan(2, kind="failure")
    role.take(VoteBroke("rank 2 is gone", cast=True))
    role.take(Stopped())
    role.take(Recovers(recovery))
    role.take(Agreed(recovery, 1, 0))
    group.allreduce([torch.ones(1)]).wait()
    assert communicator.calls == 0
    role.take(HandedOut(recovery))
    group.allreduce([torch.ones(1)]).wait()
    assert communicator.calls == 1


def test_tensors_made_in_inference_mode_are_written_to(
    group: TrainMoverProcessGroup, communicator: Peerless
) -> None:
    """An evaluation's sums; the thread that carries them has a mode of its own."""
    communicator.allreduce = lambda tensor, _: tensor.mul_(2)  # type: ignore[method-assign]
    with torch.inference_mode():
        total = torch.ones(3)
        work = group.allreduce([total], dist.AllreduceOptions())
        work.wait()
    assert total.tolist() == [2, 2, 2]
