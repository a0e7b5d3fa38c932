"""What ``benchmarks.fidelity`` says of jobs whose times are known."""

from __future__ import annotations

from dataclasses import replace

import pytest
from benchmarks.fidelity import Round, compare
from tests.unit.simulator.own_times import DAY, facts_of, history, step

from trainmover.events import executor
from trainmover.job.topology import Frozen
from trainmover_simulator.failures import Failure
from trainmover_simulator.jobs.observed import observe

BEGIN_S, MIDDLE_S, END_S = 100.0, 43_300.0, 86_500.0
"""The planner's day begins at 100 s."""


def told(facts: list[tuple[float, Frozen]], *, slower: float = 1.0) -> list[tuple[float, Frozen]]:
    """These facts with steps in between; in the second half all pauses are longer."""
    found = [*facts]
    lost_s, last_s = 0.0, BEGIN_S
    for number, (at_s, fact) in enumerate(facts):
        if isinstance(fact, executor.StepResumed):
            pause_s = fact.pause_s * (slower if at_s > MIDDLE_S else 1.0)
            found[number] = (at_s, fact.model_copy(update={"pause_s": pause_s}))
            lost_s += pause_s
            found.append(step(at_s, int(at_s - last_s - lost_s)))
    found += [step(BEGIN_S, 1), step(END_S - 1, int(END_S - BEGIN_S - lost_s))]
    return sorted(found, key=lambda item: item[0])


def rounds(failures: list[Failure]) -> list[Round]:
    return [
        Round(BEGIN_S, MIDDLE_S, ()),
        Round(MIDDLE_S, END_S, tuple(failures)),
    ]


def ahead(failures: list[Failure]) -> list[Failure]:
    late = [replace(one, at_s=one.at_s + BEGIN_S) for one in failures]
    return [one for one in late if one.at_s >= MIDDLE_S]


def test_a_job_that_stays_as_it_was_is_foretold() -> None:
    failures = history(apart_s=700.0)
    run = observe(told(facts_of(DAY, failures)))
    found = compare(run, rounds(ahead(failures)))
    assert found["real"]["migrations"] == len(ahead(failures)) > 15
    assert found["deviation"]["holds"]
    assert found["deviation"]["crash_s"] == pytest.approx(0.0, abs=0.01)
    assert found["deviation"]["planned_s"] == pytest.approx(0.0, abs=0.01)
    assert found["deviation"]["ettr"] == pytest.approx(0.0, abs=0.002)
    assert found["simulated"]["standbys_used"] == found["real"]["standbys_used"]
    assert found["planner"]["migrations"] == found["real"]["migrations"]


def test_a_job_that_changes_is_not() -> None:
    failures = history(apart_s=700.0)
    run = observe(told(facts_of(DAY, failures), slower=1.5))
    deviation = compare(run, rounds(ahead(failures)))["deviation"]
    assert deviation["crash_s"] == pytest.approx(1 / 1.5 - 1, abs=0.02)
    assert not deviation["holds"]


def test_a_migration_that_nobody_asked_for_shows() -> None:
    failures = history(apart_s=700.0)
    run = observe(told(facts_of(DAY, failures)))
    missing = ahead(failures)[1:]
    deviation = compare(run, rounds(missing))["deviation"]
    assert deviation["migrations"] == -1
    assert not deviation["holds"]
