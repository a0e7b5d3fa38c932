"""The page on troubleshooting has everything that goes wrong by a name, and quotes what is said."""

from __future__ import annotations

import ast
import re
from typing import get_args

import pytest
from tests.docs import sources
from tests.docs.pages import ROOT, section, table

from trainmover.events.migration import FailureCode
from trainmover.runtime import service
from trainmover_console.cli.exits import ExitCode
from trainmover_executor.agent import service as agent
from trainmover_executor.worker import control_thread
from trainmover_planner.machines import condemn

PAGE = ROOT / "docs/howto/troubleshooting.md"
CODE = re.compile(r"`([^`]+)`")


def column(title: str, number: int = 0) -> list[str]:
    """A column of the tables of a section."""
    return [row[number] for row in table(section(PAGE, title))]


def coded(title: str, number: int = 0) -> list[str]:
    """What stands as code in it."""
    return [code for cell in column(title, number) for code in CODE.findall(cell)]


QUOTES = [
    *coded("By words of the message"),
    *(quote for quote in coded("How a job fails", 1) if " " in quote),
    *(quote for quote in coded("How a job fails") if " " in quote),
]


def test_each_exit_code_is_told() -> None:
    told = [int(cell) for cell in column("Exit codes") if cell.isdigit()]
    assert told == [code.value for code in ExitCode]


def test_exit_codes_of_processes_are_those_of_the_code() -> None:
    told = {
        (name, int(code))
        for names, code, *_ in table(section(PAGE, "Exit codes"))
        if code.isdigit()
        for name in names.split(", ")
    }
    assert {
        ("agent", agent._SIGTERM_EXIT),
        ("planner", service.REPLACED),
        ("detector", service.REPLACED),
        ("training process", control_thread._AGENT_GONE),
        ("training process", control_thread._BROKEN),
    } <= told


def test_each_error_is_told_by_its_name() -> None:
    assert set(coded("By name of the error")) == sources.errors()


def test_each_kind_of_incident_is_told() -> None:
    assert set(coded("Incidents")) == sources.incidents()
    rows = table(section(ROOT / "docs/concepts/detection.md", "What is told apart"))
    assert {CODE.findall(row[0])[0] for row in rows} == sources.incidents()


def test_each_refusal_is_told() -> None:
    assert set(coded("What the planner refuses")) == sources.refusals() | _codes_of_condemn()


def _codes_of_condemn() -> set[str]:
    """What is first in the pairs that its functions return."""
    found = {condemn.TOO_FEW, condemn.BUDGET}
    for node in sources.nodes("services/planner/trainmover_planner/machines/condemn.py"):
        if isinstance(node, ast.Return) and isinstance(node.value, ast.Tuple):
            found.add(sources.text_of(node.value.elts[0]) or "")
    return found - {""}


def test_each_way_for_a_job_to_fail_is_told() -> None:
    assert set(coded("How a job fails")) - set(QUOTES) == set(get_args(FailureCode))


@pytest.mark.parametrize("quote", QUOTES)
def test_a_message_is_one_that_is_said(quote: str) -> None:
    assert sources.is_said(quote)


def test_a_message_that_nobody_says_would_be_seen() -> None:
    assert len(QUOTES) > 80
    assert not sources.is_said("no job named … runs on that host")
    assert not sources.is_said("runs on this host … no job named")
