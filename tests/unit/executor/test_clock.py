"""The clock: what a training process notes, and what is read of it from outside."""

from __future__ import annotations

import asyncio
import multiprocessing
import os
import random
import signal
import struct
import threading
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from trainmover.telemetry.records import OPS, Batch, Flag, Phase, decode_batch, encode_batch
from trainmover.telemetry.stages import STAGES
from trainmover_executor.agent.telemetry import TelemetryRelay
from trainmover_executor.clock.memory import ClockMemory, ClockShape, RingMemory
from trainmover_executor.clock.reader import ClockReader, RingReader
from trainmover_executor.clock.writer import CollectiveClock, Ring

NUMBERS = {"duration_ns": 9, "loader_ns": 1, "outside_ns": 2, "cpu_ns": 3}


def clock_and_reader(*, rank: int = 0, **shape: int) -> tuple[CollectiveClock, ClockReader]:
    """A clock in private memory and who reads it."""
    clock = CollectiveClock(rank=rank, memory=ClockMemory.private(ClockShape(**shape)))
    return clock, ClockReader(rank=rank, memory=clock.memory)


def test_records_are_read_once_and_in_order() -> None:
    clock, reader = clock_and_reader(rank=3)
    group = clock.group("g", range(4))
    clock.step = 7
    for size in (1, 2):
        group.leave(group.enter("allreduce", size=size))
    sections, dropped = reader.read()
    records = sections.records
    assert records["bytes"].tolist() == [1, 2]
    assert records["sequence"].tolist() == [0, 1]
    assert (set(records["rank"]), set(records["step"]), dropped) == ({3}, {7}, 0)
    assert (records["duration_ns"] > 0).all()
    assert len(reader.read()[0].records) == 0


def test_groups_are_said_once() -> None:
    clock = CollectiveClock(rank=0)
    group = clock.group("g", range(4))
    assert clock.has_new_groups
    assert clock.new_groups() == {group.id: (range(4),)}
    assert clock.new_groups() == {}
    assert not clock.has_new_groups
    assert clock.group_ids() == {"g": group.id}


def test_a_full_ring_drops_the_oldest_and_says_how_many() -> None:
    clock, reader = clock_and_reader(records=4)
    group = clock.group("g")
    for size in range(6):
        group.leave(group.enter("barrier", size=size))
    sections, dropped = reader.read()
    assert sections.records["bytes"].tolist() == [2, 3, 4, 5]
    assert dropped == 2


