from __future__ import annotations

import pytest

from trainmover.errors import ProtocolError
from trainmover.events.catalog import lookup
from trainmover.protocol import OPEN, TABLE, Deadlines, Phase, Signal, mermaid
from trainmover.protocol.facts import _OF_PHASE
from trainmover.protocol.table import allows, next_phase

KINDS = ("planned", "failure")


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("phase", list(Phase))
@pytest.mark.parametrize("signal", list(Signal))
def test_every_pair_is_in_the_table_or_refused_by_name(kind, phase, signal):
    rows = [
        row for row in TABLE if (row.source, row.signal) == (phase, signal) and kind in row.kinds
    ]
    assert len(rows) == allows(kind=kind, phase=phase, signal=signal)
    if rows:
        assert next_phase("m-1", kind=kind, phase=phase, signal=signal) is rows[0].target
        return
    with pytest.raises(ProtocolError, match=rf"m-1 cannot go from {phase} to \w+"):
        next_phase("m-1", kind=kind, phase=phase, signal=signal)


@pytest.mark.parametrize("kind", KINDS)
def test_every_phase_can_be_reached_and_every_open_one_can_end(kind):
    edges = [(row.source, row.target) for row in TABLE if kind in row.kinds]
    reached = {Phase.PROPOSED}
    for _ in TABLE:
        reached |= {target for source, target in edges if source in reached}
    assert set(Phase) - reached <= ({Phase.FAILED} if kind == "planned" else set())
    for phase in OPEN:
        assert any(source is phase and target not in OPEN for source, target in edges) or any(
            source is phase for source, _ in edges
        )


def test_a_planned_move_is_aborted_only_before_the_switch():
    sources = {row.source for row in TABLE if row.signal is Signal.ABORT and "planned" in row.kinds}
    assert sources == {Phase.PROPOSED, Phase.APPROVED, Phase.PREPARING, Phase.READY}


def test_phases_are_named_like_their_facts():
    for phase, model in _OF_PHASE.items():
        assert lookup(f"dev.trainmover.migration.{phase}.v1").model is model
    assert set(_OF_PHASE) == set(Phase)


def test_deadlines_are_data():
    limits = Deadlines(prepare_s=1, ready_s=2, switch_s=3)
    assert limits.of("planned", Phase.PREPARING) == 1
    assert limits.of("planned", Phase.READY) == 2
    assert limits.of("planned", Phase.SWITCHING) == 3
    assert limits.of("failure", Phase.PREPARING) == 3
    assert limits.of("planned", Phase.COMMITTED) is None


def test_the_diagram_shows_the_table():
    drawn = mermaid("planned")
    assert drawn.startswith("stateDiagram-v2\n    [*] --> proposed\n")
    assert "preparing --> aborted: abort" in drawn
    assert "preparing --> failed" not in drawn
    assert "preparing --> failed: fail" in mermaid("failure")
    assert drawn.count("-->") == len([r for r in TABLE if "planned" in r.kinds]) + 4
