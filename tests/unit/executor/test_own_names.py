"""What a shadow's program renames, removes, links and copies: nothing of the job's."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from trainmover_executor.worker.adapters.files import WithheldWrites
from trainmover_executor.worker.adapters.names import OwnPaths, WithheldNames


class Shadow:
    """This process withholds like a standby's worker."""

    def __init__(self) -> None:
        own = OwnPaths()
        self._parts = (WithheldWrites(own), WithheldNames(own, await_folder=lambda _: None))

    def begin_iterations(self) -> None:
        for part in self._parts:
            part.begin_iterations()

    def end(self) -> None:
        for part in self._parts:
            part.end()


@pytest.fixture
def shadow() -> Iterator[Shadow]:
    made = Shadow()
    yield made
    made.end()


@pytest.fixture
def theirs(tmp_path: Path) -> Path:
    """A folder of checkpoints that the job has written."""
    folder = tmp_path / "checkpoints"
    folder.mkdir()
    for step in range(4):
        (folder / f"step-{step}.pt").write_text(f"of step {step}")
    (folder / "best.pt").write_text("of step 2")
    (folder / "latest").symlink_to("step-3.pt")
    return folder


def listing(folder: Path) -> dict[str, str]:
    return {each.name: each.read_text() for each in sorted(folder.iterdir())}


def test_a_checkpoint_in_the_usual_way_passes_and_changes_nothing(
    theirs: Path, shadow: Shadow, capsys: pytest.CaptureFixture[str]
) -> None:
    before = listing(theirs)
    shadow.begin_iterations()
    temporary = theirs / "step-4.pt.tmp"  # torch.save wrote nothing
    os.replace(temporary, theirs / "step-4.pt")  # noqa: PTH105 - what programs call
    temporary.rename(theirs / "step-5.pt")
    os.rename(theirs / "step-3.pt", theirs / "step-3.old")  # noqa: PTH104 - as above
    (theirs / "latest").unlink()
    (theirs / "latest").symlink_to("step-4.pt")
    shutil.copyfile(theirs / "step-4.pt", theirs / "best.pt")
    assert shutil.copy2(theirs / "step-1.pt", theirs / "copy.pt") == theirs / "copy.pt"
    assert shutil.move(theirs / "step-1.pt", theirs / "moved.pt") == theirs / "moved.pt"
    for old in sorted(theirs.glob("step-*.pt"))[:-3]:
        os.remove(old)  # noqa: PTH107 - as above
    shutil.rmtree(theirs)
    assert listing(theirs) == before
    assert capsys.readouterr().out.count("is left out") == 1


def test_names_are_real_once_the_slot_is_taken(theirs: Path, shadow: Shadow) -> None:
    kept = os.replace
    shadow.end()
    kept(theirs / "step-0.pt", theirs / "best.pt")
    assert (theirs / "best.pt").read_text() == "of step 0"
    shutil.rmtree(theirs)
    assert not theirs.exists()


def test_a_folder_that_the_job_has_made_is_no_error(theirs: Path, shadow: Shadow) -> None:
    theirs.mkdir()
    os.makedirs(theirs)  # noqa: PTH103 - what programs call
    with pytest.raises(FileExistsError):
        (theirs / "best.pt").mkdir()
    (theirs / "more").mkdir()
    assert (theirs / "more").is_dir()
    del shadow


def test_the_output_of_the_job_is_not_cleared(theirs: Path, shadow: Shadow) -> None:
    """As programs begin: shutil.rmtree("out"), os.makedirs("out")."""
    before = listing(theirs)
    shutil.rmtree(theirs)
    theirs.mkdir()
    shutil.rmtree(theirs.with_name("missing"))
    assert listing(theirs) == before
    del shadow


def test_what_it_made_itself_it_renames_and_removes(tmp_path: Path, shadow: Shadow) -> None:
    (tmp_path / "words.tmp").write_text("a b c")
    os.replace(tmp_path / "words.tmp", tmp_path / "words.txt")  # noqa: PTH105 - as above
    assert (tmp_path / "words.txt").read_text() == "a b c"
    (tmp_path / "words.txt").unlink()
    assert not (tmp_path / "words.txt").exists()
    descriptor, name = tempfile.mkstemp(dir=tmp_path)
    os.close(descriptor)
    shutil.move(name, tmp_path / "cached")
    assert (tmp_path / "cached").exists()
    del shadow


def test_a_file_of_the_job_is_not_replaced_by_its_own(theirs: Path, shadow: Shadow) -> None:
    before = listing(theirs)
    (theirs / "meta.json.tmp").write_text("of a shadow")
    os.replace(theirs / "meta.json.tmp", theirs / "best.pt")  # noqa: PTH105 - as above
    assert listing(theirs) == before
    del shadow


def test_temporary_folders_are_its_own(shadow: Shadow) -> None:
    shadow.begin_iterations()
    with tempfile.TemporaryDirectory() as name:
        file = Path(name) / "log"
        with file.open("a") as opened:
            opened.write("a line")
        assert file.read_text() == "a line"
        file.rename(file.with_name("other"))
        file.with_name("link").symlink_to("other")
        shutil.copy(file.with_name("other"), file)
        (Path(name) / "inner").mkdir()
        shutil.rmtree(Path(name) / "inner")
        file.with_name("other").unlink()
        assert sorted(os.listdir(name)) == ["link", "log"]  # noqa: PTH208 - what programs call
    assert not Path(name).exists()


def test_data_are_brought_to_this_machine_in_front_of_the_first_step(
    theirs: Path, tmp_path: Path, shadow: Shadow
) -> None:
    shutil.copytree(theirs, tmp_path / "scratch")
    (tmp_path / "data").symlink_to(theirs)
    assert listing(tmp_path / "scratch") == listing(theirs) == listing(tmp_path / "data")
    shutil.copy(theirs / "best.pt", tmp_path / "scratch" / "mine.pt")
    assert (tmp_path / "scratch" / "mine.pt").read_text() == "of step 2"
    shutil.copytree(theirs, tmp_path / "scratch", dirs_exist_ok=True)
    shadow.begin_iterations()
    shutil.copy(theirs / "best.pt", tmp_path / "scratch" / "later.pt")
    assert not (tmp_path / "scratch" / "later.pt").exists()


def test_descriptors_and_libraries_are_nobodys_business(theirs: Path, shadow: Shadow) -> None:
    place = Path(pytest.__file__).parents[1] / "torch" / "caches.py"
    source = f"import os\nos.replace({str(theirs / 'step-0.pt')!r}, {str(theirs / 'best.pt')!r})"
    exec(compile(source, str(place), "exec"), {"__name__": "torch.caches"})
    assert (theirs / "best.pt").read_text() == "of step 0"
    with (theirs / "best.pt").open("r+") as file:
        os.truncate(file.fileno(), 2)
    assert (theirs / "best.pt").read_text() == "of"
    del shadow
