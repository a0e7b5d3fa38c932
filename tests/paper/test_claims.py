"""The claims of the TrainMover paper (OSDI'26, arXiv 2412.12636), section by section.

Each test is named after a claim and shows it on real ranks or real links. Where this system does
better than the claim, the test shows the better.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
import torch
import torch.distributed as dist
from benchmarks.fabric import Fabric
from tests.integration.conftest import Gate, Run, outcome
from tests.support.ranks import Rank, RanksJob

from trainmover.events.executor import (
    PlanCommitted,
    PlanPrepared,
    PlanSwitched,
    StateFollowed,
    StepResumed,
)
from trainmover_executor.collectives.communicator.reduction import reduction_of
from trainmover_executor.collectives.sandbox.recording import Recording
from trainmover_executor.collectives.sandbox.stand_ins import SandboxCommunicator
from trainmover_executor.messages.worker import Warmed

pytestmark = pytest.mark.job

Start = Callable[..., tuple[RanksJob, Gate]]
Undisturbed = Callable[..., Run]
LONG = ("--steps", "200")


def moved(job: RanksJob, slot: int, *, standby: Rank, joiner: object) -> None:
    """A planned move of ``slot``, to its end."""
    plan = job.move(slot, standby, joiner)  # type: ignore[arg-type]
    for rank in job.ranks:
        if rank.spec.rank != slot:
            rank.expect(PlanCommitted)
    job.ranks[slot].process.kill()
    job.took(plan, standby)


class TestSection3Overview:
    """A machine is replaced without restarting the job or changing the parallel layout."""

    def test_world_size_ranks_and_stayers_processes_stay(
        self, start: Start, undisturbed: Undisturbed
    ) -> None:
        job, gate = start("ddp", *LONG)
        before = job.membership
        standby, joiner = job.standby("spare", 1)
        standby.expect(Warmed)
        gate.open()
        stayers = {rank.spec.rank: rank.process.pid for rank in job.ranks if rank.spec.rank != 1}
        moved(job, 1, standby=standby, joiner=joiner)
        assert job.membership.layout == before.layout
        assert [m.machine for m in job.membership.members] == ["m0", "spare", "m2", "m3"]
        assert {r: job.ranks[r].process.pid for r in stayers} == stayers
        assert outcome(job) == undisturbed("ddp", *LONG)

    def test_training_goes_on_while_the_joiner_prepares(self, start: Start) -> None:
        """Downtime is the switching phase alone: no step waits for phase 1."""
        job, gate = start("ddp", *LONG)
        standby, joiner = job.standby("spare", 2)
        standby.expect(Warmed)
        gate.open()
        job.move(2, standby, joiner, without=3)  # one rank does not prepare: the switch must wait
        for rank in (0, 1):
            job.ranks[rank].expect(PlanPrepared)
        assert {final["steps"] for final in outcome(job).finals} == {200}
        assert not [fact for fact in job.ranks[0].seen if isinstance(fact, PlanSwitched)]


class TestSection4Sandbox:
    """Shadow iterations warm a joiner up without any communication, and leave nothing behind."""

    def test_no_machine_of_the_job_helps_a_standby(self, start: Start) -> None:
        """All active ranks wait at a gate in their step, and the standby gets warm."""
        job, gate = start("ddp", "--steps", "8", gate_at=3)
        for rank in range(4):
            gate.wait_for(rank)
        standby, _ = job.standby("spare", 0)
        assert standby.expect(Warmed).shadow_iterations == 3
        gate.open()
        job.finish()

    def test_barriers_and_sends_are_bypassed(self) -> None:
        sandbox = SandboxCommunicator(rank=1)
        sandbox.barrier()
        sandbox.send(torch.ones(3), to=0, tag=0)
        own = torch.arange(4.0)
        sandbox.allreduce(own, reduction_of(dist.ReduceOp.SUM))
        assert own.tolist() == [0, 1, 2, 3]

    def test_recording_ends_with_the_first_iteration(self) -> None:
        """No cost in the steady state: the hook is removed."""
        recording = Recording()
        recording.begin_step()
        assert not recording.complete
        recording.begin_step()
        assert recording.complete
        kept = recording.nbytes
        recording.keep("late", [torch.ones(3)])
        assert recording.nbytes == kept


@pytest.fixture
def fabric() -> Iterator[Fabric]:
    fabric = Fabric(6)
    yield fabric
    fabric.close()


class TestSection5DeltaGroups:
    """Only the leaver's neighbours change a connection; the others' are inherited."""

    def test_the_delta_is_the_links_to_the_leaver(self, fabric: Fabric) -> None:
        leaver, parked = fabric.prepare(2)
        stayers = [process for process in fabric.processes if process.rank != 2]
        links = {process.rank: len(process.table.edges_to(range(6))) for process in stayers}
        for process in stayers:
            assert process.table.switch(fabric.membership) == parked[process.rank]
            process.rewind()
        assert {process.rank: len(process.table.edges_to(range(6))) for process in stayers} == links
        assert sum(parked.values()) * 2 < sum(links.values())
        fabric.everywhere(fabric.use)
        leaver.leave()

    def test_training_goes_on_over_the_old_group_in_phase_one(self, fabric: Fabric) -> None:
        leaver, _ = fabric.prepare(2)
        joiner, fabric.processes[2] = fabric.processes[2], leaver
        fabric.everywhere(fabric.use)
        joiner.leave()

    def test_phase_one_holds_no_communication_memory(self, fabric: Fabric) -> None:
        """Parked links are sockets; buffers come with the switch (INV-BYTES)."""
        leaver, parked = fabric.prepare(2)
        for process in fabric.processes:
            if process.rank != 2:
                idle = len(process.table.sockets()) - len(process.table.edges_to(range(6)))
                assert idle == parked[process.rank]
        leaver.leave()


class TestSection6GeneralStandby:
    """One standby, warm for every role, takes any slot of a pipeline."""

    @pytest.mark.parametrize(
        "slot",
        [pytest.param(0, marks=pytest.mark.soak), 2, pytest.param(3, marks=pytest.mark.soak)],
    )
    def test_first_middle_and_last_stage(
        self, slot: int, start: Start, undisturbed: Undisturbed
    ) -> None:
        job, gate = start("pp", *LONG)
        standby, joiner = job.standby("spare", slot)
        standby.expect(Warmed)
        gate.open()
        moved(job, slot, standby=standby, joiner=joiner)
        assert outcome(job) == undisturbed("pp", *LONG)


class TestSection7State:
    """The joiner's state is the leaver's; without redundancy everybody would roll back."""

    def test_without_replicas_nobody_rolls_back_here(
        self, start: Start, undisturbed: Undisturbed
    ) -> None:
        """The paper falls back to a checkpoint; a follower loses at most the running step."""
        job, gate = start("fsdp2", "--steps", "15")
        standby, joiner = job.standby("spare", 1)
        standby.expect(Warmed)
        assert job.ranks[2].expect(StateFollowed).rank == 1
        gate.wait_for(1)
        job.ranks[1].process.kill()
        gate.open()
        plan = job.recover(1, standby, joiner, source=2)
        redone = [job.ranks[r].expect(StepResumed).steps_redone for r in (0, 2, 3)]
        job.took(plan, standby)
        assert max(redone) <= 1
        assert outcome(job) == undisturbed("fsdp2", "--steps", "15")


class TestSection8Evaluation:
    """The loss curve does not change. The paper shows it in a figure; here it is bits."""

    def test_many_moves_leave_the_loss_as_it_was(
        self, start: Start, undisturbed: Undisturbed
    ) -> None:
        job, gate = start("batchnorm", *LONG)
        slots = (0, 2, 0)
        spares = [job.standby(f"spare-{number}", slot) for number, slot in enumerate(slots)]
        for standby, _ in spares:
            standby.expect(Warmed)
        gate.open()
        for slot, (standby, joiner) in zip(slots, spares, strict=True):
            moved(job, slot, standby=standby, joiner=joiner)
        assert outcome(job) == undisturbed("batchnorm", *LONG)
