"""A policy file: what it means, and what is said about one that means nothing."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trainmover.policy import Policy, PolicyError, Problem, Rebalance, Rule, declared, read
from trainmover_console.cli.output import to_yaml

EXAMPLE = """
automation: approval
keep_reserve: 1
cooldown: 2m
moves_per_hour: 6
moves_per_hour_by: {rack: 2}
rules:
  - name: nights
    kind: [straggler, degraded]
    labels: {rack: [r12, no]}
    hours: [mon-fri 22:00-06:00, "sat,sun"]
    then: wait
  - detector: straggler, links
    votes: 2
    dwell: 1h30m
    then: act
"""


def problems(text: str, **options: object) -> list[str]:
    with pytest.raises(PolicyError) as caught:
        read(text, name="p.yaml", options=options)
    return [str(one) for one in caught.value.problems]


def test_an_example() -> None:
    policy = read(EXAMPLE, name="p.yaml")
    nights, second = policy.rules
    assert (policy.automation, policy.cooldown_s, policy.moves_per_hour) == ("approval", 120.0, 6)
    assert policy.moves_per_hour_by == {"rack": 2}
    assert nights.labels == {"rack": ("r12", "no")}, "a text stays one, whatever YAML makes of it"
    assert (second.name, second.detector, second.dwell_s) == (
        "rule 2",
        ("straggler", "links"),
        5400.0,
    )


def test_an_empty_file_is_the_defaults() -> None:
    assert read("", name="p") == read("# nothing\n", name="p") == Policy()


def test_the_command_line_comes_before_the_file() -> None:
    policy = read(EXAMPLE, name="p", options={"automation": "paused", "topology": "leaf,pod"})
    assert (policy.automation, policy.topology) == ("paused", ("leaf", "pod"))
    assert policy.keep_reserve == 1


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ("rebalance: 10m", Rebalance(every_s=600, at_most=1, least=0.03)),
        (
            "rebalance: {every: 90s, at_most: 2, least: 5 %}",
            Rebalance(every_s=90, at_most=2, least=0.05),
        ),
        ("rebalance: {least: 0.1}", Rebalance(least=0.1)),
        ("rebalance: {}", Rebalance()),
        ("rebalance: off", None),
        ("", None),
    ],
)
def test_how_often_to_rebalance(text: str, wanted: Rebalance | None) -> None:
    policy = read(text, name="p")
    assert policy.rebalance == wanted
    assert read(to_yaml(declared(policy)), name="shown") == policy
    assert read(text, name="p", options={"rebalance": "off"}).rebalance is None
    assert read(text, name="p", options={"rebalance": "1h"}).rebalance == Rebalance(every_s=3600)


@pytest.mark.parametrize(
    ("text", "line", "says"),
    [
        ("automation: nah", 1, "'automatic', 'approval' or 'paused', not 'nah'"),
        ("\nkeep_reserve: -1", 2, "greater than or equal to 0"),
        ("cooldown: soon", 1, "write for instance 90s"),
        ("cooldown: inf", 1, "less than"),
        ("moves_per_hour: 1.5", 1, "Write for instance 'moves_per_hour: 6'"),
        ("keep_reserv: 1", 1, "Did you mean 'keep_reserve'?"),
        ("cooldown_s: 1", 1, "Did you mean 'cooldown'?"),
        ("a: 1", 1, "Known are automation"),
        ("rules:\n- then: act\n- then: atc", 3, "rule 2, then: Input should be 'act'"),
        ("rules:\n- then: act\n  dwel: 3m", 3, "Did you mean 'dwell'?"),
        ("rules:\n- kind: straggler", 2, "then: this has to be said"),
        ("rules:\n- then: act\n  hours: 25:00-26:00", 3, "no time of a day"),
        ("rules:\n- then: act\n  hours: [monday]", 3, "'monday' in 'monday' is no day"),
        ("rules:\n- then: act\n  hours: 08:00-08:00", 3, "leave the times out"),
        ("rules:\n- kind: machine_failed\n  then: ignore", 2, "is always replaced"),
        ("rules:\n- then: act\n  votes: 3\n  detector: x", 2, "3 votes of 1 detectors"),
        ("rules:\n- then: act\n  labels: {rack: []}", 3, "at least 1 item"),
        ("rules:\n- {name: a, then: act}\n- {name: a, then: act}", 1, "two rules are called 'a'"),
        ("\nrebalance: soon", 2, "rebalance, every: 'soon' is no duration: write for instance"),
        ("rebalance:\n  every: 10m\n  evry: 5m", 3, "Did you mean 'every'?"),
        (
            "rebalance:\n  every: 0",
            2,
            "rebalance, every: Input should be greater than or equal to 1",
        ),
        ("rebalance: {least: much}", 1, "'much' is no share: write for instance 3% or 0.03"),
        ("rebalance: {least: 80%}", 1, "less than or equal to 0.5"),
        ("rebalance: {at_most: 0}", 1, "rebalance, at_most: Input should be greater than or equal"),
        ("rebalance: [10m]", 1, "Write for instance 'rebalance: {every: 10m, at_most: 1"),
        ("rules: 3", 1, "a list is needed"),
        ("rules: [[1]]", 1, "'key: value' lines are needed"),
        ("- automation", 1, "a policy is a list of 'key: value' lines"),
        ("a: b: c", 1, "no YAML"),
        ("automation: paused\nautomation: paused", 2, "said twice"),
        ("topology: &x [a]\nrules: *x", 1, "anchors"),
        ("x: " + "[" * 50 + "]" * 50, 1, "too deeply"),
        ("[" * 9000, 1, ""),
        ("\x00", 1, "no YAML"),
        ("? [a]\n: b", 1, "a key is one word"),
        ("a: 1\n---\nb: 2", 2, "no YAML"),
        ("#" * 70_000, 1, "70000 bytes"),
    ],
)
def test_what_is_wrong_is_told_with_its_line(text: str, line: int, says: str) -> None:
    first, *_ = problems(text)
    assert first.startswith(f"p.yaml:{line}: "), first
    assert says in first
    assert "\n" not in first


def test_all_problems_are_told_at_once() -> None:
    assert len(problems("automation: nah\nkeep_reserve: -1\ncooldown: soon")) == 3
    assert len(problems("automatio: nah\nkeep_reserv: -1")) == 2


def test_a_wrong_option_is_told_by_its_name() -> None:
    (one,) = problems(EXAMPLE, keep_reserve=-1)
    assert one.startswith("--keep-reserve: ")
    (one,) = problems(EXAMPLE, rebalance="soon")
    assert one.startswith("--rebalance: 'soon' is no duration")
    (one,) = problems(EXAMPLE, cooldown_s=float("nan"))
    assert one.startswith("--cooldown: ")


@given(text=st.text(alphabet="abck:-[]{}&*!|>'\"#\n \t0123456789,?%@`~", max_size=60))
def test_no_text_breaks_it(text: str) -> None:
    found: tuple[Problem, ...] = ()
    try:
        read(text, name="p")
    except PolicyError as error:
        found = error.problems
    assert all(one.where.startswith("p:") and one.what for one in found)


WORD = st.text(alphabet="abcz-_0", min_size=1, max_size=5)
RULES = st.builds(
    Rule,
    name=st.just(""),
    kind=st.lists(WORD, max_size=2).map(tuple),
    labels=st.dictionaries(WORD, st.lists(WORD, min_size=1, max_size=2).map(tuple), max_size=2),
    hours=st.lists(st.sampled_from(["22:00-06:00", "sat,sun", "mon-fri 08:00-18:30"])).map(tuple),
    then=st.sampled_from(["act", "wait", "ignore"]),
    votes=st.integers(1, 3),
    dwell_s=st.floats(0, 1e6),
)


@given(
    rules=st.lists(RULES, max_size=3),
    moves=st.none() | st.integers(0, 9),
    by=st.dictionaries(WORD, st.integers(0, 9), max_size=2),
    cooldown_s=st.floats(0, 1e6),
)
def test_what_is_shown_is_what_would_be_read(rules, moves, by, cooldown_s) -> None:
    policy = Policy(
        rules=tuple(rules), moves_per_hour=moves, moves_per_hour_by=by, cooldown_s=cooldown_s
    )
    assert read(to_yaml(declared(policy)), name="p") == policy
    assert Policy.model_validate_json(policy.model_dump_json()) == policy
