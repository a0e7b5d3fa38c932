"""The lives of a machine: each begins with a registration and ends when its last process is gone.

One machine is one unit: when one of its ranks dies, all its processes end with it.
"""

from __future__ import annotations

from types import MappingProxyType
from typing import Final

from trainmover.commands import Release, Stop
from trainmover.events.machine import MachineRegistered, WorkerExited
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
from trainmover_executor.agent.core.state import Ending, Worker
from trainmover_executor.agent.core.turn import Turn

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
_FIRST_BACKOFF_S: Final = 1.0
_LONGEST_BACKOFF_S: Final = 30.0


def register(turn: Turn) -> None:
    """Begin a new life: fresh sockets, then offer the machine to the job."""
    generation = turn.state.generation + 1
    turn.set(
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
    turn.do(Bind(generation, (None,)))


def on_bound(turn: Turn, event: Bound) -> None:
    """Sockets are bound: announce them."""
    state = turn.state
    if event.generation != state.generation or state.phase in ("ending", "finished"):
        return
    endpoints = dict(event.endpoints)
    if (own := endpoints.pop(None, None)) is not None:
        turn.set(endpoints=own)
        me = state.me
        turn.publish(
            MachineRegistered(
                machine=Machine(
                    name=me.machine,
                    generation=state.generation,
                    endpoints=own,
                    labels=dict(me.labels),
                ),
                nnodes_min=me.nnodes_min,
                nnodes_max=me.nnodes_max,
                warm_limit=me.warm_limit,
                pid=me.pid,
                host=me.host,
            )
        )
    standby.on_bound(turn, {slot: ports for slot, ports in endpoints.items() if slot is not None})


def begin_ending(turn: Turn, ending: Ending, *, grace_s: float) -> None:
    """End this life; said again, the later word counts and processes get no second grace."""
    state = turn.state
    again = state.phase == "ending"
    turn.log("info", "life.ending", reason=ending.reason, then=ending.then)
    turn.set(
        phase="ending",
        ending=ending,
        slot=None,
        bays=MappingProxyType({}),
        queue=(),
        plan=None,
        joining=None,
        aborted=False,
    )
    turn.do(Unbind())
    turn.end(state.workers.values() if again else state.live, grace_s=0.0 if again else grace_s)
    _settle(turn)


def _settle(turn: Turn) -> None:
    """Go on once the last process of a life that ends is gone."""
    state = turn.state
    if state.phase != "ending" or state.ending is None or state.workers:
        return
    if state.ending.then == "stop":
        turn.set(phase="finished")
        turn.do(Exit(state.ending.exit_code))
    elif state.ending.backoff_s > 0:
        turn.do(After(state.ending.backoff_s, Register(state.generation)))
    else:
        register(turn)


def on_register(turn: Turn, event: Register) -> None:
    """The back-off is over."""
    state = turn.state
    due = state.phase == "ending" and state.generation == event.generation and not state.workers
    if due and state.ending is not None and state.ending.then == "standby":
        register(turn)


def on_exited(turn: Turn, event: Exited) -> None:
    """A process is gone: as told, as it should, or against everybody's will."""
    if event.key not in turn.state.workers:
        return
    worker = turn.forget(event.key)
    state = turn.state
    if worker.ending:
        _settle(turn)
    elif worker.done:
        if event.exit_code != 0:
            turn.log(
                "warning",
                "worker.failed_after_finishing",
                rank=worker.rank,
                exit_code=event.exit_code,
                signal=event.signal,
            )
        if state.phase == "active" and not state.workers:
            turn.set(phase="finished")
            turn.do(Exit(0))
    elif worker.left_at is not None and event.exit_code == 0:
        turn.log("debug", "worker.left", rank=worker.rank, epoch=worker.left_at)
    elif worker.role == "standby" and not _in_plan(turn, worker):
        standby.on_lost(turn, worker, event)
    else:
        _crash(turn, worker, event)


def _in_plan(turn: Turn, worker: Worker) -> bool:
    return turn.state.joining == worker.slot and not turn.state.aborted


def _crash(turn: Turn, worker: Worker, event: Exited) -> None:
    state = turn.state
    epoch = state.epoch
    if worker.role == "standby" and state.plan is not None:
        epoch = state.plan.epoch
    turn.publish(
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
    turn.log(
        "error",
        "worker.exited",
        rank=worker.rank,
        epoch=epoch,
        exit_code=event.exit_code,
        signal=event.signal,
    )
    backoff_s = min(_LONGEST_BACKOFF_S, _FIRST_BACKOFF_S * 2**state.crashes)
    turn.set(crashes=state.crashes + 1)
    begin_ending(
        turn,
        Ending(then="standby", reason=f"rank {worker.rank} died", backoff_s=backoff_s),
        grace_s=0.0,
    )


def on_job_over(turn: Turn, event: JobOver) -> None:
    """The planner says that the job is over; whoever has work left to end lets it end."""
    state = turn.state
    if state.phase == "finished" or _stops(turn):
        return
    if event.failed:
        held_ranks = state.phase == "active"
        ending = Ending(then="stop", reason="the job failed", exit_code=1 if held_ranks else 0)
        begin_ending(turn, ending, grace_s=GRACE_S)
    elif state.phase != "active" or not state.live or not all(w.done for w in state.live):
        begin_ending(turn, Ending(then="stop", reason="the job finished"), grace_s=GRACE_S)


def on_terminate(turn: Turn, event: Terminate) -> None:
    """The agent is asked to end; asked twice, it kills at once."""
    ending = turn.state.ending
    if ending is None or ending.then != "stop":  # else the first reason to stop stands
        ending = Ending(then="stop", reason="asked to end", exit_code=event.exit_code)
    if turn.state.phase != "finished":
        begin_ending(turn, ending, grace_s=GRACE_S)


def on_stop(turn: Turn, command: Stop) -> None:
    """The job has no use for this machine any more."""
    if _stops(turn):
        turn.ignore("stop", "this agent ends already")
    else:
        begin_ending(turn, Ending(then="stop", reason=command.reason), grace_s=GRACE_S)


def on_release(turn: Turn, command: Release) -> None:
    """The slot belongs to another machine now."""
    state = turn.state
    if command.generation != state.generation:
        turn.ignore("release", "meant for another life of this machine", meant=command.generation)
    elif command.epoch < state.epoch:
        turn.ignore("release", f"epoch {command.epoch} is over, it is {state.epoch}")
    elif _stops(turn) or (state.phase == "ending" and command.then == "standby"):
        turn.ignore("release", "its processes are ended already")
    else:
        reason = f"released at epoch {command.epoch}"
        begin_ending(turn, Ending(then=command.then, reason=reason), grace_s=GRACE_S)


def _stops(turn: Turn) -> bool:
    return turn.state.ending is not None and turn.state.ending.then == "stop"
