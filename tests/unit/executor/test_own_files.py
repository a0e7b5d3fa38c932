"""What a shadow's program writes into files of its own: nothing that the job would find there."""

from __future__ import annotations

import logging
import os
import tarfile
import zipfile
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch

from trainmover_executor.worker.adapters.files import WithheldWrites, flush_files
from trainmover_executor.worker.adapters.names import OwnPaths


@pytest.fixture
def writes() -> Iterator[WithheldWrites]:
    withheld = WithheldWrites(OwnPaths())
    yield withheld
    withheld.end()


@pytest.fixture
def theirs(tmp_path: Path) -> Path:
    """A file that the job has written to."""
    path = tmp_path / "steps.csv"
    path.write_text("step\n1\n")
    return path


@pytest.mark.parametrize("mode", ["w", "a", "w+"])
def test_a_file_of_the_job_stays_as_it_is_until_the_slot_is_taken(
    mode: str, theirs: Path, writes: WithheldWrites
) -> None:
    with open(theirs, mode) as file:  # noqa: PTH123 - what programs call
        file.write("step\n")
        file.write("shadow\n")  # held back: it must not come out later
        assert theirs.read_text() == "step\n1\n"
        writes.end()
        file.write("2\n")
    assert theirs.read_text() == "step\n1\n2\n"


def test_bytes_unbuffered_and_through_pathlib(theirs: Path, writes: WithheldWrites) -> None:
    with theirs.open("wb", buffering=0) as file:
        file.write(b"shadow\n")
        writes.end()
        file.write(b"2\n")
    theirs.with_name("other").write_text("written again")
    assert theirs.read_text() == "step\n1\n2\n"


def test_libraries_that_kept_open_for_themselves(theirs: Path, writes: WithheldWrites) -> None:
    np.savetxt(theirs, np.arange(3))
    with tarfile.open(theirs, "w") as archive:
        archive.add(__file__)
    assert theirs.read_text() == "step\n1\n"
    writes.end()
    np.savetxt(theirs, np.arange(2), fmt="%d")
    assert theirs.read_text() == "0\n1\n"


def test_other_names_of_a_file(theirs: Path, writes: WithheldWrites) -> None:
    class Named:
        def __fspath__(self) -> bytes:
            return bytes(theirs)

    with open(file=Named(), mode="w") as file:  # noqa: PTH123 - what programs call
        file.write("shadow\n")
    assert theirs.read_text() == "step\n1\n"
    descriptor = os.open(theirs, os.O_WRONLY | os.O_APPEND)
    with open(descriptor, "a") as file:  # noqa: PTH123 - a descriptor
        file.write("2\n")
    assert theirs.read_text() == "step\n1\n2\n"
    del writes


def test_writers_that_seek_and_read_what_they_wrote(theirs: Path, writes: WithheldWrites) -> None:
    with theirs.open("wb") as file:
        np.savez(file, rows=np.arange(10))
    with zipfile.ZipFile(theirs, "w") as archive:
        archive.writestr("name", "content")
    with theirs.open("w+") as file:
        file.write("shadow")
        file.truncate(3)
        file.seek(0)
        assert file.read() == "sha"
        assert file.name == str(theirs)
    assert theirs.read_text() == "step\n1\n"
    del writes


def test_logging_goes_on_behind_what_the_leaver_logged(
    theirs: Path, writes: WithheldWrites
) -> None:
    handler = logging.FileHandler(theirs, mode="w")
    record = logging.LogRecord("mine", logging.INFO, "", 0, "a line", None, None)
    handler.emit(record)
    writes.end()
    handler.emit(record)
    handler.close()
    assert theirs.read_text() == "step\n1\na line\n"


def test_what_is_read_again_on_the_way_is_made(tmp_path: Path, writes: WithheldWrites) -> None:
    vocabulary = tmp_path / "vocabulary.txt"
    vocabulary.write_text("a b c")
    assert vocabulary.read_text() == "a b c"
    del writes


def test_a_file_made_in_front_of_the_first_step_is_left_alone_from_there(
    tmp_path: Path, writes: WithheldWrites
) -> None:
    """The standby's program may be there before the rank that it stands by for."""
    with (tmp_path / "log").open("w") as file:
        file.write("head\n")
        writes.begin_iterations()
        file.write("shadow\n")
        writes.end()
        file.write("1\n")
    assert (tmp_path / "log").read_text() == "head\n1\n"


