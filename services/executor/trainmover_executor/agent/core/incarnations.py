"""Incarnations of a machine: each begins with a registration and ends with its last process.

One machine is one unit: when one of its ranks dies, all its processes end with it.
"""

from __future__ import annotations

from types import MappingProxyType
from typing import Final

from trainmover.commands import Release, Stop
from trainmover.events.machine import MachineLent, MachineRegistered, WorkerExited
from trainmover.job.topology import Machine
from trainmover_executor.agent.core import standby
from trainmover_executor.agent.core.effects import (
    After,
    Bind,
    Bound,
    Exit,
    Exited,
    JobOver,
    Register,
    Terminate,
    Unbind,
)
from trainmover_executor.agent.core.state import AgentState, Ending, Worker
from trainmover_executor.agent.core.transition import Transition

__all__ = [
    "begin_ending",
    "on_bound",
    "on_exited",
    "on_job_over",
    "on_register",
    "on_release",
    "on_stop",
    "on_terminate",
    "register",
]

GRACE_S: Final = 2.0
LEAVERS_GRACE_S: Final = 60.0
"""For processes that handed their slot over, which end once the program's threads have."""
_FIRST_BACKOFF_S: Final = 1.0
_LONGEST_BACKOFF_S: Final = 30.0


def register(transition: Transition) -> None:
    """Begin a new incarnation: fresh sockets, then offer the machine to the job."""
    generation = transition.state.generation + 1
    transition.set(
        phase="registered",
        generation=generation,
        slot=None,
        membership=None,
        endpoints=(),
        bays=MappingProxyType({}),
        queue=(),
        warm_membership=None,
        plan=None,
        joining=None,
        aborted=False,
        ending=None,
    )
    transition.do(Bind(generation, (None,)))


def on_bound(transition: Transition, event: Bound) -> None:
    """Sockets are bound: announce them."""
    state = transition.state
    if event.generation != state.generation or state.phase in ("ending", "finished"):
        return
    endpoints = dict(event.endpoints)
    if (own := endpoints.pop(None, None)) is not None:
        transition.set(endpoints=own)
        transition.publish(_offer(transition.state))
    standby.on_bound(
        transition, {slot: ports for slot, ports in endpoints.items() if slot is not None}
    )


def _offer(state: AgentState) -> MachineRegistered:
    me = state.me
    fact = MachineRegistered(
        machine=Machine(
            name=me.machine,
            generation=state.generation,
            endpoints=state.endpoints,
            labels=dict(me.labels),
        ),
        nnodes_min=me.nnodes_min,
        nnodes_max=me.nnodes_max,
        warm_limit=me.warm_limit,
        pid=me.pid,
        host=me.host,
    )
    return MachineLent(pool=me.pool, **dict(fact)) if me.pool else fact


def begin_ending(transition: Transition, ending: Ending, *, grace_s: float) -> None:
    """End this incarnation; said again, the later word counts and processes get no second grace."""
    state = transition.state
    again = state.phase == "ending"
    transition.log("info", "incarnation.ending", reason=ending.reason, then=ending.then)
    transition.set(
        phase="ending",
        ending=ending,
        slot=None,
        bays=MappingProxyType({}),
        queue=(),
        plan=None,
        joining=None,
        aborted=False,
    )
    transition.do(Unbind())
    transition.end(
        state.workers.values() if again else state.live, grace_s=0.0 if again else grace_s
    )
    _settle(transition)


def _settle(transition: Transition) -> None:
    """Go on once the last process of an incarnation that ends is gone."""
    state = transition.state
    if state.phase != "ending" or state.ending is None or state.workers:
        return
    if state.ending.then == "stop":
        transition.set(phase="finished")
        transition.do(Exit(state.ending.exit_code))
    elif state.ending.backoff_s > 0:
        transition.do(After(state.ending.backoff_s, Register(state.generation)))
    else:
        register(transition)


def on_register(transition: Transition, event: Register) -> None:
    """The back-off is over."""
    state = transition.state
    due = state.phase == "ending" and state.generation == event.generation and not state.workers
    if due and state.ending is not None and state.ending.then == "standby":
        register(transition)


