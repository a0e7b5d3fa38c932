"""The charts of the cores, and the page that is drawn from them."""

from __future__ import annotations

from typing import get_args

import pytest
from tests.support.states import PAGE, page

from trainmover.errors import ProtocolError
from trainmover_executor.agent.core import state as agent
from trainmover_executor.agent.core.chart import BAY, MACHINE
from trainmover_planner.state.chart import JOB
from trainmover_planner.state.state import JobPhase

CHARTS = ((JOB, JobPhase), (MACHINE, agent.Phase), (BAY, agent.BayPhase))


@pytest.mark.parametrize(("chart", "phases"), CHARTS)
def test_a_chart_reaches_every_phase_and_knows_no_other(chart, phases):
    reached = {chart.start}
    for _ in chart.arrows:
        reached |= {arrow.target for arrow in chart.arrows if arrow.source in reached}
    assert reached == set(get_args(phases))


def test_what_is_no_arrow_is_refused_by_name():
    JOB.check("running", "held")
    JOB.check("held", "held")
    with pytest.raises(ProtocolError, match="a job cannot go from finished to running"):
        JOB.check("finished", "running")


def test_the_page_is_current():
    assert PAGE.read_text() == page(), "run: python -m tests.support.states"
