"""What somebody who watches a job sees, from facts, telemetry and the time."""

from __future__ import annotations

import asyncio

import numpy as np
import pytest
from rich.console import Console, RenderableType
from tests.unit import factories as make

from trainmover.bus.memory.bus import MemoryBus
from trainmover.events import operator
from trainmover.events.machine import MachineLost
from trainmover.job.topology import Frozen
from trainmover.protocol.requests import AutomationStatus, JobStatus
from trainmover.telemetry.records import RECORD, Batch, encode_batch
from trainmover.tracing.observe import new_event
from trainmover_console.view.live import Watched, follow
from trainmover_console.view.terminal import plain_line, render


def watched(*facts: Frozen) -> Watched:
    seen = Watched("j")
    for number, fact in enumerate((*make.FORMED, *facts)):
        seen.apply(make.said(fact, at_s=number))
    return seen


def batch(rank: int, durations_ms: list[float]) -> Batch:
    records = np.zeros(len(durations_ms), RECORD)
    records["rank"] = rank
    records["step"] = range(len(durations_ms))
    records["sequence"] = range(len(durations_ms))
    records["duration_ns"] = [round(each * 1e6) for each in durations_ms]
    return Batch(job="j", machine=f"node-{rank}", generation=0, epoch=1, records=records)


def drawn(what: RenderableType) -> str:
    console = Console(width=140, no_color=True, force_terminal=False)
    with console.capture() as captured:
        console.print(what)
    return captured.get()


def test_the_pace_is_that_of_late_and_drops_when_nothing_moves() -> None:
    seen = Watched("j")
    for number in range(11):
        fact = make.progress("node-0", 0, 10 * number + 1)
        seen.apply(make.said(fact, at_s=number))
    assert seen.rate(make.at(10)) == 10.0
    assert seen.rate(make.at(20)) == 5.0, "ten seconds without a step"
    assert seen.rate(make.at(60)) is None


def test_the_picture_says_who_is_late_and_what_moves() -> None:
    seen = watched(make.straggler("node-1", 1), make.MOVE.proposed())
    seen.add(batch(0, [50, 50, 50]))
    seen.add(batch(1, [10, 20, 50]))
    text = drawn(render(seen, now=make.at(20)))
    assert "job j  running  epoch 1" in text
    (row,) = [line for line in text.splitlines() if line.startswith("1  ")]
    assert "node-1" in row
    assert "██" in row
    assert row.rstrip().endswith("0.000")
    assert "standbys: node-2 (ready for 1 of 2 slots)" in text
    assert "i-1 straggler node-1: node-1 is twice as slow" in text
    assert "trainmover migration approve|reject m-0001" in text
    assert "proposed 14.00 s ..." in text
    assert "incident.opened" in text


def test_a_finished_move_shows_its_phases_and_its_pause() -> None:
    seen = watched(make.MOVE.proposed(), make.MOVE.preparing(), make.MOVE.committed())
    seen.apply(make.said(make.MOVE.resumed("node-0", 0, 0.0213), at_s=9))
    text = drawn(render(seen, now=make.at(20)))
    assert "m-0001 planned node-1 -> node-2 in slot 1: proposed 1.00 s" in text
    assert "committed  pause 0.021 s" in text
    assert "waits for you" not in text


def test_bad_news_is_said() -> None:
    changed = operator.AutomationChanged(mode="paused", reason="night", requested_by="ada")
    seen = watched(MachineLost(machine="node-2", reason="its host is gone"), changed)
    seen.connected = False
    text = drawn(render(seen, now=make.at(20)))
    assert "automation paused" in text
    assert "the bus does not answer" in text
    assert "standbys: none" in text
    assert "lost: node-2 (its host is gone)" in text
    assert [line.bad for line in seen.lines if "machine.lost" in line.text] == [True]


