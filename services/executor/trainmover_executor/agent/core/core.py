"""The agent as a state machine: (state, event) -> (state, actions).

No I/O, no clock, no randomness: time enters only as the events that ``After`` asked for. The same
events give the same actions, so an agent can be replayed and simulated.
"""

from __future__ import annotations

from trainmover.commands import (
    AbortMigration,
    BreakStep,
    Command,
    Lead,
    Prepare,
    Recover,
    Release,
    SaveCheckpoint,
    Start,
    Stop,
    Warm,
)
from trainmover.events.executor import WorkerFinished
from trainmover_executor.agent.core import lives, plans, standby
from trainmover_executor.agent.core.effects import (
    Action,
    Begin,
    Bound,
    Commanded,
    Event,
    Exited,
    JobOver,
    Register,
    Reported,
    RetryBay,
    Said,
    Terminate,
)
from trainmover_executor.agent.core.state import AgentState, Worker
from trainmover_executor.agent.core.turn import Turn
from trainmover_executor.messages.worker import Broke, Done, Warmed

__all__ = ["step"]


def step(state: AgentState, event: Event) -> tuple[AgentState, tuple[Action, ...]]:
    """Take in one event.

    Args:
        state: What the agent knows.
        event: What happened.

    Returns:
        What it knows now, and what it does about it, in order.
    """
    turn = Turn(state)
    match event:
        case Commanded(command=command):
            _on_command(turn, command)
        case Said() | Reported() if event.key in state.workers:
            _on_worker(turn, event, state.workers[event.key])
        case Exited():
            lives.on_exited(turn, event)
        case Bound():
            lives.on_bound(turn, event)
        case JobOver():
            lives.on_job_over(turn, event)
        case Terminate():
            lives.on_terminate(turn, event)
        case Begin() | Register() | RetryBay():
            _on_due(turn, event)
        case _:
            pass
    return turn.state, tuple(turn.actions)


def _on_due(turn: Turn, event: Begin | Register | RetryBay) -> None:
    match event:
        case Begin():
            lives.register(turn)
        case Register():
            lives.on_register(turn, event)
        case RetryBay():
            standby.on_retry(turn, event)


def _on_command(turn: Turn, command: Command) -> None:
    if turn.state.phase == "finished":
        turn.ignore(command.verb, "this agent ends")
        return
    if command.term < turn.state.term:
        # It was frozen while another took its place: two planners must not both be obeyed.
        turn.ignore(command.verb, f"its planner of term {command.term} leads no more")
        return
    turn.set(term=command.term)
    match command:
        case Prepare() | Recover() | AbortMigration() | BreakStep() | SaveCheckpoint():
            _on_plan(turn, command)
        case _:
            _on_life(turn, command)


def _on_plan(
    turn: Turn, command: Prepare | Recover | AbortMigration | BreakStep | SaveCheckpoint
) -> None:
    match command:
        case Prepare() | Recover():
            plans.on_plan(turn, command)
        case AbortMigration():
            plans.on_abort(turn, command)
        case BreakStep():
            plans.on_break(turn, command)
        case SaveCheckpoint():
            turn.forward(turn.state.live, command)


def _on_life(turn: Turn, command: Start | Warm | Release | Stop | Lead) -> None:
    match command:
        case Lead():
            pass
        case Start():
            _on_start(turn, command)
        case Warm():
            standby.on_warm(turn, command)
        case Release():
            lives.on_release(turn, command)
        case Stop():
            lives.on_stop(turn, command)


def _on_start(turn: Turn, command: Start) -> None:
    state = turn.state
    member = command.membership.members[command.slot]
    if command.generation != state.generation:
        turn.ignore("start", "meant for another life of this machine", meant=command.generation)
    elif state.phase != "registered":
        turn.ignore("start", f"this machine is {state.phase}")
    elif (member.machine, member.endpoints) != (state.me.machine, state.endpoints):
        # A queue can outlive a job: this names sockets that are not ours.
        turn.ignore("start", f"slot {command.slot} is {member.machine} at {member.endpoints}")
    else:
        turn.set(
            phase="active",
            slot=command.slot,
            membership=command.membership,
            epoch=command.membership.epoch,
        )
        turn.spawn(command.slot, role="active", membership=command.membership, socket_of=None)


def _on_worker(turn: Turn, event: Said | Reported, worker: Worker) -> None:
    if isinstance(event, Reported):
        plans.on_fact(turn, worker, event.fact)
    elif not worker.ending:
        match event.message:
            case Warmed():
                standby.on_warmed(turn, worker, event.message)
            case Broke():
                turn.worker(worker.key, broke=event.message)
            case Done():
                _on_done(turn, worker, event.message)
            case _:
                pass


def _on_done(turn: Turn, worker: Worker, message: Done) -> None:
    turn.worker(worker.key, done=True)
    turn.publish(
        WorkerFinished(
            machine=turn.state.me.machine,
            rank=worker.rank,
            epoch=turn.state.epoch,
            step=message.step,
        )
    )
