"""A program that crashes on a healthy machine: replaced, restarted in place, or at fault itself."""

from __future__ import annotations

import pytest

from trainmover.events.machine import WorkerExited
from trainmover.events.migration import JobFailed

NAN = 'Traceback (most recent call last):\n  File "train.py"\nValueError: loss is nan in step 12\n'


def crash(world, name, rank, *, code=1, signal=None, words=NAN, generation=0):
    commands = world.say(
        WorkerExited(
            machine=name,
            generation=generation,
            rank=rank,
            epoch=world.membership.epoch,
            exit_code=code,
            signal=signal,
            last_words=words,
        )
    )
    return commands + world.failed(name)


def failures(commands_of, world):
    return [fact for fact in world.facts(commands_of) if isinstance(fact, JobFailed)]


@pytest.mark.parametrize(
    ("code", "signal", "words"),
    [(1, None, NAN), (None, 11, "Segmentation fault"), (1, None, "[rank1]: " + NAN[-39:])],
)
def test_the_same_error_at_the_replacement_ends_the_job_with_the_traceback(
    world, code, signal, words
):
    assert not failures(crash(world, "w-1", 1, code=code, signal=signal, words=words), world)
    plan = world.last_plan()
    (move,) = plan.moves
    later = words.replace("step 12", "step 13")
    (failed,) = failures(crash(world, move.joiner, 1, code=code, signal=signal, words=later), world)
    assert failed.code == "program"
    assert later.strip() in failed.reason
    assert f"rank 1 failed in the same step on w-1 and then on {move.joiner}" in failed.reason
    assert len(world.plans()) == 1, "no migration storm"


REFUSED = "Traceback\ntrainmover.errors.ConfigError: the EMA in main.ema changes, and ...\n"


def test_what_the_session_of_a_member_refuses_ends_the_job_at_once(world):
    """Where a machine redoes the step, the session may not look there again."""
    (failed,) = failures(crash(world, "w-1", 1, words=REFUSED), world)
    assert failed.code == "program"
    assert "the session of rank 1 on w-1 refused it" in failed.reason
    assert "the EMA in main.ema changes" in failed.reason
    assert world.plans() == []


def test_what_a_machine_says_of_its_own_session_ends_nothing_while_it_lives(world):
    """One whose key is stolen can say so."""
    said = WorkerExited(
        machine="w-1",
        generation=0,
        rank=1,
        epoch=world.membership.epoch,
        exit_code=1,
        signal=None,
        last_words=REFUSED,
    )
    assert not failures(world.say(said), world)
    (failed,) = failures(world.failed("w-1"), world)
    assert "refused it" in failed.reason


def test_what_the_session_of_a_joiner_refuses_is_tried_at_another_one(world):
    crash(world, "w-1", 1, words="")
    joiner = world.last_plan().moves[0].joiner
    assert not failures(crash(world, joiner, 1, words=REFUSED), world)
    (failed,) = failures(crash(world, world.last_plan().moves[0].joiner, 1, words=REFUSED), world)
    assert "the EMA in main.ema changes" in failed.reason


def test_an_error_of_every_rank_ends_the_job_without_a_single_move(world_class):
    world = world_class(slots=2, spare=2)
    world.form()
    words = [
        WorkerExited(
            machine=f"w-{rank}",
            generation=0,
            rank=rank,
            epoch=1,
            exit_code=1,
            signal=None,
            last_words=NAN,
        )
        for rank in range(2)
    ]
    assert not failures(world.say(words[0]), world)
    (failed,) = failures(world.say(words[1]), world)
    assert "every rank failed in the same way" in failed.reason
    assert world.plans() == []


def test_the_same_error_after_a_commit_is_another_crash(world):
    crash(world, "w-1", 1)
    plan = world.last_plan()
    world.finish(plan)
    assert not failures(crash(world, plan.moves[0].joiner, 1), world)
    assert len(world.plans()) == 2


@pytest.mark.parametrize(
    "how",
    [
        {"code": None, "signal": 9, "words": "Killed"},
        {"words": "Traceback\ntrainmover_executor.links.link.LinkBrokenError: rank 2 is gone"},
        {"words": ""},
    ],
)
def test_what_comes_from_outside_proves_no_bug(world, how):
    crash(world, "w-1", 1, **how)
    assert not failures(crash(world, world.last_plan().moves[0].joiner, 1, **how), world)
    assert len(world.plans()) == 2


def test_another_error_at_the_replacement_is_a_second_crash(world):
    crash(world, "w-1", 1)
    joiner = world.last_plan().moves[0].joiner
    assert not failures(crash(world, joiner, 1, words="OSError: no space left"), world)


def test_restart_in_place_waits_for_the_machine_and_leaves_the_standbys_alone(world_class):
    world = world_class(on_worker_crash="restart", restart_within_s=60)
    world.form()
    crash(world, "w-1", 1)
    world.broken(["w-0", "w-2", "w-3"])
    world.wait(5)
    assert world.plans() == []
    world.register("w-1", generation=1)
    world.warming("w-1", 1)
    plan = world.last_plan()
    assert [str(move) for move in plan.moves] == ["w-1 -> w-1 in slot 1"]
    assert plan.membership.members[1].generation == 1
    world.finish(plan)


def test_a_machine_that_does_not_come_back_is_replaced(world_class):
    world = world_class(on_worker_crash="restart", restart_within_s=60)
    world.form()
    crash(world, "w-1", 1)
    world.wait(61)
    assert [str(move) for move in world.last_plan().moves] == ["w-1 -> w-4 in slot 1"]


def test_a_machine_that_died_is_not_waited_for(world_class):
    world = world_class(on_worker_crash="restart")
    world.form()
    world.failed("w-1")
    assert [str(move) for move in world.last_plan().moves] == ["w-1 -> w-4 in slot 1"]