class TestRing:
    LAYOUT = struct.Struct("<q")
    DTYPE = np.dtype([("number", "<i8")])

    def memory(self, capacity: int) -> RingMemory:
        """A ring of bare numbers."""
        stamps, records = (memoryview(bytearray(8 * capacity)) for _ in range(2))
        return RingMemory(
            layout=self.LAYOUT, dtype=self.DTYPE, stamps=stamps.cast("q"), bytes=records
        )

    @given(st.lists(st.integers(0, 700), max_size=12), st.sampled_from([1, 7, 64, 300]))
    def test_each_record_comes_once_or_is_said_to_be_gone(
        self, bursts: list[int], capacity: int
    ) -> None:
        memory = self.memory(capacity)
        ring, reader, written = Ring(memory), RingReader(memory), 0
        for burst in bursts:
            for number in range(written, written + burst):
                ring.write(number)
            written += burst
            records, dropped = reader.read()
            kept = min(burst, capacity)
            assert dropped == burst - kept
            assert records["number"].tolist() == list(range(written - kept, written))

    def test_half_a_record_waits_until_it_is_whole(self) -> None:
        memory = self.memory(4)
        ring, reader = Ring(memory), RingReader(memory)
        for number in range(3):
            ring.write(number)
        memory.stamps[2] = 0  # the second is being written
        assert reader.read()[0]["number"].tolist() == [0]
        memory.stamps[2] = 2
        assert reader.read()[0]["number"].tolist() == [1, 2]

    def test_what_is_overwritten_while_it_is_copied_is_not_taken(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        memory = self.memory(4)
        ring, reader = Ring(memory), RingReader(memory)
        for number in range(4):
            ring.write(number)

        def lap() -> None:
            ring.write(4)
            memory.stamps[2] = 0  # and the sixth is on its way

        monkeypatch.setattr(os, "sched_yield", lap)
        records, dropped = reader.read()
        assert records["number"].tolist() == [2, 3]
        assert dropped == 2


def test_what_runs_is_seen_until_it_is_over() -> None:
    clock, reader = clock_and_reader(rank=1, running=2)
    group = clock.group("g")
    first = group.enter("allreduce", size=8)
    message = group.enter("send", size=4, peer=3)
    unseen = group.enter("allreduce", size=8)
    assert unseen == -1
    clock.beat()
    running = reader.read()[0].open
    assert running["sequence"].tolist() == [0, 0]
    assert running["peer"].tolist() == [-1, 3]
    assert (running["duration_ns"] > 0).all()
    group.leave(first, complete=False)
    group.leave(message)
    group.leave(unseen)
    clock.beat()
    sections, _ = reader.read()
    assert len(sections.open) == 0
    assert [OPS[op] for op in sections.records["op"]] == ["send"]
    assert group.issued == 2
    group.rewind()
    group.leave(group.enter("send", size=4, peer=3))
    assert reader.read()[0].records["sequence"].tolist() == [0]


def test_an_operation_that_begins_while_it_is_looked_at_is_seen_the_next_time(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    clock, reader = clock_and_reader()
    group = clock.group("g")
    slots = [group.enter("allreduce", size=size) for size in (1, 2)]

    def another_in_its_place() -> None:
        group.leave(slots[0])
        clock.memory.busy[slots[0]] = time.perf_counter_ns()

    monkeypatch.setattr(os, "sched_yield", another_in_its_place)
    clock.beat()
    assert reader.read()[0].open["bytes"].tolist() == [2]


def test_who_stands_still_says_how_far_it_is() -> None:
    clock, reader = clock_and_reader(rank=2)
    groups = [clock.group(name) for name in ("a", "b")]
    for count, group in enumerate(groups):
        for _ in range(count + 1):
            group.leave(group.enter("barrier", size=0))
    assert not clock.beat()
    assert len(reader.read()[0].heads) == 0
    groups[0].enter("allreduce", size=8)
    assert clock.beat()
    sections, _ = reader.read()
    heads = zip(sections.heads["group"].tolist(), sections.heads["issued"].tolist(), strict=True)
    assert dict(heads) == {groups[0].id: 2, groups[1].id: 2}
    assert len(sections.open) == 1
    # No sign of life since: nothing is known about what it does.
    sections, _ = reader.read()
    assert (len(sections.open), len(sections.heads), len(sections.pulses)) == (0, 0, 0)


def test_more_groups_than_there_are_rows_are_numbered_all_the_same() -> None:
    clock, reader = clock_and_reader(groups=1)
    groups = [clock.group(name) for name in ("a", "b")]
    for group in groups:
        group.leave(group.enter("barrier", size=0))
        slot = group.enter("barrier", size=0)
    assert [group.issued for group in groups] == [2, 2]
    assert reader.read()[0].records["sequence"].tolist() == [0, 0]
    group.leave(slot)
    reader.read()
    clock.beat()
    assert reader.read()[0].heads["group"].tolist() == [groups[0].id]


def test_a_sign_of_life_says_since_when_the_rank_does_what() -> None:
    clock, reader = clock_and_reader(rank=5)
    clock.step = 12
    clock.enter_phase(Phase.OUTSIDE)
    began = time.perf_counter_ns()
    clock.beat()
    (pulse,) = reader.read()[0].pulses
    assert (pulse["rank"], pulse["phase"], pulse["step"]) == (5, Phase.OUTSIDE, 12)
    assert 0 <= pulse["phase_ns"] <= time.perf_counter_ns() - began + 1_000_000


def test_a_step_adds_up_its_waits_once() -> None:
    clock, reader = clock_and_reader()
    group = clock.group("g")
    found = []
    before = time.perf_counter_ns()
    for step in (4, 5):
        clock.step = step
        slots = [group.enter("allreduce", size=8), group.enter("allreduce", size=8)]
        found.append(reader.read()[0].steps)  # half a step may be read
        for slot in slots:
            group.leave(slot)
        clock.note_nonfinite(step)
        clock.committed(step=step, flags=Flag.LOSS, loss=0.5, checksum=1 << 63, **NUMBERS)
    elapsed = time.perf_counter_ns() - before
    steps = np.concatenate([*found, reader.read()[0].steps])
    assert steps["step"].tolist() == [4, 5]
    assert steps["ops"].tolist() == [2, 2]
    assert 0 < steps["wait_ns"].sum() <= elapsed
    assert steps["signature"][0] == steps["signature"][1] != 0
    assert steps["nonfinite"].tolist() == [4, 5]
    assert steps["checksum"].tolist() == [1 << 63] * 2


def test_what_is_skipped_never_counts() -> None:
    clock, reader = clock_and_reader()
    group = clock.group("g")
    group.leave(group.enter("barrier", size=0))
    reader.read()
    group.leave(group.enter("barrier", size=0))
    reader.skip()
    group.leave(group.enter("barrier", size=0))
    clock.committed(step=0, flags=Flag.LOSS, loss=0.5, checksum=0, **NUMBERS)
    sections, dropped = reader.read()
    assert (len(sections.records), dropped) == (1, 0)
    assert sections.steps["ops"].tolist() == [1]


def test_writers_of_many_threads_lose_nothing() -> None:
    clock, reader = clock_and_reader(records=8192)
    found, over = [], threading.Event()

    def write(name: str) -> None:
        group = clock.group(name)
        for size in range(2000):
            group.leave(group.enter("barrier", size=size))

    def read() -> None:
        while not over.is_set():
            found.append(reader.read())

    writers = [threading.Thread(target=write, args=(f"g{n}",)) for n in range(4)]
    looking = threading.Thread(target=read)
    for thread in (looking, *writers):
        thread.start()
    for thread in writers:
        thread.join()
    over.set()
    looking.join()
    found.append(reader.read())
    records = np.concatenate([sections.records for sections, _ in found])
    assert sum(dropped for _, dropped in found) == 0
    for group in set(records["group"].tolist()):
        assert records["bytes"][records["group"] == group].tolist() == list(range(2000))


class Machine:
    """A relay with one worker, and what it sent."""

    def __init__(self, *, period_s: float = 0.5) -> None:
        self.sent: asyncio.Queue[Batch] = asyncio.Queue()
        self.trains = True
        self.relay = TelemetryRelay(
            job="j",
            machine="m",
            now=lambda: (0, 1),
            send=self._send,
            trains=lambda _: self.trains,
            period_s=period_s,
        )
        memory = ClockMemory.private()
        self.relay.watch("w", 0, memory)
        self.clock = CollectiveClock(rank=0, memory=memory)
        self.clock.enter_epoch(1)
        self.group = self.clock.group("g")

    async def _send(self, data: bytes) -> None:
        self.sent.put_nowait(decode_batch(data))

    def commit(self) -> None:
        """Complete a step."""
        self.clock.committed(step=0, flags=Flag.LOSS, loss=0.5, checksum=0, **NUMBERS)

    def work(self, *sizes: int) -> None:
        """Complete operations of these sizes."""
        for size in sizes:
            self.group.leave(self.group.enter("allreduce", size=size))


async def test_a_rank_that_stands_still_is_reported_long_before_its_turn() -> None:
    machine = Machine(period_s=3600)
    machine.work(1)
    machine.relay.look()
    machine.group.enter("allreduce", size=2)
    machine.clock.beat()
    running = asyncio.create_task(machine.relay.run())
    async with asyncio.timeout(20):
        batch = await machine.sent.get()
    running.cancel()
    assert batch.more.open["bytes"].tolist() == [2]
    assert batch.more.heads["issued"].tolist() == [2]


async def test_what_a_standby_did_before_it_joined_is_not_the_jobs() -> None:
    machine = Machine()
    machine.trains = False
    machine.work(1, 2)
    machine.relay.look()
    machine.trains = True
    machine.work(3)
    machine.relay.look()
    (batch,) = machine.relay.take()
    assert batch.records["bytes"].tolist() == [3]


async def test_operations_are_counted_where_the_detector_wants_it_and_sent_again_after() -> None:
    machine = Machine()
    said = []
    for stages in ((), STAGES, ("nobody knows",), ()):
        machine.relay.place(stages)
        machine.work(1, 2)
        machine.commit()
        machine.relay.look()
        (batch,) = machine.relay.take()
        said.append((len(batch.records), batch.more.activity.tolist(), len(batch.more.steps)))
    sent = (2, [], 1)
    assert said == [sent, (0, [(0, 2)], 1), sent, sent]


async def test_the_first_step_with_a_nan_is_in_the_batches_after_it_as_well() -> None:
    machine = Machine()
    said = []
    for step, loss in enumerate((0.5, float("nan"), float("nan"))):
        machine.clock.committed(step=step, flags=Flag.LOSS, loss=loss, checksum=0, **NUMBERS)
        machine.relay.look()
        (batch,) = machine.relay.take()
        said.append(batch.more.steps["step"].tolist())
    (after,) = machine.relay.take()
    assert [*said, after.more.steps["step"].tolist()] == [[0], [1], [1, 2], [1]]


async def test_what_was_too_much_for_a_message_is_counted_whole() -> None:
    machine = Machine()
    lost = {}
    for stages in ((), STAGES):
        machine.relay.place(stages)
        for _ in range(4):
            machine.work(*range(4_000))
            machine.relay.look()
        machine.commit()
        machine.relay.look()
        (batch,) = machine.relay.take()
        lost[stages] = 16_000 - len(batch.records) - batch.more.activity["operations"].sum()
        assert batch.dropped == lost[stages]
    assert lost[()] > 0
    assert lost[STAGES] == 0


async def test_what_a_process_did_last_is_in_the_batch_after_its_end() -> None:
    machine = Machine()
    machine.work(1)
    machine.clock.beat()
    machine.relay.look()
    machine.work(2)
    machine.relay.forget("w")
    (batch,) = machine.relay.take()
    assert batch.records["bytes"].tolist() == [1, 2]
    assert len(batch.more.pulses) == 0


@pytest.mark.parametrize("seed", range(40))
async def test_wild_writes_of_the_program_cost_its_telemetry_and_nothing_else(seed: int) -> None:
    machine = Machine()
    machine.work(1)
    memory = machine.clock.memory
    noise = random.Random(seed)
    for words in (memory.words, memory.records.stamps, memory.steps.stamps, memory.busy):
        at = noise.randrange(len(words))
        words[at] = noise.choice([-1, -(1 << 63), (1 << 63) - 1, noise.getrandbits(40)])
    for _ in range(3):
        machine.clock.beat()
        machine.relay.look()
        assert [decode_batch(encode_batch(batch)).machine for batch in machine.relay.take()]


def in_another_process(work: Callable[..., None], *arguments: Any) -> multiprocessing.Process:
    """Run ``work`` in a forked process: descriptors are inherited as a worker's are."""
    process = multiprocessing.get_context("fork").Process(target=work, args=arguments)
    process.start()  # type: ignore[attr-defined]
    return process  # type: ignore[return-value]


def test_another_process_writes_while_this_one_reads() -> None:
    memory, descriptor = ClockMemory.shared()
    reader = ClockReader(rank=0, memory=memory)
    count = 30_000

    def write() -> None:
        clock = CollectiveClock(rank=0, memory=ClockMemory.attach(descriptor))
        group = clock.group("g")
        for size in range(count):
            group.leave(group.enter("allreduce", size=size))
            if size % 100 == 0:
                clock.beat()

    process = in_another_process(write)
    os.close(descriptor)
    found, lost = [], 0
    while process.is_alive():
        sections, dropped = reader.read()
        found.append(sections.records)
        lost += dropped
        for row in sections.open:
            assert row["bytes"] == row["sequence"]
    process.join()
    sections, dropped = reader.read()
    records = np.concatenate([*found, sections.records])
    assert process.exitcode == 0
    assert len(records) + lost + dropped == count
    assert (records["bytes"] == records["sequence"]).all()
    assert (np.diff(records["bytes"]) > 0).all()


def test_what_a_killed_process_wrote_is_there() -> None:
    memory, descriptor = ClockMemory.shared()
    reader = ClockReader(rank=0, memory=memory)

    def write() -> None:
        clock = CollectiveClock(rank=0, memory=ClockMemory.attach(descriptor))
        clock.enter_epoch(4)
        group = clock.group("g")
        group.leave(group.enter("allreduce", size=1))
        group.enter("allreduce", size=2)
        clock.beat()
        os.kill(os.getpid(), signal.SIGKILL)

    process = in_another_process(write)
    os.close(descriptor)
    process.join()
    sections, _ = reader.read()
    assert process.exitcode == -signal.SIGKILL
    assert reader.epoch == 4
    assert sections.records["bytes"].tolist() == [1]
    assert sections.open["bytes"].tolist() == [2]
