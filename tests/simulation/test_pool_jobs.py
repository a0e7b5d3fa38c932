"""Two whole jobs share a pool, and its leader dies at every message: no promise is given twice."""

from __future__ import annotations

import pytest
from tests.simulation.pool_jobs import PooledJobs
from tests.simulation.pool_world import Leader, share

from trainmover_pool import state as pool

_AGAIN_S = 120.0


def shared(seed: int, *, machines: int, wanted: int = 0) -> PooledJobs:
    world = PooledJobs(seed, {"one": share(wanted=wanted), "two": share(wanted=wanted)}, machines)
    world.form()
    return world


def leader_dies_before(world: PooledJobs, numbers: set[int], *, frozen: float = 0.0) -> list[int]:
    """Depose the leader before its messages of these numbers; the messages so far, counted.

    With the probability ``frozen`` it says the rest when another one leads.
    """
    sent: list[int] = []

    def before(_: Leader, __: pool.Command) -> None:
        sent.append(len(sent) + 1)
        if sent[-1] in numbers:
            world.depose(freeze=world.sim.chance(frozen))

    world.before = before
    return sent


def both_lose(world: PooledJobs) -> None:
    for name in world.jobs:
        world.kill_member(name, world.sim.random.randrange(2))


def whole(world: PooledJobs) -> bool:
    return all(job.whole() for job in world.jobs.values())


def trains_again(world: PooledJobs) -> None:
    """Both jobs commit steps with all their machines."""
    assert world.run(_AGAIN_S, lambda: whole(world)), story(world)
    goals = {name: job.inner.checks.step + 3 for name, job in world.jobs.items()}
    reached = world.run(
        30.0,
        lambda: all(world.jobs[name].inner.checks.step >= goal for name, goal in goals.items()),
    )
    assert reached, story(world)


def story(world: PooledJobs) -> str:
    jobs = [
        (name, job.inner.planner.state.phase, job.inner.planner.state.reason, job.members())
        for name, job in world.jobs.items()
    ]
    machines = [
        (one.name, one.state.phase, one.state.job, one.state.term, one.process.alive)
        for one in world.machines.values()
    ]
    return f"{jobs} {machines} term {world.leader.term}"


def test_the_leader_dies_before_each_of_its_messages() -> None:
    world = shared(1, machines=2)
    sent = leader_dies_before(world, set())
    both_lose(world)
    trains_again(world)
    assert len(sent) >= 6  # of each machine: two jobs are told, and then it
    for number in sent:
        world = shared(1, machines=2)
        counted = leader_dies_before(world, {number})
        both_lose(world)
        trains_again(world)
        assert len(counted) > number, "a successor led"
        assert {one.state.job for one in world.machines.values()} == {"one", "two"}


def disturbed(seed: int) -> PooledJobs:
    """Machines die in both jobs and in the pool, leaders at any message, and some key is stolen."""
    world = shared(seed, machines=1 + seed % 3, wanted=seed // 3 % 2)
    sim = world.sim
    leader_dies_before(world, {sim.random.randrange(1, 14) for _ in range(3)}, frozen=0.5)
    both_lose(world)
    for _ in range(4):
        world.run(sim.between(0.0, 8.0))
        name = sim.random.choice(sorted(world.machines))
        job = sim.random.choice(sorted(world.jobs))
        match sim.random.randrange(4):
            case 0:
                world.rogue(name, job)
            case 1:
                world.depose(freeze=sim.chance(0.5))
            case 2:
                world.machines[name].kill()
            case _:
                world.repair(1.0)
    world.repair(1.0)
    return world


@pytest.mark.parametrize("seed", range(12))
def test_no_standby_is_promised_twice(seed: int) -> None:
    trains_again(disturbed(seed))


@pytest.mark.soak
@pytest.mark.timeout(7200)
def test_two_thousand_seeds() -> None:
    wrong = []
    for seed in range(2_000):
        try:
            trains_again(disturbed(seed))
        except AssertionError as error:
            wrong.append((seed, str(error)[:300]))
    assert not wrong, wrong[:20]
