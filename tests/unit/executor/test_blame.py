"""Which error ended a program, and where in it."""

from __future__ import annotations

import json
import runpy
from pathlib import Path

import pytest
import torch

from trainmover_executor.worker.blame import error_line, place_of


def test_the_innermost_line_of_the_program_is_blamed(tmp_path: Path) -> None:
    (tmp_path / "helper.py").write_text(
        "import torch\n\ndef use():\n    torch.ones(2) @ torch.ones(3)\n"
    )
    program = tmp_path / "train.py"
    program.write_text(
        f"import sys\nsys.path.insert(0, {str(tmp_path)!r})\nfrom helper import use\nuse()\n"
    )
    with pytest.raises(RuntimeError) as caught:
        runpy.run_path(str(program), run_name="__main__")
    # This test stands below the program in the traceback, as the worker does.
    assert place_of(caught.value) == f"{tmp_path / 'helper.py'}:4"


def test_code_of_libraries_is_not_blamed(tmp_path: Path) -> None:
    program = tmp_path / "train.py"
    program.write_text("import json\n\njson.loads('{')\n")
    with pytest.raises(json.JSONDecodeError) as caught:
        runpy.run_path(str(program), run_name="__main__")
    assert place_of(caught.value) == f"{program}:3"


def test_an_error_without_a_traceback_has_no_place() -> None:
    assert place_of(ValueError("never raised")) == ""


def test_the_line_is_type_and_first_line() -> None:
    assert error_line(AssertionError()) == "AssertionError"
    assert error_line(RuntimeError("shapes differ\nsee below")) == "RuntimeError: shapes differ"
    assert len(error_line(torch.OutOfMemoryError("x" * 5000))) == 300
