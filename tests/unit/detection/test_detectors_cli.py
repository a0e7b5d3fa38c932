"""``trainmover detector ls|describe|replay`` on recordings with labels."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from trainmover.detection.evaluation.recording import read
from trainmover.testing.simulated_jobs import Injection, Shape, SimulatedJob, record_job
from trainmover_console.cli.app import app


def ask(*words: str) -> tuple[int, str]:
    found = CliRunner().invoke(app, ["detector", *words])
    return found.exit_code, found.output


@pytest.fixture
def recording(tmp_path: Path) -> Path:
    """A job of 0.3 s steps in which rank 2 takes twice as long from step 60 on."""
    path = tmp_path / "job.tmrec.gz"
    job = SimulatedJob(Shape(4), injections=[Injection("compute", 60, (2,), 2.0)], seed=5)
    record_job(job, path, steps=90)
    return path


def test_built_in_detectors_are_listed_and_described() -> None:
    code, text = ask("ls", "-o", "json")
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
    (finding,) = data["findings"]
    assert (finding["kind"], finding["machine"]) == ("straggler", "w-2")
    found = data["scores"]["straggler"]["straggler"]
    assert (found["precision"], found["recall"], found["culprit_accuracy"]) == (1, 1, 1)
    assert found["steps_to_detect_p95"] <= 5


def test_a_class_is_replayed_without_being_installed(recording: Path) -> None:
    name = "trainmover_detector.detectors.hang:HangDetector"
    code, text = ask("replay", str(recording), "-d", name, "-o", "json")
    assert code == 0
    assert json.loads(text)["findings"] == []


def test_a_recording_comes_back_as_it_was_written(recording: Path) -> None:
    kinds = [type(entry.what).__name__ for entry in read(recording)]
    assert kinds[0] == "JobFormed"
    assert kinds[-1] == "Label"
    assert set(kinds[1:-1]) == {"JobLayoutKnown", "Batch"}


def test_what_is_no_recording_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "other"
    path.write_text("no gzip")
    code, text = ask("replay", str(path))
    assert code == 2
    assert str(path.name) in text.replace("\n", "")


@pytest.mark.parametrize("noise", ["plain", "rough"])
@pytest.mark.parametrize(
    ("trouble", "kind"), [("compute_2x", "straggler"), ("hang_frozen", "hang"), ("nan", "numeric")]
)
def test_a_simulated_trouble_is_recorded_and_found(
    trouble: str, kind: str, noise: str, tmp_path: Path
) -> None:
    path = tmp_path / "simulated.tmrec.gz"
    asked = ["detector", "synthesize", str(path), "--trouble", trouble, "--seed", "2", "-o", "json"]
    done = CliRunner().invoke(app, [*asked, "--noise", noise])
    assert done.exit_code == 0, done.output
    (truth,) = json.loads(done.stdout)["truths"]
    assert truth["kind"] == kind
    code, text = ask("replay", str(path), "-o", "json")
    assert code == 0
    findings = [finding for finding in json.loads(text)["findings"] if finding["kind"] == kind]
    assert [finding["machine"] for finding in findings] == [truth["machine"]]


def test_a_healthy_job_is_simulated_too(tmp_path: Path) -> None:
    path = tmp_path / "healthy.tmrec.gz"
    done = CliRunner().invoke(
        app, ["detector", "synthesize", str(path), "--trouble", "nothing", "--seed", "4"]
    )
    assert done.exit_code == 0
    assert "every finding would be false" in done.stdout
    code, text = ask("replay", str(path), "-o", "json")
    assert (code, json.loads(text)["findings"]) == (0, [])


@pytest.mark.parametrize(
    "verb",
    [["detector", "synthesize"], ["job", "record", "--job", "j", "--nats", "nats://127.0.0.1:1"]],
)
def test_what_cannot_be_written_is_said(verb: list[str], tmp_path: Path) -> None:
    done = CliRunner().invoke(app, [*verb, str(tmp_path)])
    assert done.exit_code == 2
    assert "cannot be written" in done.stderr


def test_a_trouble_that_is_not_there_is_named_with_those_that_are(tmp_path: Path) -> None:
    done = CliRunner().invoke(
        app, ["detector", "synthesize", str(tmp_path / "x"), "--trouble", "gremlins"]
    )
    assert done.exit_code == 2
    assert "hang_frozen" in done.stderr
