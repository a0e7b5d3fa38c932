"""The programs of docs/howto/trackers.md: what rank 0 logs when its machine is replaced."""

from __future__ import annotations

import struct
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
from tests.docs.pages import ROOT, fences
from tests.programs.drive import SCRIPTS, Drive, Left, Spot

pytestmark = pytest.mark.job

STEPS = 80
WHOLE, TENSORBOARD, WANDB, BAR, OF_TRAINER, OF_LIGHTNING = (
    text for language, text in fences(ROOT / "docs/howto/trackers.md") if language == "python"
)
RESULT = """
import json, sys
from pathlib import Path
result = Path(sys.argv[1]) / f"result-{dist.get_rank()}.json"
result.write_text(json.dumps({"models": session.digest()}))
"""
HEADER, BLOCK, WHOLE_OR_LAST = 7, 32768, (1, 4)
"""Of a file of W&B: bytes in front of the first record, and of each; its blocks; kinds of parts."""

needs_mlflow, needs_tensorboard, needs_wandb, needs_tqdm = (
    pytest.mark.skipif(
        find_spec(package) is None,
        reason=f"{package} is not installed: pip install 'trainmover[trackers]'",
    )
    for package in ("mlflow", "tensorboard", "wandb", "tqdm")
)


def written(text: str, home: Path, *, result: str = RESULT) -> str:
    """The program of the page, as ``Drive`` wants it; ``home`` is where it logs."""
    home.mkdir(parents=True)
    prelude = f"import os\nos.environ['TRAINMOVER_JOB'] = 'job'\nos.chdir({str(home)!r})\n"
    (home / "train.py").write_text(prelude + text + result)
    return str(home / "train")


def replaced(text: str, *changes: tuple[str, str]) -> str:
    for old, new in changes:
        assert old in text, f"the page has no {old!r}"
        text = text.replace(old, new)
    return text


def values_of_mlflow(home: Path) -> list[tuple[str, str]]:
    """(step, value) of the only run, as written; it also has times."""
    (file,) = home.glob("mlruns/0/*/metrics/loss")
    assert len([*home.glob("mlruns/0/*/meta.yaml")]) == 1
    assert "status: 3" in (file.parents[1] / "meta.yaml").read_text()
    assert (file.parents[1] / "params" / "lr").read_text() == "0.01"
    lines = (line.split() for line in file.read_text().splitlines())
    return [(step, value) for _, value, step in lines]


def records(path: Path) -> Iterator[Any]:
    from wandb.proto import wandb_internal_pb2

    data, at, parts = path.read_bytes(), HEADER, b""
    while at + HEADER <= len(data):
        if (left := BLOCK - at % BLOCK) < HEADER:
            at += left
            continue
        _, length, kind = struct.unpack_from("<IHB", data, at)
        parts += data[at + HEADER : at + HEADER + length]
        at += HEADER + length
        if kind in WHOLE_OR_LAST:
            yield wandb_internal_pb2.Record.FromString(parts)
            parts = b""


def values_of_wandb(home: Path) -> list[tuple[int, str]]:
    """(step, value) of all folders; they are of one run."""
    values: list[tuple[int, str]] = []
    runs = set()
    for path in sorted(home.glob("wandb/offline-run-*/*.wandb")):
        for record in records(path):
            if record.WhichOneof("record_type") == "run":
                runs.add(record.run.run_id)
            of_loss = (i for i in record.history.item if "loss" in {i.key, *i.nested_key})
            values += [(record.history.step.num, each.value_json) for each in of_loss]
    assert runs == {"job"}
    return values


def disturbed(how: str, drive: Drive, program: str) -> Left:
    """The machine of rank 0 is replaced."""
    if how == "moved":
        return drive.moved(program, slot=0, at=30)
    return drive.killed(program, spots=[Spot("step.begin", 30, 0)])


HOW = ["moved", pytest.param("killed", marks=pytest.mark.soak)]


@needs_mlflow
@pytest.mark.parametrize("how", HOW)
def test_mlflow_has_one_run_with_each_step_once(how: str, drive: Drive, tmp_path: Path) -> None:
    calm, home = tmp_path / "calm", tmp_path / "home"
    expected = drive.undisturbed(written(WHOLE, calm))
    whole = values_of_mlflow(calm)
    assert len(whole) == STEPS
    left = disturbed(how, drive, written(WHOLE, home))
    left.same_as(expected, killed=0 if how == "killed" else None)
    missing = set(whole) - set(values_of_mlflow(home))
    assert len(missing) <= (how == "killed")
    assert values_of_mlflow(home) == [each for each in whole if each not in missing]


def values_of_tensorboard(home: Path) -> list[tuple[int, float]]:
    """(step, value) of all files, in the order in which they were written."""
    from tensorboard.backend.event_processing.event_file_loader import EventFileLoader

    files = home.glob("runs/job/events*")
    events = [event for path in files for event in EventFileLoader(str(path)).Load()]
    events.sort(key=lambda event: event.wall_time)
    return [(each.step, one.tensor.float_val[0]) for each in events for one in each.summary.value]


