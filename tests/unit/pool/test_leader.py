"""The core of a pool's leader, one decision at a time; tests/simulation/test_pool.py has more."""

from __future__ import annotations

from collections.abc import Iterable

from trainmover.events.machine import PoolMachineSeen
from trainmover.policy.sharing import JobShare, Sharing
from trainmover.protocol.requests import PoolStatus, StandbysStatus
from trainmover_pool import core
from trainmover_pool.state import (
    Ask,
    Assigning,
    Command,
    Declared,
    Event,
    JobSeen,
    JobUnknown,
    Leading,
    MachineSeen,
    Recalling,
    Released,
    Reply,
    State,
    Tick,
)

TERM = 7


class Pool:
    """A leader, driven by hand."""

    def __init__(self, **jobs: JobShare) -> None:
        self.state = State(pool="p", term=TERM)
        self.now_s = 1000.0
        self.offers: dict[str, int] = {}
        self.do(Declared(Sharing(jobs=jobs)))

    def do(self, event: Event) -> list[Command]:
        self.state, commands = core.step(self.state, event, self.now_s)
        return list(commands)

    def seen(self, name: str, phase: str = "idle", job: str | None = None, **more: object):
        self.offers[name] = self.offers.get(name, 0) + 1
        given = {"term": TERM, "run": f"{name}-1"} | more
        fact = PoolMachineSeen(machine=name, offer=self.offers[name], phase=phase, job=job, **given)
        return self.do(MachineSeen(fact))

    def job(self, name: str, **status: object) -> list[Command]:
        return self.do(JobSeen(name, StandbysStatus(**{"phase": "running"} | status)))

    def status(self) -> PoolStatus:
        (reply,) = self.do(Ask("r-1"))
        assert isinstance(reply, Reply)
        return reply.status


def share(priority: int = 0, wanted: int = 1, quota: int | None = None) -> JobShare:
    return JobShare(priority=priority, wanted=wanted, quota=quota, agent=("--", "train.py"))


def assigned(commands: Iterable[Command]) -> list[tuple[str, str]]:
    return [(one.machine, one.job) for one in commands if isinstance(one, Assigning)]


def recalled(commands: Iterable[Command]) -> list[tuple[str, str, str | None]]:
    return [(one.machine, one.job, one.needed_by) for one in commands if isinstance(one, Recalling)]


def test_a_machine_hears_who_leads_before_it_is_assigned() -> None:
    pool = Pool(a=share())
    pool.job("a")
    commands = pool.seen("m-0", term=0)
    assert commands == [Leading("m-0")]
    assert pool.seen("m-0", term=0) == []
    assert assigned(pool.seen("m-0")) == [("m-0", "a")]


def test_nothing_is_decided_for_a_job_that_nobody_knows() -> None:
    pool = Pool(a=share(wanted=3))
    assert assigned(pool.seen("m-0")) == []
    assert assigned(pool.job("a", phase="forming")) == []
    assert assigned(pool.job("a", phase="finished")) == []
    assert assigned(pool.job("a")) == [("m-0", "a")]
    pool.do(JobUnknown("a"))
    assert assigned(pool.seen("m-1")) == []


def test_an_assignment_counts_until_the_machine_could_take_it_no_more() -> None:
    pool = Pool(a=share(quota=1))
    pool.job("a")
    assert assigned(pool.seen("m-0")) == [("m-0", "a")]
    assert assigned(pool.seen("m-1")) == []
    pool.now_s += 7.9
    pool.job("a")
    assert assigned(pool.seen("m-1")) == []
    pool.now_s += 0.2
    assert assigned(pool.job("a")) == [("m-1", "a")]


def test_a_machine_that_may_obey_an_earlier_leader_counts_against_each_quota() -> None:
    pool = Pool(a=share(quota=1))
    pool.job("a")
    pool.seen("m-0", term=3)
    assert assigned(pool.seen("m-1")) == []
    assert assigned(pool.seen("m-0")) != []


def test_a_standby_of_a_lower_priority_goes_to_whom_waits() -> None:
    pool = Pool(high=share(priority=5, wanted=0), low=share(wanted=1))
    pool.seen("m-0", "serving", "low")
    pool.job("low", standbys=1, ready=1, machines={"m-0": "ready"})
    commands = pool.job("high", phase="held", missing=1)
    assert recalled(commands) == [("m-0", "low", "high")]
    assert recalled(pool.do(Tick())) == []
    pool.do(Released("m-0", "low"))
    pool.job("low", machines={"m-0": "gone"})
    assert recalled(pool.do(Tick())) == []
    assert assigned(pool.seen("m-0")) == [("m-0", "high")]