def test_a_log_that_nobody_has_begun_begins_with_the_slot(
    tmp_path: Path, writes: WithheldWrites
) -> None:
    """The rank writes its first line as well, and both would stand in it."""
    with pytest.raises(FileNotFoundError):
        (tmp_path / "missing" / "log").open("a")
    log = tmp_path / "train.log"
    with log.open("a") as file:
        file.write("begin\n")
        assert not log.exists()
        writes.end()
        file.write("1\n")
    assert log.read_text() == "1\n"


def test_closed_files_and_other_modes_are_nobodys_business(
    theirs: Path, writes: WithheldWrites
) -> None:
    theirs.open("w").close()
    with theirs.open("r+") as file:
        assert file.read() == "step\n1\n"
    writes.end()
    writes.end()
    assert theirs.read_text() == "step\n1\n"


def test_what_a_shadow_made_it_may_write_again(tmp_path: Path, writes: WithheldWrites) -> None:
    path = tmp_path / "cache.txt"
    path.write_text("head\n")
    with path.open("a") as file:
        file.write("more\n")
    assert path.read_text() == "head\nmore\n"
    writes.begin_iterations()
    del writes


def test_a_file_that_must_be_new_is_made_by_the_job(theirs: Path, writes: WithheldWrites) -> None:
    with theirs.open("x") as file:
        file.write("shadow\n")
    with theirs.with_name("lock").open("x") as file:
        file.write("shadow\n")
    assert theirs.read_text() == "step\n1\n"
    assert not theirs.with_name("lock").exists()
    del writes


def test_numpy_writes_what_the_program_asks_for(theirs: Path, writes: WithheldWrites) -> None:
    np.save(theirs.with_name("fresh.npy"), np.arange(3))
    assert np.load(theirs.with_name("fresh.npy")).tolist() == [0, 1, 2]
    with theirs.with_name("job.npy").open("wb") as file:
        np.save(file, np.arange(5))
    writes.begin_iterations()
    writes.end()
    again = WithheldWrites(OwnPaths())
    np.save(theirs.with_name("job.npy"), np.arange(3))
    again.end()
    assert np.load(theirs.with_name("job.npy")).tolist() == [0, 1, 2, 3, 4]


def test_a_library_makes_what_it_appends_to(tmp_path: Path, writes: WithheldWrites) -> None:
    """A download is resumed: it is opened to be appended to, and renamed when it is whole."""
    path = tmp_path / "blob.incomplete"
    source = f"with open({str(path)!r}, 'ab') as file:\n    file.write(b'content')\n"
    place = Path(pytest.__file__).with_name("hub.py")
    exec(compile(source, str(place), "exec"), {"__name__": "hub"})
    assert path.read_bytes() == b"content"
    del writes


def test_libraries_write_where_they_will(theirs: Path, writes: WithheldWrites) -> None:
    """Caches and locks are each process's own."""
    source = f"with open({str(theirs)!r}, 'w') as file:\n    file.write('cached')\n"
    place = Path(torch.__file__).with_name("somewhere.py")
    exec(compile(source, str(place), "exec"), {"__name__": "torch.somewhere"})
    assert theirs.read_text() == "cached"
    del writes


def test_it_is_said_once(
    theirs: Path, writes: WithheldWrites, capsys: pytest.CaptureFixture[str]
) -> None:
    theirs.open("w").close()
    theirs.open("a").close()
    said = capsys.readouterr().out
    assert said.count(f"{theirs} is not written to") == 1
    del writes


def test_open_is_the_real_one_afterwards(theirs: Path) -> None:
    kept_before = open
    withheld = WithheldWrites(OwnPaths())
    ours = open
    withheld.end()
    assert open is kept_before
    with ours(theirs, "w") as file:
        file.write("anew")
    assert theirs.read_text() == "anew"


def test_what_files_hold_back_is_written_out(tmp_path: Path) -> None:
    with (tmp_path / "log").open("w") as file, (tmp_path / "raw").open("wb") as raw:
        file.write("a line")
        raw.write(b"bytes")
        flush_files()
        assert (tmp_path / "log").read_text() == "a line"
        assert (tmp_path / "raw").read_bytes() == b"bytes"
