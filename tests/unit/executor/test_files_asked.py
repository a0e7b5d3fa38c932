"""What a program finds of files before its first step, at the job's ranks and at a late standby."""

from __future__ import annotations

import os
import shutil
import tempfile
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from trainmover_executor.collectives.sandbox.recording import Mark, Recording
from trainmover_executor.worker.adapters.names import OwnPaths, WithheldNames
from trainmover_executor.worker.to_standbys.files_asked import FilesAsked

MKDIR = os.mkdir
"""That of the rank: in a test it is one process with the standby."""


def write(path: Path) -> None:
    """Some time after now: the clock of files is coarse."""
    path.write_text("later")
    os.utime(path, (time.time() + 5, time.time() + 5))


def exists(path: Path) -> Callable[[], bool]:
    """Asks for the function when it is called: another one may be there by then."""

    def ask() -> bool:
        return path.exists()

    return ask


def run(program: Callable[[], Any], recording: Recording, *, shadow: bool, own: Any = ()) -> Any:
    """The set-up of a process."""
    asked = FilesAsked(recording, is_shadow=lambda: shadow, own=own)
    try:
        return program()
    finally:
        asked.end()


@pytest.mark.parametrize(
    "there",
    [
        lambda path: os.path.exists(path),  # noqa: PTH110, PLW0108 - what programs do, replaced
        lambda path: os.path.isfile(path),  # noqa: PTH113, PLW0108 - as above
        lambda path: path.exists(),
        lambda path: path.name in os.listdir(path.parent),  # noqa: PTH208 - as above
        lambda path: path.name in [each.name for each in os.scandir(path.parent)],
        lambda path: path in [*path.parent.glob("*.pt")],
        lambda path: path in [*path.parent.iterdir()],
    ],
    ids=["exists", "isfile", "Path", "listdir", "scandir", "glob", "iterdir"],
)
class TestASnapshot:
    def test_that_the_job_wrote_while_it_trained_is_not_there(
        self, there: Callable[[Path], bool], tmp_path: Path
    ) -> None:
        snapshot, recording = tmp_path / "snapshot.pt", Recording()
        (tmp_path / "other.txt").touch()
        assert not run(lambda: there(snapshot), recording, shadow=False)
        recording.begin_step()
        write(snapshot)
        assert not run(lambda: there(snapshot), recording, shadow=True)
        assert there(snapshot), "it sees it again once it has come to its steps"

    def test_that_was_there_before_is_there(
        self, there: Callable[[Path], bool], tmp_path: Path
    ) -> None:
        snapshot, recording = tmp_path / "snapshot.pt", Recording()
        snapshot.write_text("epoch 3")
        assert run(lambda: there(snapshot), recording, shadow=False)
        recording.begin_step()
        assert run(lambda: there(snapshot), recording, shadow=True)

    def test_that_the_set_up_made_is_there(
        self, there: Callable[[Path], bool], tmp_path: Path
    ) -> None:
        """Data that is downloaded where it is not there."""
        data, recording = tmp_path / "data.pt", Recording()
        assert not run(lambda: there(data), recording, shadow=False)
        data.write_text("downloaded")
        recording.begin_step()
        assert run(lambda: there(data), recording, shadow=True)

    def test_that_a_standby_made_itself_is_there(
        self, there: Callable[[Path], bool], tmp_path: Path
    ) -> None:
        mine, recording = tmp_path / "mine.pt", Recording()
        assert not run(lambda: there(mine), recording, shadow=False)
        recording.begin_step()
        write(mine)
        assert run(lambda: there(mine), recording, shadow=True, own={str(mine), mine})


