"""``trainmover pool advise``, as it is used without a job."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from trainmover_console.cli.app import app
from trainmover_console.cli.pool.question import Asked, long_words
from trainmover_simulator.jobs.losses import Losses

GIVEN = ("--machines", "64", "--mtbf", "50d", "--repair", "24h")


def ask(*words: str) -> tuple[int, str, str]:
    found = CliRunner().invoke(app, ["pool", "advise", *words])
    return found.exit_code, found.stdout, found.stderr


def data(*words: str) -> dict[str, Any]:
    code, text, errors = ask(*words, "--json")
    assert code == 0, errors
    answer: dict[str, Any] = json.loads(text)
    return answer


def test_people_get_a_table_the_advice_and_what_it_assumes() -> None:
    code, text, errors = ask(*GIVEN)
    assert code == 0, errors
    assert re.search(r"^7 \* +99\.951% +99\.9923% +5\.1 years", text, re.MULTILINE)
    assert re.search(r"^4 - ", text, re.MULTILINE)
    words = text.replace("\n", " ")
    assert "Keep 7 standbys: 99.951% of the failures find a standby at once" in words
    assert "machines fail independently of each other" in words
    assert max(map(len, text.splitlines())) <= 80


def test_the_same_as_data() -> None:
    found = data(*GIVEN)
    (chosen,) = [row for row in found["rows"] if row["standbys"] == found["standbys"] == 7]
    assert chosen["failures_covered"] >= found["target"] == 0.999
    assert chosen["hours"] == chosen["standby_hours"] + chosen["lost_hours"]
    assert (found["keep_reserve"], found["cautious"], found["simulated"]) == (None, None, None)
    assert found["demand"]["failure_s"] == 50 * 86_400


def test_a_rate_of_the_whole_job_is_the_same_as_that_of_a_machine() -> None:
    found = data("--machines", "64", "--failures", "1.28/day", "--repair", "1d")
    assert found["demand"]["failure_s"] == pytest.approx(50 * 86_400)
    assert found["words"] == data(*GIVEN)["words"]


def test_published_rates_can_be_taken_with_their_racks() -> None:
    found = data("--machines", "64", "--rates", "c4", "--repair", "24h")
    assert (found["demand"]["group"], found["demand"]["group_share"]) == (8, 0.175)
    assert "HPCA 2025" in " ".join(found["assumptions"])


def test_groups_need_more_and_a_share_of_time_needs_fewer() -> None:
    groups = data(*GIVEN, "--group", "8", "--group-share", "5%")
    assert groups["standbys"] > data(*GIVEN)["standbys"] > data(*GIVEN, "--by", "time")["standbys"]


def test_moves_ask_for_a_reserve() -> None:
    found = data(*GIVEN, "--moves", "3/week")
    assert (found["standbys"], found["keep_reserve"]) == (7, 3)
    assert "keep_reserve: 3" in " ".join(found["words"])
    code, text, _ = ask(*GIVEN, "--moves", "3/week")
    assert code == 0
    assert re.search(r"^7 \* .* 3 +90%", text, re.MULTILINE)
    assert max(map(len, text.splitlines())) <= 80


def test_a_history_is_drawn_beside_the_formula() -> None:
    found = data(*GIVEN, "--target", "95%", "--simulate", "--seed", "3")
    (row,) = [row for row in found["rows"] if row["standbys"] == found["standbys"]]
    for repair in ("exponential", "constant"):
        share = found["simulated"][repair]["failures_covered"]
        assert abs(share["mean"] - row["failures_covered"]) < 2 * share["error"]
    code, text, _ = ask(*GIVEN, "--simulate")
    assert code == 0
    assert re.search(r"failures covered +99\.95\d+% +99\.\d+% \+- ", text)


@pytest.mark.parametrize(
    ("words", "cure"),
    [
        (("--machines", "4", "--mtbf", "5x", "--repair", "1h"), "write for instance 90s"),
        (("--machines", "4", "--mtbf", "nan", "--repair", "1h"), "--mtbf 150d"),
        (("--machines", "4", "--mtbf", "-5", "--repair", "1h"), "--mtbf 150d"),
        ((*GIVEN, "--failures", "1/week"), "give one of them"),
        (("--machines", "4", "--failures", "0/week", "--repair", "1h"), "--failures 6/week"),
        (("--machines", "4", "--failures", "6", "--repair", "1h"), "--failures 6/week"),
        (("--machines", "4", "--rates", "meta", "--repair", "1h"), "rsc, llama3, c4"),
        ((*GIVEN, "--group", "8"), "--group 8 --group-share 2%"),
        ((*GIVEN, "--group", "65", "--group-share", "2%"), "a group of 1 to 64"),
        ((*GIVEN, "--group", "8", "--group-share", "200%"), "2% or 0.02"),
        ((*GIVEN, "--target", "99.9"), "99.9% or 0.999"),
        ((*GIVEN, "--target", "most"), "99.9% or 0.999"),
        ((*GIVEN, "--by", "money"), "--by failures or --by time"),
        ((*GIVEN, "--elsewhere", "2m", "--simulate"), "leave --elsewhere out"),
        (("--machines", "64", "--mtbf", "1s", "--repair", "9d"), "Look at the units"),
    ],
)
def test_what_says_nothing_is_refused_with_the_cure(words: tuple[str, ...], cure: str) -> None:
    code, text, errors = ask(*words)
    assert (code, text) == (2, "")
    assert cure in errors.replace("\n", " ")


def test_without_a_job_it_says_what_to_give(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TRAINMOVER_HOME", str(tmp_path))
    code, _, errors = ask("--machines", "4")
    assert code == 2
    assert "give --machines, --mtbf and --repair" in errors


# -- from what was seen ---------------------------------------------------------------------------

NOTHING = Asked(
    machines=None,
    mtbf=None,
    failures=None,
    rates=None,
    repair=None,
    group=None,
    group_share=None,
    moves=None,
    elsewhere=None,
    target="99%",
    of="failures",
)
SEEN = Losses(
    slots=8,
    watched_s=30 * 86_400,
    failures=[1, 1, 1, 4],
    moves=6,
    away_s=7 * 3_600,
    returns=7,
)


def test_what_is_not_given_is_what_was_seen() -> None:
    found = NOTHING.question(SEEN)
    demand = found.demand
    assert (demand.machines, demand.failure_s) == (8, 8 * 30 * 86_400 / 4)
    assert (demand.repair_s, demand.group, demand.group_share) == (3_600, 4, 0.25)
    assert demand.move_s == 5 * 86_400
    assert "4 failures seen in 240 d of machine time" in " ".join(found.said)
    assert found.there == 0
    assert found.cautious is not None
    assert found.cautious.failure_s == pytest.approx(demand.failure_s * 4 / 9.154, rel=0.001)


def test_a_job_without_failures_says_how_long_a_machine_runs_at_least() -> None:
    with pytest.raises(Exception, match=r"runs for 80 d or more \(95 % sure\)"):
        NOTHING.question(Losses(slots=8, watched_s=30 * 86_400))


def test_a_job_without_repairs_asks_for_their_time() -> None:
    with pytest.raises(Exception, match="give --repair, for instance --repair 4h"):
        NOTHING.question(Losses(slots=8, watched_s=30 * 86_400, failures=[1]))


def test_a_job_that_has_not_formed_asks_for_its_slots() -> None:
    with pytest.raises(Exception, match="--machines"):
        NOTHING.question(Losses())


@pytest.mark.parametrize(
    ("seconds", "words"),
    [
        (0.0, "0 s"),
        (0.001, "< 0.01 s"),
        (45.0, "45 s"),
        (119.0, "119 s"),
        (120.0, "2 min"),
        (3_600.0, "1 h"),
        (47 * 3_600.0, "47 h"),
        (4.5 * 86_400, "4.5 d"),
        (1_000 * 86_400.0, "2.7 years"),
    ],
)
def test_times_are_said_in_the_unit_that_suits_them(seconds: float, words: str) -> None:
    assert long_words(seconds) == words
