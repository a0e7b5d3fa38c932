"""What a rank decides; each test reads as what happens to one rank, in order."""

from __future__ import annotations

import threading

import pytest
from tests.unit.executor.decisions import LEAVER, Rank, active, back, plan, standby

from trainmover.commands import AbortMigration, BreakStep, Prepare, Recover, SaveCheckpoint
from trainmover.errors import ProtocolError
from trainmover.events.executor import PlanFailed, PlanPrepared, StepBroken
from trainmover.job.plan import Plan
from trainmover_executor.decisions.effects import (
    Abort,
    Agreed,
    AnswerCalls,
    BetweenBroke,
    BetweenPassed,
    Break,
    Broke,
    CancelPhaseOne,
    CouldNotJoin,
    DropParked,
    FirstVote,
    HandedOut,
    Heard,
    Joined,
    Joins,
    LeadFailed,
    Led,
    Left,
    Noted,
    NotParked,
    Park,
    Parked,
    Publish,
    Recovers,
    SaveTaken,
    Stopped,
    Switched,
    VoteBegun,
    VoteBroke,
    VotePassed,
    Warm,
)


def prepare(epoch: int = 2) -> Heard:
    return Heard(Prepare(plan=plan(epoch)))


def recover(epoch: int) -> Heard:
    return Heard(Recover(plan=plan(epoch, kind="failure")))


def abort(epoch: int = 2, *, called: bool = False) -> Abort:
    command = AbortMigration(migration=f"m-{epoch}", epoch=epoch, reason="wrong machine")
    return Abort(command, called=called)


def prepared() -> Rank:
    rank = Rank(active())
    rank.take(prepare(), Parked(plan(2), 0.1))
    return rank


class TestAPlannedMove:
    def test_at_a_stayer(self):
        rank = Rank(active())
        assert rank.take(prepare()) == [Park(plan(2))]
        assert rank.take(prepare()) == []
        (said,) = rank.take(Parked(plan(2), 0.1))
        assert said == Publish(
            PlanPrepared(migration="m-2", machine="m0", rank=0, epoch=2, prepare_s=0.1)
        )
        # One rank is not prepared yet: the step counts, and everybody goes on as before.
        assert rank.take(VoteBegun(may_switch=True), VotePassed(lowest=1, highest=2)) == []
        assert (rank.state.phase, rank.state.committed) == ("training", 1)
        assert rank.take(VoteBegun(may_switch=True), VotePassed(lowest=2, highest=2)) == []
        assert (rank.state.phase, rank.state.switching) == ("switching", plan(2))
        assert rank.take(Switched(plan(2))) == []
        assert (rank.state.phase, rank.state.epoch, rank.state.pending) == ("training", 2, False)
        assert rank.state.unconfirmed == plan(2)
        rank.take(VoteBegun(may_switch=True), VotePassed(lowest=2, highest=2))
        assert (rank.state.committed, rank.state.confirmed) == (3, plan(2))
        assert rank.take(Noted()) == []
        assert rank.state.confirmed is None

    def test_at_its_leaver_and_back(self):
        rank = Rank(active(LEAVER))
        assert rank.take(prepare()) == [Park(plan(2))]
        assert rank.take(Parked(plan(2), 0.1)) == []
        assert (rank.state.leading, rank.state.prepared) == (plan(2), None)
        (said,) = rank.take(Led(plan(2), 0.4))
        assert isinstance(said, Publish)
        assert isinstance(said.fact, PlanPrepared)
        rank.take(VoteBegun(may_switch=True), VotePassed(lowest=2, highest=2))
        rank.take(Left(plan(2)))
        assert (rank.state.phase, rank.state.pending) == ("left", False)
        # The joiner dies before the first vote of epoch 2: the slot is given back.
        assert [type(one) for one in rank.take(Heard(Recover(plan=back(3))))] == [Break]
        rank.take(Stopped(), Recovers(back(3)), Agreed(back(3), 1, 0), HandedOut(back(3)))
        assert (rank.state.phase, rank.state.epoch) == ("training", 3)

    def test_at_its_joiner(self):
        rank = Rank(standby())
        assert rank.take(prepare()) == [AnswerCalls(plan(2))]
        assert rank.state.wanted == plan(2)
        # The training thread may be faster than the answer.
        assert rank.take(Joins(plan(2))) == []
        (said,) = rank.take(Parked(plan(2), 0.1))
        assert isinstance(said, Publish)
        assert rank.take(Joined(plan(2), committed=7, between=1)) == []
        state = rank.state
        assert (state.phase, state.standby, state.committed, state.between) == (
            "training",
            False,
            7,
            1,
        )
        assert (state.unconfirmed, state.joining) == (plan(2), None)

    def test_links_that_cannot_be_dialled_are_dropped_with_the_reason(self):
        rank = Rank(active())
        dropped, said = rank.take(prepare(), NotParked(plan(2), "nobody listens"))[1:]
        assert dropped == DropParked(2)
        assert isinstance(said, Publish)
        assert isinstance(said.fact, PlanFailed)
        assert (said.fact.reason, rank.state.prepared) == ("nobody listens", None)

    def test_a_leaver_that_cannot_reach_its_joiner_says_so_once(self):
        rank = Rank(active(LEAVER))
        rank.take(prepare(), Parked(plan(2), 0.1))
        dropped, said = rank.take(LeadFailed(plan(2), "no link is parked"))
        assert dropped == DropParked(2)
        assert isinstance(said, Publish)
        assert rank.take(LeadFailed(plan(2), "no link is parked"), Led(plan(2), 0.1)) == []
        assert rank.state.prepared is None

    def test_a_leaver_that_loses_its_joiner_does_not_vote_for_it(self):
        rank = Rank(active(LEAVER))
        rank.take(prepare(), Parked(plan(2), 0.1), Led(plan(2), 0.1))
        dropped, said = rank.take(LeadFailed(plan(2), "link reset"))
        assert dropped == DropParked(2)
        assert isinstance(said, Publish)
        rank.take(VoteBegun(may_switch=True))
        assert rank.state.voted_on is None

    @pytest.mark.parametrize("decided", [True, False])
    def test_a_leaver_that_loses_its_joiner_in_the_vote_waits_for_its_result(self, decided):
        rank = Rank(active(LEAVER))
        rank.take(prepare(), Parked(plan(2), 0.1), Led(plan(2), 0.1), VoteBegun(may_switch=True))
        (said,) = rank.take(LeadFailed(plan(2), "link reset"))
        assert isinstance(said, Publish)
        did = rank.take(VotePassed(lowest=2 if decided else 1, highest=2))
        assert did == ([] if decided else [DropParked(2)])
        assert rank.take(LeadFailed(plan(2), "link reset")) == []
        assert (rank.state.switching, rank.state.prepared) == (plan(2) if decided else None, None)