def test_one_that_is_written_to_again_is_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The job began with it, and what is in it now is of later."""
    snapshot, recording = tmp_path / "snapshot.pt", Recording()
    snapshot.write_text("epoch 3")
    assert run(exists(snapshot), recording, shadow=False)
    recording.begin_step()
    write(snapshot)
    assert run(exists(snapshot), recording, shadow=True)
    said = capsys.readouterr()
    assert "snapshot.pt" in said.out + said.err


def test_of_a_folder_that_is_written_into_nothing_is_said(tmp_path: Path, capsys: Any) -> None:
    folder, recording = tmp_path / "results", Recording()
    folder.mkdir()
    assert run(exists(folder), recording, shadow=False)
    recording.begin_step()
    write(folder / "step-1.pt")
    os.utime(folder, (time.time() + 5, time.time() + 5))
    assert run(exists(folder), recording, shadow=True)
    assert "has written to a file" not in capsys.readouterr().out


def test_a_standby_of_a_rank_that_did_not_ask_sees_what_is_there(tmp_path: Path) -> None:
    snapshot, recording = tmp_path / "snapshot.pt", Recording()
    recording.begin_step()
    write(snapshot)
    assert run(exists(snapshot), recording, shadow=True)


def test_notes_of_files_outlive_a_broken_set_up(tmp_path: Path) -> None:
    snapshot, recording = tmp_path / "snapshot.pt", Recording()
    assert not run(exists(snapshot), recording, shadow=False)
    recording.add(Mark.VOID)
    recording.begin_step()
    write(snapshot)
    assert not run(exists(snapshot), recording, shadow=True)


def test_a_folder_with_very_many_files_is_no_folder_of_snapshots(tmp_path: Path) -> None:
    recording = Recording()
    for index in range(300):
        (tmp_path / f"{index}.png").touch()

    def scan() -> int:
        return sum(1 for _ in tmp_path.iterdir())

    assert run(scan, recording, shadow=False) == 300
    assert recording.nbytes == 0


def test_a_program_may_wait_for_a_file(tmp_path: Path) -> None:
    flag, recording = tmp_path / "ready", Recording()

    def wait() -> int:
        times = 0
        while not flag.exists():
            times += 1
            if times == 100:
                flag.touch()
        return times

    assert run(wait, recording, shadow=False) == 100
    assert recording.nbytes < 100
    recording.begin_step()
    assert run(wait, recording, shadow=True) == 0


class Awaited(Recording):
    """Says when somebody waits for what has not come."""

    def __init__(self) -> None:
        super().__init__()
        self.waits = threading.Event()

    def find(self, part: int, key: str, index: int, *, patience_s: float | None) -> Any:
        self.waits.set()
        return super().find(part, key, index, patience_s=patience_s)


def standby(program: Callable[[], Any], recording: Recording) -> Any:
    """The set-up of a standby that leaves folders to its rank first."""
    asked = FilesAsked(recording, is_shadow=lambda: True)
    names = WithheldNames(OwnPaths(), await_folder=asked.await_folder)
    try:
        return program()
    finally:
        names.end()
        asked.end()


def test_a_standby_makes_no_folder_before_its_rank(tmp_path: Path) -> None:
    """``os.makedirs(folder)`` fails where the folder is there already."""
    folder, recording = tmp_path / "run" / "checkpoints", Awaited()
    with ThreadPoolExecutor(1) as pool:
        made = pool.submit(standby, lambda: os.makedirs(folder), recording)  # noqa: PTH103
        assert recording.waits.wait(10)
        assert not folder.parent.exists()
        MKDIR(folder.parent)
        MKDIR(folder)
        recording.begin_step()
        made.result(10)
    assert folder.is_dir()


def test_a_rank_notes_the_folders_that_it_makes(tmp_path: Path) -> None:
    folder, recording = tmp_path / "run" / "checkpoints", Recording()
    run(lambda: folder.mkdir(parents=True), recording, shadow=False)
    shutil.rmtree(folder.parent)
    standby(lambda: folder.mkdir(parents=True), recording)  # else it waits for half a minute
    assert folder.is_dir()
    noted = [str(each) for each in recording.since(0)]
    run(lambda: [folder.rmdir(), folder.mkdir()], recording, shadow=False)
    assert [str(each) for each in recording.since(0)][: len(noted)] == noted


def test_a_folder_for_temporary_files_is_made_at_once(tmp_path: Path) -> None:
    recording = Awaited()
    assert standby(lambda: tempfile.mkdtemp(dir=tmp_path), recording)
    assert not recording.waits.is_set()


def test_many_folders_are_noted_up_to_a_limit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("trainmover_executor.worker.to_standbys.files_asked._MOST", 10)
    recording = Recording()

    def program() -> None:
        for number in range(40):
            (tmp_path / str(number)).mkdir()

    run(program, recording, shadow=False)
    assert len(recording.since(0)) <= 11
