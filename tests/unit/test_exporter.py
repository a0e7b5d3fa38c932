"""A job as numbers for Prometheus, computed from facts, and served."""

from __future__ import annotations

import asyncio
import os
import re
import signal
import subprocess
import sys
from datetime import datetime
from pathlib import Path

import httpx
import numpy as np
import pytest
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.parser import text_string_to_metric_families
from tests.unit import factories as make

from trainmover.bus.nats.bus import NatsBus
from trainmover.events.incident import IncidentClosed
from trainmover.job.plan import Forecast
from trainmover.job.topology import Frozen
from trainmover.telemetry.records import RECORD, Batch
from trainmover.tracing.observe import new_event
from trainmover_console.cli.exits import ExitCode
from trainmover_console.metrics.exporter import JobCollector, false_alarms
from trainmover_console.view.live import Watched

Samples = dict[tuple[str, frozenset[tuple[str, str]]], float]


def watched(*facts: Frozen) -> Watched:
    seen = Watched("j")
    for number, fact in enumerate((*make.FORMED, *facts)):
        seen.apply(make.said(fact, at_s=number))
    return seen


def scrape(seen: Watched, *, now: datetime) -> Samples:
    registry = CollectorRegistry()
    registry.register(JobCollector(seen, clock=lambda: now))
    return parse(generate_latest(registry).decode())


def parse(text: str) -> Samples:
    return {
        (sample.name, frozenset((k, v) for k, v in sample.labels.items() if k != "training_job")):
        sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }  # fmt: skip


def of(samples: Samples, name: str, **labels: str) -> float:
    return samples[f"trainmover_{name}", frozenset(labels.items())]


def test_the_job_its_machines_and_its_standbys() -> None:
    seen = watched(make.ready("node-2", 1), make.progress("node-0", 0, 12))
    found = scrape(seen, now=make.at(20))
    assert of(found, "step") == 12
    assert of(found, "epoch") == 1
    assert of(found, "step_seconds") == 0.25
    assert of(found, "job_state", **{"is": "running"}) == 1
    assert of(found, "job_state", **{"is": "held"}) == 0
    assert of(found, "machines", role="active") == 2
    assert of(found, "standbys_ready") == 1
    assert of(found, "slots") == 2
    assert of(found, "facts_total") == 7


def test_what_the_planner_says_is_there_once_it_was_asked_and_answers() -> None:
    seen = watched()
    assert not {name for name, _ in scrape(seen, now=make.at(20))} & {
        "trainmover_planner_up",
        "trainmover_ranks_unprotected",
    }
    seen.planner, seen.unprotected = True, 3
    found = scrape(seen, now=make.at(20))
    assert (of(found, "planner_up"), of(found, "ranks_unprotected")) == (1, 3)
    seen.unanswered()
    found = scrape(seen, now=make.at(20))
    assert of(found, "planner_up") == 0
    assert ("trainmover_ranks_unprotected", frozenset()) not in found


def test_a_standby_that_keeps_one_slot_warm_is_ready_with_one() -> None:
    frugal = make.registered("node-2", generation=1).model_copy(update={"warm_limit": 1})
    seen = watched(frugal, make.ready("node-2", 0))
    assert of(scrape(seen, now=make.at(20)), "standbys_ready") == 1


def test_a_standby_that_is_warm_for_one_slot_of_two_is_not_ready() -> None:
    assert of(scrape(watched(), now=make.at(20)), "standbys_ready") == 0


def test_a_pause_is_counted_once_and_never_taken_back() -> None:
    seen = watched(make.MOVE.proposed(), make.MOVE.preparing(), make.MOVE.committed())
    early = scrape(seen, now=make.at(8))
    assert of(early, "migrations_total", kind="planned", outcome="committed") == 1
    assert of(early, "migration_pause_seconds_count", kind="planned") == 0, "no rank reported yet"
    seen.apply(make.said(make.MOVE.resumed("node-0", 0, 0.02), at_s=9))
    found = scrape(seen, now=make.at(9))
    assert of(found, "migration_pause_seconds_count", kind="planned") == 1
    assert of(found, "migration_pause_seconds_sum", kind="planned") == 0.02
    assert of(found, "migration_pause_seconds_bucket", kind="planned", le="0.01") == 0
    assert of(found, "migration_pause_seconds_bucket", kind="planned", le="0.025") == 1
    assert of(found, "migration_pause_seconds_bucket", kind="planned", le="+Inf") == 1
    assert of(found, "migration_pause_seconds_count", kind="failure") == 0
    assert of(found, "migration_phase_seconds_sum", kind="planned", phase="proposed") == 1
    assert of(found, "steps_redone_total") == 0


