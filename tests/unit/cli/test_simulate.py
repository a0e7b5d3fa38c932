"""``trainmover simulate``, as it is used."""

from __future__ import annotations

import asyncio
import importlib.util
import json
import re
import struct
from dataclasses import replace
from pathlib import Path
from typing import Any
from xml.etree import ElementTree as ET

import numpy as np
import pytest
from matplotlib.image import imread
from tests.unit.factories import said
from tests.unit.simulator.own_times import DAY, SLOTS, facts_of, history, step
from typer.testing import CliRunner

from trainmover.bus.nats.bus import NatsBus
from trainmover.detection.evaluation.recording import Recorder
from trainmover.job.topology import Frozen
from trainmover_console.cli.app import app
from trainmover_simulator.systems import SYSTEMS


def ask(*words: str) -> tuple[int, str, str]:
    found = CliRunner().invoke(app, ["simulate", *words])
    return found.exit_code, found.stdout, found.stderr


def data(*words: str) -> dict[str, Any]:
    code, text, errors = ask(*words, "--json")
    assert code == 0, errors
    answer: dict[str, Any] = json.loads(text)
    return answer


def test_a_week_of_64k_gpus_is_small_and_quick() -> None:
    found = data("--gpus", "65536", "--days", "7", "--compare", "all")
    assert [row["system"] for row in found["rows"]] == list(SYSTEMS)
    assert all(
        {"ettr", "wasted_gpu_hours_per_week", "interruptions", "standbys_used"} <= row.keys()
        for row in found["rows"]
    )
    assert found["wall_s"] < 60
    assert found["peak_bytes"] < 2 * 1024**3
    rows = {row["system"]: row["wasted_gpu_hours_per_week"] for row in found["rows"]}
    assert rows["trainmover"] < rows["trainmover-cold"] < rows["restart"]


def test_the_same_seed_gives_the_same_rows() -> None:
    words = ("--gpus", "16384", "--seed", "7")
    assert data(*words)["rows"] == data(*words)["rows"]
    assert data(*words)["rows"] != data("--gpus", "16384", "--seed", "8")["rows"]


def test_a_million_gpus_can_be_asked_for() -> None:
    found = data("--gpus", "1000000", "--compare", "trainmover,restart", "--standbys", "200")
    assert found["wall_s"] < 60
    assert all(0 <= row["ettr"] <= 1 for row in found["rows"])


SWEEP = ("--gpus", "8192", "--sweep", "standbys", "0..4")


def test_people_get_tables_sources_and_a_page(tmp_path: Path) -> None:
    page = tmp_path / "out" / "page.html"
    code, text, errors = ask(*SWEEP, "--plot", str(page))
    assert code == 0
    assert re.search(r"^restart +\d+\.\d+%", text, re.MULTILINE)
    assert re.search(r"least waste with \d standbys", text)
    assert "TrainMover 8.2" in text.replace("\n", " ")
    assert str(page) in errors.replace("\n", "")
    html = page.read_text(encoding="utf-8")
    assert html.count("<svg") == 2
    assert html.count("<polyline") == len(SYSTEMS) + 1
    assert not re.search(r"(src|href)=|https?://|<script", html)


def test_a_plot_is_a_file_of_its_own(tmp_path: Path) -> None:
    svg, png = tmp_path / "plot.svg", tmp_path / "plot.PNG"
    least = data(*SWEEP, "--plot", str(svg), "--plot", str(png))["least_waste"]
    drawing = ET.fromstring(svg.read_text(encoding="utf-8"))
    curves = [one for one in drawing.iter() if one.tag.endswith("polyline")]
    assert len(curves) == len(SYSTEMS) + 1
    words = {one.text for one in drawing.iter() if one.tag.endswith("text")}
    assert words >= {*(one.title for one in SYSTEMS.values()), "standbys", f"least: {least}"}
    assert "var(" not in svg.read_text(encoding="utf-8")  # few readers but browsers know them
    size = struct.unpack(">II", png.read_bytes()[16:24])
    assert size == (1200, 1008)
    assert len(np.unique(imread(png)[..., :3].reshape(-1, 3), axis=0)) > len(SYSTEMS)


