"""Whatever happens, in whatever order: what a rank never decides."""

from __future__ import annotations

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
)
from tests.unit.executor.decisions import LEAVER, STAYER, active, plan, standby

from trainmover.commands import AbortMigration, BreakStep, Prepare, Recover, SaveCheckpoint
from trainmover.job.plan import Plan
from trainmover_executor.decisions import core
from trainmover_executor.decisions.chart import RANK
from trainmover_executor.decisions.effects import (
    Abort,
    Action,
    Agreed,
    AnswerCalls,
    BetweenBroke,
    BetweenPassed,
    Break,
    Broke,
    CouldNotJoin,
    Event,
    HandedOut,
    Heard,
    Joined,
    Joins,
    LeadPaused,
    Led,
    Left,
    Noted,
    NotParked,
    Park,
    Parked,
    Recovers,
    SaveTaken,
    Stopped,
    Switched,
    VoteBegun,
    VoteBroke,
    VotePassed,
    Warm,
)
from trainmover_executor.decisions.state import WorkerState

AHEAD = st.sampled_from([-1, 0, 1, 1, 1, 2])
"""How far a plan's epoch is ahead of ours."""


class RankMachine(RuleBasedStateMachine):
    """A training thread that goes where the chart lets it, and a control thread that interrupts."""

    def __init__(self) -> None:
        super().__init__()
        self.state = active()
        self.dialling: list[Plan] = []
        self.aborted: set[int] = set()

    @initialize(role=st.sampled_from(["stayer", "leaver", "standby"]))
    def begins(self, role: str) -> None:
        match role:
            case "stayer":
                self.state = active(STAYER)
            case "leaver":
                self.state = active(LEAVER)
            case _:
                self.state = standby()

    def take(self, event: Event) -> tuple[Action, ...]:
        before = self.state
        self.state, actions = core.step(before, event)
        assert core.step(before, event) == (self.state, actions), "equal input, another output"
        RANK.check(before.phase, self.state.phase)
        assert self.state.epoch >= before.epoch, "INV-EPOCH-MONOTONE"
        assert self.state.committed >= before.committed or isinstance(event, Joined)
        for action in actions:
            self.check(action)
        return actions

    def check(self, action: Action) -> None:
        match action:
            case Break(epoch=epoch):
                assert self.state.broken is not None
                assert epoch >= self.state.epoch, "links of an epoch that is over"
            case Park(plan=plan) | AnswerCalls(plan=plan):
                self.dialling.append(plan)
            case _:
                pass

    # -- the control thread ----------------------------------------------------------------------

    @rule(ahead=AHEAD)
    def prepare(self, ahead: int) -> None:
        epoch = max(2, self.state.epoch + ahead)
        if epoch not in self.aborted:  # epochs are used once
            self.take(Heard(Prepare(plan=plan(epoch))))

    @precondition(lambda self: self.dialling)
    @rule(fails=st.booleans(), data=st.data())
    def phase_one_ends(self, data: st.DataObject, *, fails: bool) -> None:
        one = self.dialling.pop(data.draw(st.integers(0, len(self.dialling) - 1)))
        self.take(NotParked(one, "nobody listens") if fails else Parked(one, 0.1))

    @rule(ahead=AHEAD, called=st.booleans())
    def abort(self, ahead: int, *, called: bool) -> None:
        epoch = max(1, self.state.epoch + ahead)
        under_vote = self.state.voted_on, self.state.switching
        if not any(one is not None and one.epoch == epoch for one in under_vote):
            self.aborted.add(epoch)
        command = AbortMigration(migration=f"m-{epoch}", epoch=epoch, reason="x")
        self.take(Abort(command, called=called))

    @rule(ahead=AHEAD)
    def recover(self, ahead: int) -> None:
        new = plan(max(2, self.state.epoch + ahead), kind="failure")
        self.take(Heard(Recover(plan=new)))

    @rule(ahead=AHEAD)
    def breaks(self, ahead: int) -> None:
        self.take(Broke("rank 1 is gone", epoch=max(1, self.state.epoch + min(ahead, 1))))

    @rule(ahead=AHEAD)
    def is_told_to_break(self, ahead: int) -> None:
        self.take(Heard(BreakStep(epoch=max(1, self.state.epoch + ahead), reason="frozen")))

    @rule()
    def is_told_to_save(self) -> None:
        self.take(Heard(SaveCheckpoint(epoch=self.state.epoch, reason="nobody is left")))

    # -- the training thread ---------------------------------------------------------------------

    @property
    def dead(self) -> bool:
        return bool(self.state.refusal)

    def whole(self) -> bool:
        return self.state.broken is None and not self.dead

    @precondition(lambda self: self.state.phase == "training" and self.whole())
    @rule(may_switch=st.booleans())
    def votes(self, *, may_switch: bool) -> None:
        self.take(VoteBegun(may_switch))
        voted_on = self.state.voted_on
        assert may_switch or voted_on is None
        assert voted_on is None or voted_on.epoch not in self.aborted, "votes for what was aborted"

    @precondition(lambda self: self.state.phase == "voting")
    @rule(how=st.sampled_from(["all", "some", "broke", "unsent"]))
    def vote_ends(self, how: str) -> None:
        before = self.state
        mine = before.voted_on.epoch if before.voted_on is not None else before.epoch
        match how:
            case "broke" | "unsent":
                self.take(VoteBroke("links broke", cast=how == "broke"))
                assert self.state.broken is not None
            case _:
                lowest = mine if how == "all" else before.epoch
                self.take(VotePassed(lowest, mine))
                assert self.state.committed == before.committed + 1, "INV-NO-LOST-STEP"
                switching = self.state.switching
                assert (switching == before.voted_on) if lowest > before.epoch else not switching
        if before.aborted and self.state.switching is None:
            assert self.state.prepared is None, "an abort that waited for the vote was lost"

    @precondition(lambda self: self.state.phase == "switching" and self.whole())
    @rule()
    def switches(self) -> None:
        voted = self.state.switching
        assert voted is not None
        if self.state.rank in voted.joining_ranks:
            self.take(Left(voted))
        else:
            self.take(Switched(voted))
            assert self.state.epoch == voted.epoch

    @precondition(lambda self: self.state.phase == "recovering" and self.whole())
    @rule()
    def hands_out(self) -> None:
        agreed = self.state.recovering
        assert agreed is not None
        self.take(HandedOut(agreed))

    @precondition(lambda self: self.state.phase == "training" and self.whole())
    @rule(passes=st.booleans())
    def works_between_steps(self, *, passes: bool) -> None:
        self.take(BetweenPassed() if passes else BetweenBroke("links broke"))

    @precondition(
        lambda self: (
            self.state.phase in {"training", "switching", "left", "recovering", "agreeing"}
            and self.state.broken is not None
            and not self.dead
        )
    )
    @rule()
    def stops(self) -> None:
        self.take(Stopped())

    @precondition(lambda self: self.state.phase == "broken" and not self.dead)
    @rule()
    def looks_for_news(self) -> None:
        if (new := self.state.next_recovery) is not None:
            self.take(Recovers(new))
        elif self.state.save is not None:
            self.take(SaveTaken())

    @precondition(lambda self: self.state.phase == "agreeing" and self.whole())
    @rule(more=st.sampled_from([(0, 0), (1, 0), (0, 1), (2, 0)]))
    def agrees(self, more: tuple[int, int]) -> None:
        before = self.state
        new = before.recovery
        assert new is not None
        assert new.epoch == before.epoch
        self.take(Agreed(new, before.committed + more[0], before.between + more[1]))
        held = {"": (0, 0), "step": (1, 0), "between": (0, 1)}[before.undecided]
        assert self.dead == (more not in {(0, 0), held}), "takes a step whose gradients it lacks"

    @precondition(lambda self: self.state.confirmed is not None)
    @rule()
    def takes_note(self) -> None:
        self.take(Noted())

    @precondition(lambda self: self.state.leading is not None)
    @rule()
    def has_led(self) -> None:
        leading = self.state.leading
        assert leading is not None
        self.take(Led(leading, 0.2))
        assert self.state.prepared == leading

    @precondition(lambda self: self.state.leading is not None and self.state.phase == "training")
    @rule()
    def call_ends(self) -> None:
        leading = self.state.leading
        assert leading is not None
        self.take(LeadPaused(leading))
        assert self.state.prepared != leading, "votes for a joiner that is on its way again"
        assert self.state.leading == leading

    # -- the training thread of a standby --------------------------------------------------------

    @precondition(lambda self: self.state.phase == "warm" and self.state.wanted is not None)
    @rule()
    def joins(self) -> None:
        wanted = self.state.wanted
        assert wanted is not None
        self.take(Joins(wanted))

    @precondition(lambda self: self.state.phase == "joining")
    @rule(fails=st.booleans())
    def has_joined(self, *, fails: bool) -> None:
        tried = self.joined_plan()
        if fails or not self.whole() or tried is None:
            self.take(CouldNotJoin(tried or plan(self.state.epoch), "x", links_broke=True))
            assert self.state.phase == "warm"
        else:
            self.take(Joined(tried, committed=5, between=0))
            assert not self.state.standby

    def joined_plan(self) -> Plan | None:
        for one in (self.state.recovery, self.state.joining):
            if one is not None and one.epoch == self.state.epoch:
                return one
        return None

    @precondition(lambda self: self.state.phase == "starting")
    @rule()
    def is_warm(self) -> None:
        self.take(Warm())

    # -- always ----------------------------------------------------------------------------------

    @invariant()
    def nobody_goes_on_past_a_recovery_plan(self) -> None:
        assert self.state.next_recovery is None or self.state.broken is not None

    @invariant()
    def what_waits_is_for_a_later_epoch(self) -> None:
        state = self.state
        for one in (state.prepared, state.leading, state.voted_on, state.switching):
            assert one is None or one.epoch > state.epoch

    @invariant()
    def one_change_at_a_time(self) -> None:
        state = self.state
        assert state.switching is None or state.recovering is None
        assert state.voted_on is None or state.phase == "voting"
        assert not state.aborted or state.voted_on is not None

    @invariant()
    def a_standby_takes_part_in_nothing(self) -> None:
        state: WorkerState = self.state
        if state.standby:
            assert state.phase in {"starting", "warm", "joining"}
            assert (state.prepared, state.leading, state.unconfirmed) == (None, None, None)


TestRankMachine = RankMachine.TestCase
TestRankMachine.settings = settings(max_examples=150, stateful_step_count=40, deadline=None)