@pytest.mark.parametrize(("pause_s", "held"), [(0.05, "yes"), (0.06, "no")])
def test_how_well_pauses_are_foreseen_is_counted(pause_s: float, held: str) -> None:
    expected = Forecast(pause_s=0.02, pause_most_s=0.05, measured=4, horizon_s=3_600)
    proposed = make.MOVE.proposed().model_copy(update={"forecast": expected})
    seen = watched(proposed, make.MOVE.committed())
    early = scrape(seen, now=make.at(8))
    assert [of(early, "pause_forecasts_total", held=one) for one in ("yes", "no")] == [0, 0]
    seen.apply(make.said(make.MOVE.resumed("node-0", 0, pause_s), at_s=9))
    found = scrape(seen, now=make.at(9))
    for one in ("yes", "no"):
        assert of(found, "pause_forecasts_total", held=one) == float(one == held)
    assert of(found, "pause_forecast_error_seconds_count") == 1
    assert of(found, "pause_forecast_error_seconds_sum") == pytest.approx(pause_s - 0.02)


def test_a_rank_that_never_reports_is_not_waited_for_for_ever() -> None:
    seen = watched(make.MOVE.proposed(), make.MOVE.committed())
    found = scrape(seen, now=make.at(60))
    assert of(found, "migration_phase_seconds_count", kind="planned", phase="proposed") == 1


def test_what_waits_for_an_operator_is_counted() -> None:
    found = scrape(watched(make.MOVE.proposed()), now=make.at(20))
    assert of(found, "approvals_waiting") == 1
    assert of(found, "migrations_under_way") == 0
    over = scrape(watched(make.MOVE.proposed(), make.MOVE.aborted("wrong")), now=make.at(20))
    assert of(over, "approvals_waiting") == 0
    assert of(over, "migrations_total", kind="planned", outcome="aborted") == 1


def test_an_incident_whose_machine_kept_its_slot_was_a_false_alarm() -> None:
    opened = make.straggler("node-1", 1)
    closed = IncidentClosed(id="i-1", reason="keeps up again")
    wrong = watched(opened, closed)
    assert [one.id for one in false_alarms(wrong.view)] == ["i-1"]
    assert of(scrape(wrong, now=make.at(20)), "false_alarms_total", kind="straggler") == 1
    right = watched(opened, make.MOVE.proposed(), make.MOVE.committed(), closed)
    assert false_alarms(right.view) == []
    still = watched(opened)
    assert of(scrape(still, now=make.at(20)), "incidents_open", kind="straggler") == 1
    assert of(scrape(still, now=make.at(20)), "false_alarms_total", kind="straggler") == 0


def test_lateness_has_a_series_for_each_rank() -> None:
    seen = watched()
    for rank, wait_ms in ((0, 50), (1, 10)):
        records = np.zeros(1, RECORD)
        records["rank"], records["duration_ns"] = rank, wait_ms * 1_000_000
        batch = Batch(job="j", machine=f"node-{rank}", generation=0, epoch=1, records=records)
        seen.add(batch)
    found = scrape(seen, now=make.at(20))
    late = of(found, "rank_lateness_seconds", rank="1", machine="node-1")
    assert late == pytest.approx(0.04)


async def test_it_is_served_and_written(nats_url: str, tmp_path: Path) -> None:
    async with NatsBus(nats_url) as bus:
        await bus.setup()
        for fact in (*make.FORMED, make.MOVE.proposed()):
            await bus.publish(new_event(job="j", source=make.source_of(fact), payload=fact))
    command = [
        sys.executable,
        "-m",
        "trainmover_console.cli",
        "metrics",
        "--job",
        "j",
        "--nats",
        nats_url,
    ]
    env = {**os.environ, "TRAINMOVER_HOME": str(tmp_path), "NO_COLOR": "1"}
    once = await asyncio.create_subprocess_exec(
        *command, "--once", env=env, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
    )
    text, _ = await once.communicate()
    assert of(parse(text.decode()), "approvals_waiting") == 1
    process = await asyncio.create_subprocess_exec(
        *command, "--port", "0", env=env, stderr=subprocess.PIPE
    )
    assert process.stderr is not None
    found = re.search(r"http://\S+", (await process.stderr.readline()).decode())
    assert found
    async with httpx.AsyncClient() as client, asyncio.timeout(20):
        while (answer := await client.get(found[0])).status_code == 503:  # noqa: ASYNC110 - another process reads the history
            await asyncio.sleep(0.05)
        assert answer.headers["content-type"].startswith("text/plain")
        assert of(parse(answer.text), "machines", role="active") == 2
        health = await client.get(found[0].replace("/metrics", "/healthz"))
        assert health.text == "the bus answers\n"
    process.send_signal(signal.SIGTERM)
    await process.communicate()
    assert process.returncode == ExitCode.OK
