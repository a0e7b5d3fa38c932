"""What a declared policy makes of incidents: rules, dwell, votes, budgets, and a shadow."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest

from trainmover.events.incident import IncidentClosed
from trainmover.events.machine import MachineLost
from trainmover.events.migration import MigrationApproved, MigrationProposed, MigrationRejected
from trainmover.events.operator import PolicyChanged, PolicyCompared, PolicyRefused
from trainmover.policy import Policy, Rule

RACKS = {"w-0": "a", "w-1": "a", "w-2": "b", "w-3": "b"}


@pytest.fixture
def make(world_class):
    def make(*rules: Rule, spare: int = 3, **policy):
        world = world_class(spare=spare, cooldown_s=0, rules=rules, **policy)
        for number in range(4 + spare):
            name = f"w-{number}"
            world.register(name, labels={"rack": RACKS.get(name, "c")})
        for number in range(4, 4 + spare):
            world.warming(f"w-{number}")
            world.ready(f"w-{number}")
        world.layouts()
        return world

    return make


def moved(world, commands) -> list[str]:
    return [fact.leaver for fact in world.facts(commands) if isinstance(fact, MigrationApproved)]


def close(world) -> list:
    return world.say(IncidentClosed(id=f"i-{world.incidents}", reason="quick again"), "/detector")


def test_the_first_rule_that_matches_decides(make):
    world = make(
        Rule(labels={"rack": ("a",)}, detector=("straggler",), then="ignore"),
        Rule(labels={"rack": ("a", "b")}, then="wait"),
    )
    assert moved(world, world.straggler("w-0")) == []
    assert world.names()[-1] != "MigrationProposed"
    assert isinstance(world.facts(world.straggler("w-2"))[-1], MigrationProposed)
    assert isinstance(
        world.facts(world.advised("w-1", "move", kind="odd", by="links"))[-1], MigrationProposed
    )


def test_automation_is_the_most_that_a_rule_may_do(make):
    world = make(Rule(then="act"), automation="approval")
    world.straggler("w-0")
    assert world.names()[-1] == "MigrationProposed"


def test_it_must_have_been_open_for_the_dwell(make):
    world = make(Rule(dwell_s=60, then="act"))
    assert moved(world, world.straggler("w-0")) == []
    assert moved(world, world.wait(59)) == []
    assert moved(world, world.wait(1)) == ["w-0"]


@pytest.mark.parametrize(("gap_s", "moves"), [(5, ["w-0"]), (15, [])])
def test_a_finding_that_comes_back_soon_goes_on_where_it_was(make, gap_s, moves):
    world = make(Rule(dwell_s=60, settle_s=10, then="act"))
    world.straggler("w-0")
    world.wait(40)
    close(world)
    world.wait(gap_s)
    world.straggler("w-0")
    assert moved(world, world.wait(21)) == moves


def test_so_many_detectors_must_agree(make):
    world = make(Rule(detector=("straggler", "links", "hang"), votes=2, then="act"))
    world.straggler("w-0")
    assert moved(world, world.advised("w-0", "move", by="numeric")) == ["w-0"], "no rule for it"
    world = make(Rule(detector=("straggler", "links"), votes=2, then="act"), Rule(then="ignore"))
    assert moved(world, world.straggler("w-0")) == []
    assert moved(world, world.advised("w-0", "move", by="hang")) == [], "its voice does not count"
    assert moved(world, world.advised("w-1", "move", by="links")) == [], "it means another machine"
    assert moved(world, world.advised("w-0", "move", by="links")) == ["w-0"]


def test_a_window_opens_and_closes(make):
    world = make(Rule(hours=("mon-fri 22:00-06:00",), then="act"), Rule(then="ignore"))
    noon = datetime(2026, 11, 24, 12, tzinfo=UTC).timestamp()
    world.now_s = noon
    world.straggler("w-0")
    assert moved(world, world.wait(10 * 3600 - 1)) == []
    assert moved(world, world.wait(1)) == ["w-0"]


def test_a_budget_counts_within_the_hour(make):
    world = make(spare=3, moves_per_hour=2)
    for name in ("w-0", "w-1"):
        assert moved(world, world.straggler(name)) == [name]
        world.finish(world.last_plan())
    refused = world.facts(world.straggler("w-2"))[-1]
    assert isinstance(refused, MigrationRejected)
    assert (refused.code, "2 machines within an hour and may move 2" in refused.reason) == (
        "budget",
        True,
    )
    assert moved(world, world.wait(3599)) == []
    assert moved(world, world.wait(1)) == ["w-2"]


def test_a_budget_of_each_rack(make):
    world = make(spare=3, moves_per_hour_by={"rack": 1})
    for name, moves in (("w-0", ["w-0"]), ("w-1", []), ("w-2", ["w-2"])):
        assert moved(world, world.straggler(name)) == moves
        if moves:
            world.finish(world.last_plan())


def test_a_successor_knows_what_was_spent(make):
    world = make(spare=3, moves_per_hour=1)
    world.straggler("w-0")
    world.finish(world.last_plan())
    world.restart()
    assert moved(world, world.straggler("w-1")) == []


def test_operators_move_beyond_the_budget(make):
    world = make(moves_per_hour=0)
    world.straggler("w-0")
    assert world.ask("migrate", machine="w-0")["ok"]


# -- machines that a detector wants to end ---------------------------------------------------------


def lost(world, commands) -> list[str]:
    return [fact.machine for fact in world.facts(commands) if isinstance(fact, MachineLost)]


def test_no_rule_keeps_the_dead(make):
    world = make(Rule(then="ignore"), Rule(hours=("sat",), then="ignore"))
    assert lost(world, world.failed("w-0")) == ["w-0"]


@pytest.mark.parametrize("restart", [False, True])
def test_an_opinion_dwells_too(make, restart):
    world = make(Rule(kind=("hang",), dwell_s=30, then="act"))
    assert lost(world, world.advised("w-0", "recover")) == []
    assert lost(world, world.wait(29)) == []
    commands = world.wait(1)
    assert lost(world, commands) == ["w-0"]
    if restart:
        close(world)
        world.restart()
    assert [one.slot for one in world.last_plan().moves] == [0]
    assert len(world.state.fenced) == 1, "a successor counts it, too"


def test_an_opinion_that_is_left_to_a_person_is_said_once(make):
    world = make(Rule(kind=("hang",), then="wait"))
    commands = world.advised("w-0", "recover")
    (said,) = [one for one in world.facts(commands) if isinstance(one, MigrationRejected)]
    assert (said.code, "rule 1" in said.reason) == ("left_to_operator", True)
    assert world.facts(world.wait(500)) == []


def test_an_opinion_that_is_ignored_says_nothing(make):
    world = make(Rule(kind=("hang",), then="ignore"))
    assert world.facts(world.advised("w-0", "recover")) == []


# -- what is declared while it runs ----------------------------------------------------------------


def declare(world, *rules: Rule, source: str = "p.yaml", shadow: Policy | None = None, **policy):
    told = Policy(rules=rules, cooldown_s=0, **policy)
    return world.do(PolicyChanged(policy=told, source=source, shadow=shadow))


def test_a_new_policy_is_a_fact_and_decides_at_once(make):
    world = make(Rule(then="ignore"))
    world.straggler("w-0")
    commands = declare(world)
    assert world.names(commands)[0] == "PolicyChanged"
    assert moved(world, commands) == ["w-0"]
    assert world.facts(declare(world)) == [], "the same again is no news"


def test_a_proposal_is_withdrawn_when_its_incident_is_to_be_ignored(make):
    world = make(Rule(then="wait"))
    world.straggler("w-0")
    assert "MigrationAborted" in world.names(declare(world, Rule(name="calm", then="ignore")))
    assert world.state.waiting == []


def test_a_successor_reads_at_each_moment_what_held_then(make):
    """Otherwise a strict policy of today would end machines that it was asked to spare then."""
    world = make(Rule(then="ignore"))
    world.advised("w-0", "recover")
    close(world)
    declare(world)
    world.restart()
    assert world.state.deaths.get(("w-0", 0)) is None
    assert world.state.policy.rules == ()


def test_a_bad_file_keeps_the_old_policy_and_a_good_one_says_so(make):
    world = make()
    declare(world, keep_reserve=1)
    bad = PolicyRefused(source="p.yaml", problems=("p.yaml:1: no",))
    assert world.facts(world.do(bad)) == [bad]
    assert world.facts(world.do(bad)) == [], "once is enough"
    world.restart()
    assert world.state.policy.keep_reserve == 1
    assert world.ask("policy")["problems"] == ["p.yaml:1: no"]
    assert world.names(declare(world, keep_reserve=1)) == ["PolicyChanged"]
    assert world.ask("policy")["problems"] == []


def test_who_spoke_last_is_heard(make):
    world = make()
    declare(world, automation="approval")
    assert world.state.control.mode == "approval"
    world.ask("automation", mode="paused", reason="night", requested_by="ada")
    declare(world, automation="approval", keep_reserve=1)
    assert world.state.control.mode == "paused", "the file says of it what it always said"
    world.restart()
    assert world.state.control.mode == "paused"
    declare(world, automation="automatic")
    assert world.state.control.mode == "automatic"


def test_the_defaults_of_a_command_line_are_no_news(world):
    told = PolicyChanged(policy=world.state.policy, source="command line")
    assert world.facts(world.do(told)) == []
    named = told.model_copy(update={"source": "p.yaml"})
    assert world.facts(world.do(named)) == [named]


# -- a policy that only says what it would do ------------------------------------------------------


def test_a_shadow_says_what_it_would_do_and_moves_nobody(make):
    world = make(Rule(then="ignore"))
    shadow = Policy(rules=(Rule(name="slow", dwell_s=20, then="act"),))
    declare(world, Rule(then="ignore"), shadow=shadow)
    assert world.facts(world.straggler("w-0")) == []
    commands = world.wait(20)
    (said,) = world.facts(commands)
    assert isinstance(said, PolicyCompared)
    assert (said.machine, said.decision, said.would, said.rule) == ("w-0", "ignore", "act", "slow")
    assert "open for 20 s; 20 s are asked" in said.why
    world.restart()
    assert world.facts(world.wait(500)) == [], "it is said once, whoever plans"


# -- explanations ----------------------------------------------------------------------------------


def test_an_explanation_has_the_numbers(make):
    world = make(
        Rule(name="nights", kind=("hang",), then="ignore"),
        Rule(name="slow", dwell_s=60, votes=2, then="act"),
        Rule(name="rest", then="wait"),
        keep_reserve=3,
        moves_per_hour=4,
        moves_per_hour_by={"rack": 2},
    )
    world.straggler("w-0")
    world.wait(20)
    told = world.ask("policy", incident="i-1")["explanation"]
    assert (told["decision"], told["rule"], told["mode"]) == ("act", "slow", "automatic")
    assert [(one["rule"], one["decides"]) for one in told["rules"]] == [
        ("nights", False),
        ("slow", True),
    ]
    assert told["rules"][0]["why"] == "the kind is straggler"
    checks = {one["what"]: (one["holds"], one["words"]) for one in told["checks"]}
    assert checks["dwell"] == (False, "open for 20 s; 60 s are asked")
    assert checks["votes"] == (False, "1 of 2 detectors: straggler")
    assert checks["reserve"] == (False, "3 standbys are ready; 3 of them are kept for crashes")
    budgets = [one["words"] for one in told["checks"] if one["what"] == "budget"]
    assert budgets == [
        "0 machines moved within an hour; 4 may be",
        "0 machines of rack=a moved within an hour; 2 may be",
    ]


def test_what_is_not_open_cannot_be_explained(make):
    world = make()
    told = world.ask("policy", incident="i-9")
    assert (told["code"], told["next_step"]) == ("unknown_incident", "Open are: none.")