class TestAnAbort:
    def test_before_the_vote_it_takes_phase_one_back(self):
        rank = Rank(active())
        rank.take(prepare())
        assert rank.take(abort()) == [CancelPhaseOne(2), DropParked(2)]
        assert rank.take(Parked(plan(2), 0.1)) == []
        assert rank.state.prepared is None

    @pytest.mark.parametrize("decided", [True, False])
    def test_during_the_vote_it_waits_for_its_result(self, decided):
        rank = prepared()
        rank.take(VoteBegun(may_switch=True))
        assert rank.take(abort()) == [CancelPhaseOne(2)]
        did = rank.take(VotePassed(lowest=2 if decided else 1, highest=2))
        assert did == ([] if decided else [DropParked(2)])
        assert (rank.state.switching, rank.state.prepared) == (plan(2) if decided else None, None)

    @pytest.mark.parametrize("rank", [0, LEAVER])
    def test_after_the_vote_it_is_too_late(self, rank):
        one = Rank(active(rank))
        one.take(prepare(), Parked(plan(2), 0.1), Led(plan(2), 0.2))
        one.take(VoteBegun(may_switch=True), VotePassed(lowest=2, highest=2))
        before = one.state
        assert one.take(abort()) == [CancelPhaseOne(2)]
        assert (one.state.switching, one.state.leading) == (before.switching, before.leading)

    def test_a_leaver_that_votes_about_something_else_ends_its_lead(self):
        """It is not prepared yet, so the vote under way is not about this plan."""
        rank = Rank(active(LEAVER))
        rank.take(prepare(), Parked(plan(2), 0.1), VoteBegun(may_switch=True))
        assert rank.take(abort()) == [CancelPhaseOne(2), DropParked(2)]
        assert rank.state.leading is None

    def test_of_another_epoch_it_touches_nothing(self):
        rank = prepared()
        assert rank.take(abort(3)) == [DropParked(3)]
        assert rank.state.prepared == plan(2)

    @pytest.mark.parametrize("called", [True, False])
    def test_at_a_joiner_its_leaver_decides_once_it_has_called(self, called):
        rank = Rank(standby())
        rank.take(prepare(), Joins(plan(2)))
        cancelled, *broken = rank.take(abort(called=called))
        assert cancelled == CancelPhaseOne(2)
        assert [type(one) for one in broken] == ([] if called else [Break])
        assert rank.state.withdrawn(plan(2))
        assert rank.take(CouldNotJoin(plan(2), "the link ended", links_broke=True)) == []
        assert rank.state.phase == "warm"


