"""Our own code is no part of the user's program: its variables are not carried, nor blamed."""

from __future__ import annotations

import subprocess
import sys
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from trainmover_executor.agent.core import standby
from trainmover_executor.program.frames import is_of_script, is_program
from trainmover_executor.worker import blame

OURS = [
    "trainmover_executor.training.body.step",
    "trainmover_executor.collectives.linked.ring",
    "trainmover_executor.worker.to_standbys.places",
    "trainmover_executor.worker.main",
]


@pytest.mark.parametrize("module", OURS)
def test_a_module_of_the_executor_is_ours(module: str) -> None:
    file = import_module(module).__file__
    assert file is not None
    assert not is_program(module, file)
    for owners in (standby._OURS, blame._OURS):
        assert any(file.startswith(one) for one in owners)


@pytest.mark.parametrize("package", ["trainmover", "trainmover_executor"])
def test_programs_import_the_session_from_either_and_torch_with_it(package: str) -> None:
    said = (
        f"import sys, {package}; early = 'torch' in sys.modules; from {package} import Session; "
        "from trainmover_executor.training.session import Session as it; "
        "print(early, Session is it)"
    )
    done = subprocess.run(
        [sys.executable, "-c", said], capture_output=True, text=True, check=True, timeout=60
    )
    assert done.stdout.split() == ["False", "True"]


@pytest.mark.parametrize("folder", ["/usr/lib/python3/dist-packages", "/opt/env/site-packages"])
def test_libraries_of_another_environment_are_libraries(folder: str) -> None:
    """An image's torch below a virtual environment: its variables are nobody's to carry."""
    assert not is_program("torch.optim.sgd", f"{folder}/torch/optim/sgd.py")
    assert not is_program("numpy", f"{folder}/numpy/__init__.py")
    assert is_program("axolotl.train", f"{folder}/axolotl/train.py")


def test_a_module_of_another_environment_is_not_one_that_the_script_brought(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    there = ModuleType("of_an_image")
    there.__file__ = "/usr/local/lib/python3.11/dist-packages/of_an_image.py"
    monkeypatch.setitem(sys.modules, there.__name__, there)
    assert not is_of_script(there.__name__)
    there.__file__ = "/home/me/of_an_image.py"
    is_of_script.cache_clear()
    assert is_of_script(there.__name__)
    is_of_script.cache_clear()


def test_a_module_that_imports_another_one_when_it_is_asked_is_not_asked(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """As speechbrain's are, of integrations whose packages are not installed."""

    class Lazy(ModuleType):
        def __getattr__(self, name: str) -> Any:
            raise ImportError(f"{self.__name__}.{name} needs a package that is not installed")

    monkeypatch.setitem(sys.modules, "integration", Lazy("integration"))
    is_of_script.cache_clear()
    assert not is_of_script("integration")
    is_of_script.cache_clear()


def test_what_pip_put_into_a_folder_of_the_import_path_is_installed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """``pip install --target``: libraries beside a program's own modules are libraries."""
    metadata = tmp_path / "wheel_of-1.0.dist-info"
    metadata.mkdir()
    (metadata / "METADATA").write_text("Metadata-Version: 2.1\nName: wheel_of\nVersion: 1.0\n")
    record = ["wheel_of/__init__.py,,", "alone.py,,", "wheel_of-1.0.dist-info/RECORD,,"]
    (metadata / "RECORD").write_text("\n".join([*record, "../../bin/of_wheel,,"]))
    monkeypatch.syspath_prepend(str(tmp_path))
    for name, file in (("wheel_of.deep", "wheel_of/deep.py"), ("alone", "alone.py")):
        module = ModuleType(name)
        module.__file__ = str(tmp_path / file)
        monkeypatch.setitem(sys.modules, name, module)
        assert not is_of_script(name)
    mine = ModuleType("mine")
    mine.__file__ = str(tmp_path / "mine.py")
    monkeypatch.setitem(sys.modules, "mine", mine)
    assert is_of_script("mine")