def test_a_picture_that_cannot_be_drawn_is_refused_before_the_work(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    code, text, errors = ask(*SWEEP, "--plot", str(tmp_path / "plot.png"))
    assert (code, text) == (2, "")
    assert "trainmover[plots]" in errors
    assert data(*SWEEP, "--plot", str(tmp_path / "plot.svg"))["rows"]


def test_a_sweep_has_each_number_of_standbys() -> None:
    found = data("--gpus", "8192", "--compare", "trainmover", "--sweep", "standbys", "0..8")
    assert [row["standbys"] for row in found["sweep"]] == list(range(9))
    waste = [row["wasted_gpu_hours_per_week"] for row in found["sweep"]]
    assert waste.index(min(waste)) == found["least_waste"]


def test_the_planners_core_is_asked_as_well() -> None:
    found = data("--gpus", "1024", "--days", "30", "--standbys", "3", "--planner")["planner"]
    model = found["model"]
    assert found["recoveries"] + found["moves"] + found["restarts"] == model["interruptions"]
    assert found["standbys_used"] == model["standbys_used"] > 0


def test_assumptions_can_be_changed() -> None:
    words = ("--gpus", "8192", "--compare", "trainmover", "--days", "70")
    before = data(*words)["rows"][0]["ettr"]
    for change in ("detect_s=600", "trainmover.standby_s=600"):
        found = data(*words, "--set", change)
        assert found["rows"][0]["ettr"] < before - 0.01
        assert found["assumptions"]["changed"] == [change]


def test_failures_come_from_a_file(tmp_path: Path) -> None:
    path = tmp_path / "failures.csv"
    path.write_text("at_s,slots,kind\n60,3,\n7200,8-15,rack\n", encoding="utf-8")
    found = data("--gpus", "1024", "--days", "1", "--failures", str(path))
    assert {row["interruptions"] for row in found["rows"]} == {2, 4}
    assert str(path) in found["failures"]


def own_times() -> list[tuple[float, Frozen]]:
    """A day of a job with 8 machines and 2 standbys that were needed now and then."""
    facts = facts_of(DAY, history(days=0.5))
    return [*facts, step(facts[0][0] + 86_400, 1)]


def test_a_recorded_job_says_what_a_standby_is_worth(tmp_path: Path) -> None:
    path = tmp_path / "job.tmrec.gz"
    with Recorder(path) as recorder:
        for at_s, fact in own_times():
            recorder.fact(0.0, fact, said_s=at_s - 100_000)  # all of it before the recording began
    found = data("--from", str(path))
    assert (found["gpus"], found["standbys"], found["scenario"]) == (SLOTS, 2, "job")
    assert [row["standbys"] for row in found["sweep"]] == [1, 2, 3]
    assert found["observed"]["interruptions"] == len(history(days=0.5)) > 10
    assert any("detection: 7 s" in line for line in found["assumptions"]["surroundings"])
    assert "this job: " in found["failures"]
    short = [row["standbys_short"] for row in found["sweep"]]
    assert short == sorted(short, reverse=True)
    code, text, _ = ask("--from", str(path))
    assert code == 0
    assert re.search(r"^one standby more: [+-].* GPU-hours wasted a week", text, re.MULTILINE)
    assert re.search(r"^one standby fewer: [+-].* GPU-hours wasted a week", text, re.MULTILINE)
    # What is said comes before what was observed.
    other = data("--from", str(path), "--gpus", "64", "--set", "detect_s=600", "--days", "7")
    assert (other["gpus"], other["days"]) == (64, 7)
    assert other["rows"][-1]["ettr"] < found["rows"][-1]["ettr"]


def test_a_running_job_says_the_same_over_its_bus(nats_url: str, tmp_path: Path) -> None:
    facts = own_times()
    path = tmp_path / "job.tmrec.gz"
    with Recorder(path) as recorder:
        for at_s, fact in facts:
            recorder.fact(at_s, fact)

    async def tell() -> None:
        async with NatsBus(nats_url) as bus:
            await bus.setup()
            for number, (at_s, fact) in enumerate(facts):
                await bus.publish(replace(said(fact, at_s=at_s), id=str(number)))

    asyncio.run(tell())
    over_the_bus = data("--from-job", "j", "--nats", nats_url)
    recorded = data("--from", str(path))
    assert over_the_bus["sweep"] == recorded["sweep"]
    assert over_the_bus["assumptions"] == recorded["assumptions"]
    code, _, errors = ask("--from-job", "nobody", "--nats", nats_url)
    assert code == 2
    assert "has not formed" in errors


def test_a_job_without_failures_takes_published_rates(tmp_path: Path) -> None:
    path = tmp_path / "job.tmrec.gz"
    with Recorder(path) as recorder:
        for at_s, fact in facts_of(DAY, []):
            recorder.fact(at_s, fact)
    found = data("--from", str(path))
    assert found["failures"].startswith("no machine of this job failed while it was observed")
    code, _, errors = ask("--from", str(path), "--failures", "job")
    assert code == 2
    assert "no machine of it failed" in errors


def test_the_papers_figures_have_their_deviation() -> None:
    found = data("--paper")["figures"]
    assert len(found) > 30
    for one in found:
        assert {"name", "source", "paper", "ours", "deviation"} <= one.keys()
        assert one["deviation"] == pytest.approx(one["ours"] / one["paper"] - 1, abs=1e-4)


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (("--compare", "nobody"), "there is no system 'nobody'"),
        (("--scenario", "sunny"), "there is no scenario 'sunny'"),
        (("--failures", "nowhere.csv"), "no file that can be read"),
        (("--sweep", "gpus", "0..4"), "--sweep standbys 0..64"),
        (("--sweep", "standbys", "4..0"), "is empty"),
        (("--set", "detect_s"), "NAME=VALUE"),
        (("--set", "luck_s=3"), "there is no 'luck_s' to set"),
        (("--set", "detect_s=soon"), "is no number"),
        (("--set", "detect_s=-1"), "take a number from 0 on"),
        (("--set", "nobody.crash_s=1"), "changes nothing"),
        (("--from", "nowhere.tmrec.gz"), "cannot be read"),
        (("--from", "a", "--from-job", "b"), "leave one of them out"),
        (("--failures", "job"), "no file that can be read"),
        (("--scenario", "job"), "there is no scenario 'job'"),
        (("--plot", "plot.pdf"), "end the name in .svg, .png or .html"),
        (("--plot", "/dev/null/plot.svg"), "cannot be written"),
        (("--days", "9000000"), "too many"),
        (("--days", "inf"), "no number of days"),
        (("--set", "racks=0.9", "--set", "switches=0.2"), "at most 1 together"),
        (("--compare", "restart", "--set", "trainmover.crash_s=1"), "changes nothing"),
    ],
)
def test_what_is_not_known_is_named(words: tuple[str, ...], says: str) -> None:
    code, text, errors = ask(*words)
    assert code == 2
    assert not text
    assert says in " ".join(errors.split())