@needs_tensorboard
@pytest.mark.soak
@pytest.mark.parametrize("how", ["moved", "killed"])
def test_tensorboard_has_each_step_once(how: str, drive: Drive, tmp_path: Path) -> None:
    calm, home = tmp_path / "calm", tmp_path / "home"
    function = WHOLE[WHOLE.index("@cache") : WHOLE.index("Session.init()")]
    program = replaced(
        WHOLE,
        (function, TENSORBOARD + "\n\n"),
        ("import mlflow\n", "from torch.utils.tensorboard import SummaryWriter\n"),
        ('os.environ["MLFLOW_ALLOW_FILE_STORE"] = "true"\n', ""),
        ('mlflow.set_tracking_uri("file:mlruns")  # where all machines see it\n', ""),
        (
            'log_metric("loss", loss.item(), step=step.index)',
            'add_scalar("loss", loss.item(), step.index)',
        ),
        ("if logs:\n    tracker().end_run()\n", ""),
    )
    expected = drive.undisturbed(written(program, calm))
    whole = values_of_tensorboard(calm)
    assert [step for step, _ in whole] == [*range(STEPS)]
    left = disturbed(how, drive, written(program, home))
    left.same_as(expected, killed=0 if how == "killed" else None)
    missing = set(whole) - set(values_of_tensorboard(home))
    assert len(missing) <= (how == "killed")
    assert values_of_tensorboard(home) == [each for each in whole if each not in missing]


@needs_wandb
@pytest.mark.soak
@pytest.mark.parametrize("how", ["moved", "killed"])
def test_wandb_has_one_run_with_each_step_once(how: str, drive: Drive, tmp_path: Path) -> None:
    calm, home = tmp_path / "calm", tmp_path / "home"
    function = WHOLE[WHOLE.index("@cache") : WHOLE.index("Session.init()")]
    program = replaced(
        WHOLE,
        (function, WANDB + "\n\n"),
        ("import mlflow\n", "import wandb\n"),
        ('os.environ["MLFLOW_ALLOW_FILE_STORE"] = "true"\n', ""),
        ('mlflow.set_tracking_uri("file:mlruns")  # where all machines see it\n', ""),
        (
            'log_metric("loss", loss.item(), step=step.index',
            'log({"loss": loss.item()}, step=step.index, commit=True',
        ),
        ("end_run", "finish"),
    )
    expected = drive.undisturbed(written(program, calm))
    whole = values_of_wandb(calm)
    assert [step for step, _ in whole] == [*range(STEPS)]
    left = disturbed(how, drive, written(program, home))
    left.same_as(expected, killed=0 if how == "killed" else None)
    found = values_of_wandb(home)
    assert len(found) == len(set(found))
    assert [each for each in whole if each in found] == found
    # A process that is killed may have had a line on its way to W&B's service.
    missing = set(whole) - set(found)
    assert len(missing) <= (how == "killed")


@needs_tqdm
@pytest.mark.soak
@pytest.mark.parametrize("around", [True, False])
def test_a_bar_goes_on_at_a_joiner(*, around: bool, drive: Drive, tmp_path: Path) -> None:
    """Around ``session.steps``, or told the step."""
    made, update = BAR.splitlines()[0], BAR.splitlines()[-1].strip()
    steps = "session.steps(loader, epochs=2)"
    if around:
        made = f"bar = tqdm({steps}, disable=dist.get_rank() != 0, mininterval=0)"
        steps, update = "bar", "pass"
    program = replaced(
        WHOLE,
        ("import mlflow\n", "from tqdm import tqdm\n"),
        ('os.environ["MLFLOW_ALLOW_FILE_STORE"] = "true"\n', ""),
        ('mlflow.set_tracking_uri("file:mlruns")  # where all machines see it\n', ""),
        (
            "for step in session.steps(loader, epochs=2)",
            f"STEPS = {STEPS}\n{made}\nfor step in {steps}",
        ),
        ("    if logs and not session.is_shadow:\n", f"    {update}\n"),
        ('        tracker().log_metric("loss", loss.item(), step=step.index)\n', ""),
        ("if logs:\n    tracker().end_run()\n", "shown = bar.n\n"),
    )
    program += f"assert shown == ({STEPS} if dist.get_rank() == 0 else 0), shown\n"
    drive.moved(written(program, tmp_path / "home"), slot=0, at=30)
    drive.killed(written(program, tmp_path / "again"), spots=[Spot("step.begin", 30, 0)])


FRAMEWORKS = {
    "trained": (OF_TRAINER, "callbacks=[", "callbacks=[Tracker(), ", 50),
    "lightened_tiny": (
        OF_LIGHTNING.replace("Callback", "L.Callback"),
        "logger=logger,",
        "logger=logger, callbacks=[Tracker()],",
        30,
    ),
}


@needs_mlflow
@pytest.mark.soak
@pytest.mark.parametrize("how", ["moved", "killed"])
@pytest.mark.parametrize(
    ("script", "package"), [("trained", "transformers"), ("lightened_tiny", "lightning")]
)
def test_a_callback_logs_each_step_once(
    script: str, package: str, how: str, drive: Drive, tmp_path: Path
) -> None:
    pytest.importorskip(package)
    callback, old, new, at = FRAMEWORKS[script]
    text = (SCRIPTS / f"{script}.py").read_text()
    function = WHOLE[WHOLE.index("import os") : WHOLE.index("Session.init()")]
    before, _, behind = replaced(text, (old, new)).partition("\nclass ")
    text = f"{before}{function}\n{callback}\n\n\nclass {behind}"
    text = f"import sys\nsys.path.append({str(SCRIPTS)!r})\n{text}"
    calm, home = tmp_path / "calm", tmp_path / "home"
    expected = drive.undisturbed(written(text, calm, result=""))
    whole = values_of_mlflow(calm)
    assert len(whole) > at // 5
    program = written(text, home, result="")
    if how == "moved":
        left = drive.moved(program, slot=0, at=at)
    else:
        left = drive.killed(program, spots=[Spot("step.begin", at, 0)])
    left.same_as(expected, killed=0 if how == "killed" else None)
    missing = set(whole) - set(values_of_mlflow(home))
    assert len(missing) <= (how == "killed")
    assert values_of_mlflow(home) == [each for each in whole if each not in missing]
