"""A machine of a pool decides which job it serves: one, and only on an order that is fresh."""

from __future__ import annotations

from dataclasses import replace

import pytest

from trainmover.commands import ASSIGN_WITHIN_S, Assign, Command, Lead, Stop
from trainmover_executor.pooled import core

NOW_S = 100.0


def idle() -> core.PooledState:
    """It said at 100 s that it is idle: offer 1."""
    state = core.PooledState(machine="m-0", run="r", since_s=90.0)
    state, fact = core.word(state, NOW_S)
    assert (fact.phase, fact.offer, fact.for_s) == ("idle", 1, 10.0)
    return state


def assign(job: str = "gpt", **changes: object) -> Assign:
    return Assign(**{"term": 5, "job": job, "run": "r", "offer": 1} | changes)


def told(
    state: core.PooledState, command: Command, at_s: float = NOW_S + 1
) -> tuple[core.PooledState, list[str]]:
    state, actions = core.step(state, core.Ordered(command), at_s)
    return state, [one.job for one in actions if isinstance(one, core.StartAgent)]


def test_an_order_is_taken_once() -> None:
    state, started = told(idle(), assign())
    assert (started, state.phase, state.job, state.term) == (["gpt"], "serving", "gpt", 5)
    again, started = told(state, assign())
    assert (again, started) == (state, [])
    other, started = told(state, assign("small", term=6))
    assert (other.job, other.term, started) == ("gpt", 6, [])


@pytest.mark.parametrize(
    "order",
    [assign(term=4), assign(run="before"), assign(offer=2), assign(offer=0)],
    ids=["earlier leader", "earlier process", "never said", "long ago"],
)
def test_what_does_not_answer_to_its_word_is_not_taken(order: Assign) -> None:
    state, _ = told(idle(), Lead(term=5))
    assert state.term == 5
    after, started = told(state, order)
    assert (after.phase, started) == ("idle", [])


def test_an_order_is_good_for_a_few_seconds() -> None:
    last_s = NOW_S + ASSIGN_WITHIN_S
    assert told(idle(), assign(), last_s)[1] == ["gpt"]
    assert told(idle(), assign(), last_s + 0.01)[1] == []


def test_an_offer_from_before_it_served_is_worth_nothing_afterwards() -> None:
    state, _ = told(idle(), assign())
    state, _ = core.step(state, core.Ended(0), NOW_S + 2)
    assert state.phase == "idle"
    assert told(state, assign("small"), NOW_S + 2)[1] == []


def test_a_job_whose_agent_ends_soon_is_declined_for_longer_and_longer() -> None:
    state, now_s, waits = idle(), NOW_S, []
    for _ in range(7):
        state, started = told(state, assign(offer=state.offer), now_s)
        assert started == ["gpt"]
        state, _ = core.step(state, core.Ended(1), now_s + 1)
        waits.append(state.declines["gpt"].until_s - (now_s + 1))
        state, fact = core.word(state, now_s + 2)
        assert "exit code 1" in fact.declines["gpt"]
        assert told(state, assign(offer=state.offer), now_s + 2)[1] == []
        assert told(state, assign("small", offer=state.offer), now_s + 2)[1] == ["small"]
        now_s = state.declines["gpt"].until_s + 1
        state, fact = core.word(state, now_s)
        assert fact.declines == {}
    assert waits == [10.0, 20.0, 40.0, 80.0, 160.0, 300.0, 300.0]


def test_an_agent_that_ran_well_is_forgiven() -> None:
    state, _ = told(idle(), assign())
    state, _ = core.step(state, core.Ended(1), NOW_S + 2)
    state = replace(state, phase="serving", job="gpt", since_s=NOW_S + 20)
    state, _ = core.step(state, core.Ended(1), NOW_S + 200)
    assert state.declines == {}


def test_one_that_could_not_be_started_is_declined_with_the_reason() -> None:
    state, _ = told(idle(), assign())
    state, _ = core.step(state, core.Ended(None, "there is no job"), NOW_S + 500)
    _, fact = core.word(state, NOW_S + 500)
    assert fact.declines == {"gpt": "there is no job"}


def test_it_leaves_once_its_agent_is_gone() -> None:
    state, _ = told(idle(), assign())
    state, actions = core.step(state, core.Terminate(), NOW_S + 2)
    assert actions == (core.StopAgent(),)
    _, fact = core.word(state, NOW_S + 2)
    assert (fact.phase, fact.job) == ("leaving", "gpt")
    assert told(state, assign("small", term=9))[1] == []
    _, actions = core.step(state, core.Ended(143), NOW_S + 3)
    reason = "this machine was asked to end"
    assert actions == (core.Log("pool.served", {"job": "gpt", "reason": reason}), core.Exit())


def test_an_idle_one_leaves_at_once() -> None:
    _, actions = core.step(idle(), core.Terminate(), NOW_S)
    assert actions == (core.Exit(),)


def test_other_commands_mean_nothing_to_it() -> None:
    state, started = told(idle(), Stop(term=7, reason="the job is over"))
    assert (state.phase, state.term, started) == ("idle", 7, [])