class TestABrokenStep:
    def test_only_the_first_reason_of_an_epoch_counts(self):
        rank = Rank(active())
        assert rank.take(Broke("first"), Broke("second"), Broke("third", epoch=1)) == [
            Break(1, "first")
        ]
        assert rank.state.broken == "first"

    def test_what_broke_an_epoch_that_is_over_breaks_nothing(self):
        rank = survivor(epoch=2)
        assert rank.take(Broke("the joiner of epoch 1 cannot be reached", epoch=1)) == []
        assert rank.state.broken is None

    def test_what_broke_an_epoch_that_is_just_beginning_stays_broken(self):
        rank = Rank(active())
        rank.take(Broke("rank 2 is gone"), Stopped(), recover(2))
        assert rank.take(Broke("rank 2 is gone again", epoch=2)) == [
            Break(2, "rank 2 is gone again")
        ]
        rank.take(Recovers(plan(2, kind="failure")))
        assert rank.state.broken == "rank 2 is gone again"

    def test_a_planned_switch_mends_nothing(self):
        rank = prepared()
        rank.take(VoteBegun(may_switch=True), VotePassed(lowest=2, highest=2))
        # The links of epoch 2 are those of epoch 1: they have to be broken off there, too.
        assert rank.take(Broke("rank 1 is gone"), Switched(plan(2))) == [
            Break(1, "rank 1 is gone"),
            Break(2, "rank 1 is gone"),
        ]
        assert rank.state.broken == "rank 1 is gone"

    def test_an_order_to_break_counts_for_its_epoch_alone(self):
        rank = Rank(active())
        assert rank.take(Heard(BreakStep(epoch=2, reason="m1 is frozen"))) == []
        (broken,) = rank.take(Heard(BreakStep(epoch=1, reason="m1 is frozen")))
        assert broken == Break(1, "m1 is frozen")

    def test_it_is_said_and_a_plan_awaited(self):
        rank = Rank(active())
        rank.take(VoteBegun(may_switch=True), VotePassed(lowest=1, highest=1))
        _, said = rank.take(Broke("rank 1 is gone"), Stopped())
        assert said == Publish(
            StepBroken(machine="m0", rank=0, epoch=1, committed_step=1, reason="rank 1 is gone")
        )
        order = SaveCheckpoint(epoch=1, reason="nobody is left")
        rank.take(Heard(order))
        assert (rank.state.save, rank.state.next_recovery) == (order, None)
        rank.take(SaveTaken(), recover(4), recover(3))
        assert (rank.state.save, rank.state.next_recovery) == (None, plan(4, kind="failure"))


def survivor(*, epoch: int) -> Rank:
    rank = Rank(active())
    new = plan(epoch, kind="failure")
    rank.take(Broke("rank 2 is gone"), Stopped(), Heard(Recover(plan=new)), Recovers(new))
    return rank


