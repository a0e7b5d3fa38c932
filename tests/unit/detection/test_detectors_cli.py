"""``trainmover detectors list|describe|replay`` on recordings with labels."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from trainmover.cli.app import app
from trainmover.detection.recording import Recorder, read
from trainmover.events.migration import JobFormed
from trainmover.telemetry import Batch
from trainmover.testing.simulated_jobs import Injection, Shape, SimulatedJob, label_of


def ask(*words: str) -> tuple[int, str]:
    found = CliRunner().invoke(app, ["detectors", *words])
    return found.exit_code, found.output


@pytest.fixture
def recording(tmp_path: Path) -> Path:
    """A job of 0.3 s steps in which rank 2 takes twice as long from step 60 on."""
    path = tmp_path / "job.tmrec.gz"
    job = SimulatedJob(Shape(4), injections=[Injection("compute", 60, (2,), 2.0)], seed=5)
    with Recorder(path) as recorder:
        for frame in job.frames(steps=90):
            if frame.membership is not None:
                recorder.fact(0.0, JobFormed(membership=frame.membership))
            for each in frame.windows:
                recorder.batch(
                    frame.now_s,
                    Batch("j", each.machine, 0, each.epoch, each.records, 0, each.more),
                )
        for truth in job.truths:
            recorder.label(label_of(truth))
    return path


def test_built_in_detectors_are_listed_and_described() -> None:
    code, text = ask("list", "-o", "json")
    rows = {row["name"]: row for row in json.loads(text)}
    assert code == 0
    assert {"straggler", "hang", "links", "degraded", "numeric", "liveness"} <= rows.keys()
    assert all(row["from"] == "trainmover" and row["says"] for row in rows.values())
    code, text = ask("describe", "straggler", "-o", "json")
    assert code == 0
    assert "quiet_steps" in json.loads(text)["schema"]["properties"]


def test_a_detector_that_is_not_there_is_named_with_those_that_are() -> None:
    code, text = ask("describe", "nobody")
    assert code == 2
    assert "straggler" in text


def test_a_replay_tells_how_good_a_detector_is(recording: Path) -> None:
    code, text = ask("replay", str(recording), "--detector", "straggler", "-o", "json")
    data = json.loads(text)
    assert code == 0
    (claim,) = data["claims"]
    assert (claim["kind"], claim["machine"]) == ("straggler", "w-2")
    found = data["scores"]["straggler"]["straggler"]
    assert (found["precision"], found["recall"], found["culprit_accuracy"]) == (1, 1, 1)
    assert found["steps_to_detect_p95"] <= 5


def test_a_class_is_replayed_without_being_installed(recording: Path) -> None:
    name = "trainmover_detector.hang:HangDetector"
    code, text = ask("replay", str(recording), "-d", name, "-o", "json")
    assert code == 0
    assert json.loads(text)["claims"] == []


def test_a_recording_comes_back_as_it_was_written(recording: Path) -> None:
    kinds = [type(entry.what).__name__ for entry in read(recording)]
    assert kinds[0] == "JobFormed"
    assert kinds[-1] == "Label"
    assert set(kinds[1:-1]) == {"Batch"}


def test_what_is_no_recording_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "other"
    path.write_text("no gzip")
    code, text = ask("replay", str(path))
    assert code == 2
    assert str(path.name) in text.replace("\n", "")
