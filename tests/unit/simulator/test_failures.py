from __future__ import annotations

import pytest

from trainmover.errors import ConfigError
from trainmover_simulator.failures import (
    DAY_S,
    MODELS,
    RACK,
    SWITCH,
    FailureModel,
    draw,
    evenly,
    read_csv,
)


def test_the_same_seed_gives_the_same_history() -> None:
    model = MODELS["trainmover"]
    first = draw(model, machines=8_192, days=7, seed=3)
    assert first == draw(model, machines=8_192, days=7, seed=3)
    assert first != draw(model, machines=8_192, days=7, seed=4)


@pytest.mark.parametrize(
    ("name", "gpus", "hours"),
    [("rsc", 16_384, 1.8), ("rsc", 65_536, 0.45), ("rsc", 131_072, 0.225), ("llama3", 16_384, 2.7)],
)
def test_models_have_the_published_time_between_failures(
    name: str, gpus: int, hours: float
) -> None:
    assert MODELS[name].mttf_s(gpus // 8) == pytest.approx(hours * 3_600)
    assert MODELS[name].source


def test_a_long_history_has_the_models_rates() -> None:
    model = MODELS["trainmover"]
    found = draw(model, machines=8_192, days=364, seed=1)
    crashes = [one for one in found if one.kind != "planned"]
    expected = 364 * DAY_S / model.mttf_s(8_192)
    assert len(crashes) == pytest.approx(expected, rel=0.03)
    assert (len(found) - len(crashes)) / len(crashes) == pytest.approx(1 / 8.9, rel=0.1)
    assert [one.at_s for one in found] == sorted(one.at_s for one in found)


def test_racks_and_switches_take_their_machines_together() -> None:
    model = FailureModel("x", "test", 0.01, racks=0.3, switches=0.3)
    found = draw(model, machines=100, days=365, seed=2)
    sizes = {"machine": 1, "rack": RACK, "switch": SWITCH}
    for one in found:
        assert one.slots[0] % sizes[one.kind] == 0 or one.kind == "machine"
        assert len(one.slots) == min(sizes[one.kind], 100 - one.slots[0])
    assert {one.kind for one in found} == set(sizes)


def test_a_history_without_chance_has_as_many_failures_as_a_formula() -> None:
    found = evenly(mttf_s=1_620, planned=0.5, days=7)
    assert len([one for one in found if one.kind == "machine"]) == round(7 * DAY_S / 1_620)
    assert len([one for one in found if one.kind == "planned"]) == round(7 * DAY_S / 3_240)


def test_failures_come_from_a_file() -> None:
    lines = ["at_s,slots,kind", "7200,8-15,rack", "60,3,", "90,2,planned"]
    found = read_csv(lines, machines=16)
    assert [(one.at_s, one.kind) for one in found] == [
        (60, "machine"),
        (90, "planned"),
        (7_200, "rack"),
    ]
    assert found[2].slots == tuple(range(8, 16))


@pytest.mark.parametrize(
    "line", ["60,16,", "60,3,fire", "x,3,", "60,5-3,", "-1,3,", "inf,3,", "60,,", "60,1-,x"]
)
def test_a_line_that_says_nothing_is_named(line: str) -> None:
    with pytest.raises(ConfigError, match="line 3"):
        read_csv(["at_s,slots,kind", "1,1,", line], machines=16)


def test_a_file_without_its_columns_is_refused() -> None:
    with pytest.raises(ConfigError, match="at_s,slots,kind"):
        read_csv(["when,who", "1,2"], machines=16)