def test_slots_and_promises_are_not_asked_for() -> None:
    pool = Pool(high=share(priority=5, wanted=0), low=share(wanted=1))
    pool.seen("m-0", "serving", "low")
    pool.seen("m-1", "serving", "low")
    pool.job("low", machines={"m-0": "slot", "m-1": "promised"})
    assert recalled(pool.job("high", phase="held", missing=1)) == []


def test_after_a_refusal_another_one_is_asked_for() -> None:
    pool = Pool(high=share(priority=5, wanted=0), low=share(wanted=2))
    pool.seen("m-0", "serving", "low")
    pool.now_s += 1
    pool.seen("m-1", "serving", "low")
    pool.job("low", standbys=2, machines={"m-0": "ready", "m-1": "warming"})
    assert recalled(pool.job("high", phase="held", missing=1)) == [("m-1", "low", "high")]
    commands = pool.do(Released("m-1", "low", "a plan counts on it"))
    assert recalled(commands) == [("m-0", "low", "high")]


def test_a_machine_that_an_operator_keeps_out_is_given_to_nobody() -> None:
    pool = Pool(a=share(), b=share())
    pool.job("a", machines={"m-0": "quarantined"})
    pool.job("b")
    assert assigned(pool.seen("m-0")) == []


def test_a_silent_standby_is_let_go_but_not_when_all_are_silent() -> None:
    pool = Pool(a=share(wanted=2))
    for name in ("m-0", "m-1"):
        pool.seen(name, "serving", "a")
    pool.now_s += 60
    told = {"standbys": 2, "machines": {"m-0": "ready", "m-1": "ready"}}
    assert recalled(pool.job("a", **told)) == []
    assert recalled(pool.seen("m-1", "serving", "a", for_s=60.0)) == [("m-0", "a", None)]


def test_a_dead_machine_counts_for_no_quota() -> None:
    pool = Pool(a=share(quota=1), b=share(wanted=0))
    pool.seen("m-0", "serving", "a")
    pool.job("a", machines={"m-0": "slot"})
    pool.now_s += 30
    pool.job("a", phase="held", missing=1, machines={"m-0": "gone"})
    assert assigned(pool.seen("m-1")) == [("m-1", "a")]


def test_status_says_who_waits_and_why() -> None:
    pool = Pool(high=share(priority=5, wanted=0), low=share(quota=0), off=share())
    pool.job("high", phase="held", missing=1)
    pool.job("low")
    words = {one.job: one.words for one in pool.status().jobs}
    assert "waits for 1 machine: no machine is idle" in words["high"]
    assert words["low"] == "lacks 1 machine: its quota of 0 is used"
    assert "does not answer" in words["off"]
    pool.seen("m-0")
    told = pool.status()
    (machine,) = told.machines
    assert (machine.phase, machine.words) == ("idle", "asked to serve high")
    assert next(one for one in told.jobs if one.job == "high").words == "a machine is on its way"
    pool.now_s += 60
    assert pool.status().machines[0].phase == "silent"


def test_a_file_that_is_wrong_changes_nothing_and_is_told() -> None:
    pool = Pool(a=share())
    pool.job("a")
    pool.do(Declared(None, ("pool.yaml:3: no",)))
    assert assigned(pool.seen("m-0")) == [("m-0", "a")]
    assert pool.status().problems == ("pool.yaml:3: no",)


def test_a_job_that_is_declared_no_more_gives_its_standbys_back() -> None:
    pool = Pool(a=share())
    pool.seen("m-0", "serving", "b")
    for waited_s in range(0, 55, 5):
        assert recalled(pool.job("b", standbys=1, machines={"m-0": "ready"})) == []
        pool.now_s += 5
        pool.seen("m-0", "serving", "b", for_s=waited_s + 5.0)
    pool.now_s += 5
    assert recalled(pool.job("b", standbys=1, machines={"m-0": "ready"})) == [("m-0", "b", None)]


def test_a_planner_that_counts_on_a_machine_that_started_over_is_told() -> None:
    pool = Pool(a=share(wanted=1), b=share(wanted=0))
    pool.seen("m-0", "serving", "a")
    pool.now_s += 20
    pool.job("a", standbys=1, machines={"m-0": "ready"})
    pool.seen("m-0", run="m-0-2")
    pool.now_s += 3
    pool.job("a", standbys=1, machines={"m-0": "ready"})
    assert recalled(pool.seen("m-0", run="m-0-2", for_s=3.0)) == [("m-0", "a", None)]
    assert pool.do(Released("m-0", "a")) == []
    pool.now_s += 1
    assert assigned(pool.job("a", machines={"m-0": "gone"})) == [("m-0", "a")]