def on_exited(transition: Transition, event: Exited) -> None:
    """A process is gone: as told, as it should, or against everybody's will."""
    if event.key not in transition.state.workers:
        return
    worker = transition.forget(event.key)
    state = transition.state
    if worker.ending:
        _settle(transition)
    elif worker.done:
        if event.exit_code != 0:
            transition.log(
                "warning",
                "worker.failed_after_finishing",
                rank=worker.rank,
                exit_code=event.exit_code,
                signal=event.signal,
            )
        if state.phase == "active" and not state.workers:
            transition.set(phase="finished")
            transition.do(Exit(0))
    elif worker.left_at is not None and event.exit_code == 0:
        transition.log("debug", "worker.left", rank=worker.rank, epoch=worker.left_at)
    elif worker.role == "standby" and not _in_plan(transition, worker):
        standby.on_lost(transition, worker, event)
    else:
        _crash(transition, worker, event)


def _in_plan(transition: Transition, worker: Worker) -> bool:
    return transition.state.joining == worker.slot and not transition.state.aborted


def _crash(transition: Transition, worker: Worker, event: Exited) -> None:
    state = transition.state
    epoch = state.epoch
    if worker.role == "standby" and state.plan is not None:
        epoch = state.plan.epoch
    transition.publish(
        WorkerExited(
            machine=state.me.machine,
            generation=state.generation,
            rank=worker.rank,
            epoch=epoch,
            exit_code=event.exit_code,
            signal=event.signal,
            last_words=event.last_words,
        ),
        urgent=True,
    )
    transition.log(
        "error",
        "worker.exited",
        rank=worker.rank,
        epoch=epoch,
        exit_code=event.exit_code,
        signal=event.signal,
    )
    backoff_s = min(_LONGEST_BACKOFF_S, _FIRST_BACKOFF_S * 2**state.crashes)
    transition.set(crashes=state.crashes + 1)
    begin_ending(
        transition,
        Ending(then="standby", reason=f"rank {worker.rank} died", backoff_s=backoff_s),
        grace_s=0.0,
    )


def on_job_over(transition: Transition, event: JobOver) -> None:
    """The planner says that the job is over; whoever has work left to end lets it end."""
    state = transition.state
    if state.phase == "finished" or _stops(transition):
        return
    if event.failed:
        held_ranks = state.phase == "active"
        ending = Ending(then="stop", reason="the job failed", exit_code=1 if held_ranks else 0)
        begin_ending(transition, ending, grace_s=GRACE_S)
    elif state.phase != "active" or not state.live or not all(w.done for w in state.live):
        begin_ending(transition, Ending(then="stop", reason="the job finished"), grace_s=GRACE_S)


def on_terminate(transition: Transition, event: Terminate) -> None:
    """The agent is asked to end; asked twice, it kills at once."""
    ending = transition.state.ending
    if ending is None or ending.then != "stop":  # else the first reason to stop stands
        ending = Ending(then="stop", reason="asked to end", exit_code=event.exit_code)
    if transition.state.phase != "finished":
        begin_ending(transition, ending, grace_s=GRACE_S)


def on_stop(transition: Transition, command: Stop) -> None:
    """The job has no use for this machine any more."""
    if _stops(transition):
        transition.ignore("stop", "this agent ends already")
    else:
        begin_ending(transition, Ending(then="stop", reason=command.reason), grace_s=GRACE_S)


def on_release(transition: Transition, command: Release) -> None:
    """The slot belongs to another machine now."""
    state = transition.state
    if command.generation != state.generation:
        transition.ignore(
            "release", "meant for another incarnation of this machine", meant=command.generation
        )
    elif command.epoch < state.epoch:
        transition.ignore("release", f"epoch {command.epoch} is over, it is {state.epoch}")
    elif _stops(transition) or (state.phase == "ending" and command.then == "standby"):
        transition.ignore("release", "its processes are ended already")
    else:
        reason = f"released at epoch {command.epoch}"
        have_left = all(worker.left_at is not None for worker in state.live)
        grace_s = LEAVERS_GRACE_S if have_left else GRACE_S
        begin_ending(transition, Ending(then=command.then, reason=reason), grace_s=grace_s)


def _stops(transition: Transition) -> bool:
    return transition.state.ending is not None and transition.state.ending.then == "stop"