class TestARecovery:
    @pytest.mark.parametrize("passed_elsewhere", [True, False])
    def test_a_vote_that_broke_is_decided_by_what_the_others_saw(self, passed_elsewhere):
        rank, new = Rank(active()), plan(2, kind="failure")
        rank.take(VoteBegun(may_switch=True), VoteBroke("rank 2 is gone", cast=True), Stopped())
        rank.take(Heard(Recover(plan=new)), Recovers(new))
        assert rank.take(Agreed(new, int(passed_elsewhere), 0)) == []
        state = rank.state
        assert (state.phase, state.committed) == ("recovering", int(passed_elsewhere))
        assert (state.recovering, state.unconfirmed) == (new, new)
        rank.take(HandedOut(new))
        assert (rank.state.phase, rank.state.pending) == ("training", False)

    def test_so_is_work_between_steps(self):
        rank, new = Rank(active()), plan(2, kind="failure")
        rank.take(BetweenPassed(), BetweenBroke("rank 2 is gone"), Stopped())
        rank.take(Heard(Recover(plan=new)), Recovers(new))
        assert rank.take(Agreed(new, 0, 2)) == []
        assert rank.state.between == 2

    @pytest.mark.parametrize(
        ("vote", "seen"),
        [
            ([], (1, 0)),
            ([VoteBegun(may_switch=True), VoteBroke("x", cast=False)], (1, 0)),
            ([VoteBegun(may_switch=True), VoteBroke("x", cast=True)], (2, 0)),
            ([VoteBegun(may_switch=True), VoteBroke("x", cast=True)], (1, 1)),
            ([BetweenBroke("x")], (1, 0)),
        ],
    )
    def test_who_misses_a_step_refuses_by_name(self, vote, seen):
        rank, new = Rank(active()), plan(2, kind="failure")
        rank.take(*vote, Broke("rank 2 is gone"), Stopped())
        rank.take(Heard(Recover(plan=new)), Recovers(new))
        rank.take(Agreed(new, *seen))
        assert rank.state.refusal == f"this rank completed 0 steps, the others {seen[0]}"

    def test_a_newer_plan_breaks_what_is_superseded_before_it_begins(self):
        rank, first = Rank(active()), plan(2, kind="failure")
        rank.take(Broke("rank 2 is gone"), Stopped(), recover(2), recover(3))
        assert rank.take(Recovers(first)) == [Break(2, "migration m-3 takes the job to epoch 3")]
        rank.take(Stopped(), Recovers(plan(3, kind="failure")))
        assert (rank.state.epoch, rank.state.broken) == (3, None)

    def test_what_was_undecided_stays_so_until_somebody_has_agreed(self):
        rank = Rank(active())
        rank.take(VoteBegun(may_switch=True), VoteBroke("rank 2 is gone", cast=True), Stopped())
        for epoch in (2, 3):
            new = plan(epoch, kind="failure")
            rank.take(Heard(Recover(plan=new)), Recovers(new), Broke("once more"), Stopped())
        final = plan(4, kind="failure")
        rank.take(Heard(Recover(plan=final)), Recovers(final))
        assert rank.take(Agreed(final, 1, 0)) == []
        assert rank.state.committed == 1

    def test_it_takes_the_place_of_a_planned_move(self):
        rank = prepared()
        rank.take(recover(3))
        assert (rank.state.prepared, rank.state.broken is None) == (None, False)
        joiner = Rank(standby())
        joiner.take(prepare(), Joins(plan(2)), recover(3))
        assert joiner.state.withdrawn(plan(2))
        assert joiner.take(CouldNotJoin(plan(2), "broken off", links_broke=True)) == []
        assert joiner.state.wanted == plan(3, kind="failure")

    def test_a_plan_that_gives_the_slot_to_another_machine_is_not_ours(self):
        rank = Rank(active(LEAVER))
        assert rank.take(recover(2)) == []
        assert (rank.state.recovery, rank.state.broken) == (None, None)

    def test_a_joiner_that_fails_for_itself_says_so(self):
        rank, new = Rank(standby()), plan(2, kind="failure")
        rank.take(Heard(Recover(plan=new)), Joins(new))
        (said,) = rank.take(CouldNotJoin(new, "rank 0 cannot be reached", links_broke=True))
        assert isinstance(said, Publish)
        assert isinstance(said.fact, PlanFailed)
        assert said.fact.links_broke


def test_what_cannot_follow_is_a_bug_with_a_name():
    with pytest.raises(ProtocolError, match="a rank cannot go from training to recovering"):
        Rank(active()).take(Agreed(plan(2), 0, 0))


def test_a_standby_waits_until_it_is_wanted():
    rank = Rank(standby())
    found: list[Plan] = []
    waiting = threading.Thread(target=lambda: found.append(rank.decisions.wait_to_join()))
    waiting.start()
    rank.take(prepare())
    waiting.join(timeout=5)
    assert found == [plan(2)]


class TestWhereTheVoteIs:
    def test_it_is_what_any_rank_asked_for_in_the_vote_before(self):
        rank = Rank(active())
        rank.take(FirstVote(at_end=True))
        assert rank.state.votes_at_end
        rank.take(VoteBegun(may_switch=True), VotePassed(1, 1, at_end=False))
        assert not rank.state.votes_at_end
        rank.take(VoteBegun(may_switch=True), VotePassed(1, 1, at_end=True))
        assert rank.state.votes_at_end

    def test_a_rank_whose_vote_broke_hears_it_from_the_survivors(self):
        rank = Rank(active())
        rank.take(VoteBegun(may_switch=True), VoteBroke("rank 2 is gone", cast=True), Stopped())
        assert not rank.state.votes_at_end
        rank.take(Recovers(back(3)), Agreed(back(3), 1, 0, at_end=True))
        assert rank.state.votes_at_end

    def test_a_joiner_votes_where_the_others_do(self):
        rank = Rank(standby())
        rank.take(Warm(), Joins(plan(2)), Joined(plan(2), committed=3, between=0, at_end=True))
        assert rank.state.votes_at_end