def test_where_nothing_can_be_redrawn_the_latest_rank_is_named() -> None:
    seen = watched()
    seen.add(batch(0, [50, 50]))
    seen.add(batch(1, [10, 10]))
    assert plain_line(seen, now=make.at(20)).endswith("latest: rank 1 on node-1 by 0.040 s")


def test_telemetry_of_ranks_that_do_not_exist_is_left_out() -> None:
    seen = watched()
    seen.add(batch(7, [10]))
    assert seen.late_s(0, 5) == []


def test_data_for_machines_has_ranks_and_lines() -> None:
    seen = watched(make.MOVE.proposed())
    seen.add(batch(0, [50]))
    seen.add(batch(1, [10]))
    data = seen.as_data(make.at(20))
    late = {"rank": 1, "machine": "node-1", "late_s": [0.04], "behind_s": 0.04}
    assert data["ranks"][1] == late
    assert data["late_steps"] == [0]
    assert data["lines"][-1]["text"].startswith("migration.proposed")
    assert data["migrations"][0]["id"] == "m-0001"


@pytest.mark.parametrize(
    ("durations_ms", "behind"),
    [
        ([[50, 52], [52, 50]], {}),  # now the one, now the other: nobody
        ([[200, 200], [160, 160]], {1: 0.04}),
        ([[200, 200], [185, 185]], {}),  # 15 ms of a step of 250 ms
        ([[200, 160], [160, 200]], {}),  # both come late at times, as on a busy host
    ],
)
def test_who_comes_late_stands_out_of_the_others(
    durations_ms: list[list[float]], behind: dict[int, float]
) -> None:
    seen = watched(make.progress("node-0", 0, 2))
    assert seen.behind_s() == {}
    for rank, each in enumerate(durations_ms):
        seen.add(batch(rank, each))
    assert seen.behind_s() == pytest.approx(behind)


async def test_a_bus_feeds_it_and_the_planner_says_how_it_was_started() -> None:
    async with MemoryBus() as bus:
        await bus.setup()
        for fact in make.FORMED:
            await bus.publish(new_event(job="j", source=make.source_of(fact), payload=fact))

        async def answer(verb: str, body: bytes) -> bytes:
            assert verb == "status"
            told = AutomationStatus(mode="approval", reason="as the planner started")
            status = JobStatus(
                job="j",
                phase="running",
                reason="",
                epoch=1,
                step=0,
                membership=None,
                machines=(),
                standbys=(),
                migrations=(),
                incidents=(),
                automation=told,
                unprotected=2,
            )
            return status.model_dump_json().encode()

        await bus.serve("j", answer)
        seen, news = Watched("j"), asyncio.Event()
        async with asyncio.timeout(10), asyncio.TaskGroup() as tasks:
            task = tasks.create_task(follow(bus, seen, changed=news.set))
            while not (seen.current and seen.view.automation == "approval"):
                news.clear()
                await news.wait()
            for rank in range(2):
                await bus.send_telemetry("j", f"node-{rank}", encode_batch(batch(rank, [10])))
            fact = make.progress("node-0", 0, 5)
            await bus.publish(new_event(job="j", source="/machine/node-0", payload=fact))
            while seen.view.step != 5 or not seen.late_s(0, 1):
                news.clear()
                await news.wait()
            task.cancel()
        assert seen.view.standbys[0].name == "node-2"
        assert (seen.planner, seen.unprotected) == (True, 2)
        seen.unanswered()
        assert (seen.planner, seen.unprotected) == (False, None)


async def test_a_planner_that_does_not_answer_is_noticed() -> None:
    async with MemoryBus() as bus:
        await bus.setup()
        seen, news = Watched("j"), asyncio.Event()
        async with asyncio.timeout(10), asyncio.TaskGroup() as tasks:
            task = tasks.create_task(follow(bus, seen, changed=news.set))
            while seen.planner is None:
                news.clear()
                await news.wait()
            task.cancel()
        assert seen.planner is False
