"""A shadow writes no checkpoints."""

from __future__ import annotations

import importlib
import io
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch
import torch.distributed.checkpoint as dcp

from trainmover_executor.worker.adapters.withhold import withhold_saves

STATE = {"weight": torch.ones(3)}


@pytest.fixture
def promote() -> Iterator[Callable[[], None]]:
    """This process is a shadow until this is called."""
    end = withhold_saves()
    yield end
    end()


def test_a_shadow_overwrites_no_file(
    promote: Callable[[], None], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "model.pt"
    file.write_text("of the rank that trains")
    torch.save(STATE, file)
    torch.save(STATE, f=str(file))
    with (tmp_path / "open.pt").open("wb") as opened:
        torch.save(STATE, opened)
    assert file.read_text() == "of the rank that trains"
    assert (tmp_path / "open.pt").read_bytes() == b""
    said = capsys.readouterr().out
    assert said.count("shadow, a standby") == 1
    assert f"torch.save to {file}" in said

    promote()
    torch.save(STATE, file)
    assert torch.load(file)["weight"].tolist() == [1, 1, 1]


def test_a_shadow_may_save_to_memory(promote: Callable[[], None]) -> None:
    memory = io.BytesIO()
    torch.save(STATE, memory)
    memory.seek(0)
    assert torch.load(memory)["weight"].tolist() == [1, 1, 1]


def test_distributed_checkpoints_are_left_out(promote: Callable[[], None], tmp_path: Path) -> None:
    dcp.save(dict(STATE), checkpoint_id=tmp_path / "saved")
    writing = dcp.async_save(dict(STATE), checkpoint_id=tmp_path / "later")
    assert writing.result() is None
    assert writing.upload_completion.result() is None
    assert list(tmp_path.iterdir()) == []


@pytest.mark.filterwarnings("ignore:torch.distributed is disabled")
def test_names_that_a_program_imported_work_after_the_promotion(tmp_path: Path) -> None:
    before = torch.save, dcp.save
    end = withhold_saves()
    save, save_all = torch.save, dcp.save  # what "from torch import save" would bind
    end()
    assert (torch.save, dcp.save) == before
    save(STATE, tmp_path / "model.pt")
    save_all(dict(STATE), checkpoint_id=tmp_path / "saved", no_dist=True)
    assert (tmp_path / "model.pt").exists()
    assert (tmp_path / "saved" / ".metadata").exists()


def test_safetensors_writes_nothing_where_it_is_installed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    package = tmp_path / "safetensors"
    package.mkdir()
    (package / "__init__.py").touch()
    (package / "torch.py").write_text(
        "from pathlib import Path\n"
        "def save_file(tensors, filename, metadata=None):\n"
        "    Path(filename).write_text('saved')\n"
        "def save_model(model, filename, metadata=None):\n"
        "    save_file(model.state_dict(), filename)\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    for name in ("safetensors", "safetensors.torch"):
        monkeypatch.delitem(sys.modules, name, raising=False)
    end = withhold_saves()
    safetensors = importlib.import_module("safetensors.torch")
    file = tmp_path / "model.safetensors"
    safetensors.save_file(STATE, file)
    safetensors.save_file(tensors=STATE, filename=str(file))
    safetensors.save_model(torch.nn.Linear(1, 1), file)
    assert not file.exists()
    end()
    safetensors.save_file(STATE, filename=file)
    assert file.read_text() == "saved"
