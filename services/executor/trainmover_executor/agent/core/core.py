"""The agent as a state machine: (state, event) -> (state, actions).

No I/O, no clock, no randomness: time enters only as the events that ``After`` asked for. The same
events give the same actions, so an agent can be replayed and simulated.
"""

from __future__ import annotations

from trainmover.commands import (
    AbortMigration,
    Assign,
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
from trainmover_executor.agent.core import incarnations, plans, standby
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
from trainmover_executor.agent.core.transition import Transition
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
    transition = Transition(state)
    match event:
        case Commanded(command=command):
            _on_command(transition, command)
        case Said() | Reported() if event.key in state.workers:
            _on_worker(transition, event, state.workers[event.key])
        case Exited():
            incarnations.on_exited(transition, event)
        case Bound():
            incarnations.on_bound(transition, event)
        case JobOver():
            incarnations.on_job_over(transition, event)
        case Terminate():
            incarnations.on_terminate(transition, event)
        case Begin() | Register() | RetryBay():
            _on_due(transition, event)
        case _:
            pass
    return transition.state, tuple(transition.actions)


def _on_due(transition: Transition, event: Begin | Register | RetryBay) -> None:
    match event:
        case Begin():
            incarnations.register(transition)
        case Register():
            incarnations.on_register(transition, event)
        case RetryBay():
            standby.on_retry(transition, event)


def _on_command(transition: Transition, command: Command) -> None:
    if transition.state.phase == "finished":
        transition.ignore(command.verb, "this agent ends")
        return
    if command.term < transition.state.term:
        # It was frozen while another took its place: two planners must not both be obeyed.
        transition.ignore(command.verb, f"its planner of term {command.term} leads no more")
        return
    transition.set(term=command.term)
    match command:
        case Prepare() | Recover() | AbortMigration() | BreakStep() | SaveCheckpoint():
            _on_plan(transition, command)
        case _:
            _on_incarnation(transition, command)


def _on_plan(
    transition: Transition, command: Prepare | Recover | AbortMigration | BreakStep | SaveCheckpoint
) -> None:
    match command:
        case Prepare() | Recover():
            plans.on_plan(transition, command)
        case AbortMigration():
            plans.on_abort(transition, command)
        case BreakStep():
            plans.on_break(transition, command)
        case SaveCheckpoint():
            transition.forward(transition.state.live, command)


def _on_incarnation(
    transition: Transition, command: Start | Warm | Release | Stop | Lead | Assign
) -> None:
    match command:
        case Lead():
            pass
        case Assign():
            transition.ignore(command.verb, "only a machine of a pool is assigned to a job")
        case Start():
            _on_start(transition, command)
        case Warm():
            standby.on_warm(transition, command)
        case Release():
            incarnations.on_release(transition, command)
        case Stop():
            incarnations.on_stop(transition, command)


def _on_start(transition: Transition, command: Start) -> None:
    state = transition.state
    member = command.membership.members[command.slot]
    if command.generation != state.generation:
        transition.ignore(
            "start", "meant for another incarnation of this machine", meant=command.generation
        )
    elif state.phase != "registered":
        transition.ignore("start", f"this machine is {state.phase}")
    elif (member.machine, member.endpoints) != (state.me.machine, state.endpoints):
        # A queue can outlive a job: this names sockets that are not ours.
        transition.ignore("start", f"slot {command.slot} is {member.machine} at {member.endpoints}")
    else:
        transition.set(
            phase="active",
            slot=command.slot,
            membership=command.membership,
            epoch=command.membership.epoch,
        )
        transition.spawn(command.slot, role="active", membership=command.membership, socket_of=None)


def _on_worker(transition: Transition, event: Said | Reported, worker: Worker) -> None:
    if isinstance(event, Reported):
        plans.on_fact(transition, worker, event.fact)
    elif not worker.ending:
        match event.message:
            case Warmed():
                standby.on_warmed(transition, worker, event.message)
            case Broke():
                transition.worker(worker.key, broke=event.message)
            case Done():
                _on_done(transition, worker, event.message)
            case _:
                pass


def _on_done(transition: Transition, worker: Worker, message: Done) -> None:
    transition.worker(worker.key, done=True)
    transition.publish(
        WorkerFinished(
            machine=transition.state.me.machine,
            rank=worker.rank,
            epoch=transition.state.epoch,
            step=message.step,
        )
    )
