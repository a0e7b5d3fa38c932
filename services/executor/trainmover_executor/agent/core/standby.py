"""Being a standby: a bay of sandboxed processes per slot, warmed up one bay after the other.

Where memory is short, only so many bays have processes at a time; the others only listen, until a
plan calls.
"""

from __future__ import annotations

import re
import signal
from collections.abc import Mapping
from typing import Final

import trainmover
import trainmover_executor
from trainmover.commands import Warm
from trainmover.events.machine import MachineReady, MachineWarming, MachineWarmingFailed
from trainmover_executor.agent.core.effects import After, Bind, Exited, RetryBay
from trainmover_executor.agent.core.state import AgentState, Worker
from trainmover_executor.agent.core.transition import Transition
from trainmover_executor.messages.worker import Warmed

__all__ = ["on_bound", "on_lost", "on_retry", "on_warm", "on_warmed", "start_bay", "start_next"]

_FIRST_BACKOFF_S: Final = 1.0
_LONGEST_BACKOFF_S: Final = 300.0
_DOUBLINGS: Final = 16  # beyond the longest by far, and no float overflows
_LONGEST_LINE: Final = 300
_FRAME: Final = re.compile(r'File "(.+)", line (\d+) in ')
_LIBRARIES: Final = ("/site-packages/", "/lib/python", "<")
_OURS: Final = tuple(path for each in (trainmover, trainmover_executor) for path in each.__path__)
_SIGNALS: Final = {int(one): one.name for one in signal.Signals}


def on_warm(transition: Transition, command: Warm) -> None:
    """Open a bay for every slot that has none; their sockets come first, all at once."""
    state = transition.state
    if command.generation != state.generation:
        transition.ignore(
            "warm", "meant for another incarnation of this machine", meant=command.generation
        )
        return
    if state.phase not in ("registered", "standby"):
        transition.ignore("warm", f"this machine is {state.phase}")
        return
    if command.membership.layout.ranks_per_slot != state.me.ranks:
        transition.ignore("warm", f"this machine has {state.me.ranks} ranks, the job wants others")
        return
    new = tuple(slot for slot in dict.fromkeys(command.slots) if slot not in state.bays)
    transition.set(
        phase="standby",
        epoch=max(state.epoch, command.membership.epoch),
        warm_membership=command.membership,
    )
    if new:
        transition.do(Bind(state.generation, new))


def on_bound(transition: Transition, endpoints: Mapping[int, tuple[str, ...]]) -> None:
    """Announce where the bays listen and start the first."""
    if not endpoints:
        return
    for slot, ports in endpoints.items():
        transition.bay(slot, endpoints=ports, phase="queued")
    transition.set(queue=(*transition.state.queue, *endpoints))
    _announce(transition)
    start_next(transition)


def _announce(transition: Transition) -> None:
    state = transition.state
    transition.publish(
        MachineWarming(
            machine=state.me.machine,
            generation=state.generation,
            endpoints={
                slot: bay.endpoints for slot, bay in state.bays.items() if bay.phase != "down"
            },
        )
    )


def start_next(transition: Transition) -> None:
    """Start the next bay; one at a time, none too many, none while a plan is carried out here."""
    state = transition.state
    busy = any(bay.phase == "warming" for bay in state.bays.values())
    in_plan = state.joining is not None and not state.aborted
    may = state.phase == "standby" and not busy and not in_plan and _has_room(state)
    if may and state.queue:
        start_bay(transition, state.queue[0])


def start_bay(transition: Transition, slot: int) -> None:
    """Start the processes of one bay, out of order when a plan waits for it."""
    membership = transition.state.warm_membership
    if membership is None:
        return
    _make_room(transition)
    transition.set(queue=tuple(queued for queued in transition.state.queue if queued != slot))
    transition.bay(slot, phase="warming")
    wanted = transition.state.joining == slot and not transition.state.aborted
    transition.spawn(
        slot, role="standby", membership=membership, socket_of=slot, background=not wanted
    )


def _make_room(transition: Transition) -> None:
    """End the processes of another bay if there is no room for those of one more."""
    state = transition.state
    if _has_room(state):
        return
    slot = state.kept[-1]
    transition.log("info", "standby.slot_made_room", slot=slot)
    transition.end(state.live_of(slot), grace_s=0.0)
    transition.bay(slot, phase="down")
    _announce(transition)  # its old endpoints are dead: nobody should plan with them
    transition.do(Bind(state.generation, (slot,)))


def _has_room(state: AgentState) -> bool:
    most = state.me.warm_limit
    return most is None or len(state.kept) < most


def on_warmed(transition: Transition, worker: Worker, message: Warmed) -> None:
    """A process ran its shadow iterations; a bay is ready when all of its processes did."""
    worker = transition.worker(worker.key, warmed=message)
    bay = transition.state.bays.get(worker.slot)
    if bay is None or bay.phase != "warming":
        return
    reports = [other.warmed for other in transition.state.live_of(worker.slot)]
    warmed = [report for report in reports if report is not None]
    if len(warmed) < len(reports):
        return
    transition.bay(worker.slot, phase="ready", failures=0)
    transition.set(crashes=0)
    transition.publish(
        MachineReady(
            machine=transition.state.me.machine,
            generation=transition.state.generation,
            slot=worker.slot,
            shadow_iterations=min(report.shadow_iterations for report in warmed),
            warm_s=max(report.warm_s for report in warmed),
        )
    )
    start_next(transition)


def on_lost(transition: Transition, worker: Worker, event: Exited) -> None:
    """A process of a bay died and no plan counted on it: say why, and try again later."""
    slot = worker.slot
    transition.end(transition.state.live_of(slot), grace_s=0.0)
    bay = transition.bay(slot, phase="down", failures=transition.state.bays[slot].failures + 1)
    doubled = min(bay.failures - 1, _DOUBLINGS)
    delay_s = min(_LONGEST_BACKOFF_S, _FIRST_BACKOFF_S * 2**doubled)
    error, where = _reason(worker, event)
    transition.log(
        "warning",
        "standby.worker_died",
        slot=slot,
        rank=worker.rank,
        exit_code=event.exit_code,
        signal=event.signal,
        error=error,
        where=where,
        last_words=event.last_words[-500:],
        retry_in_s=delay_s,
    )
    _announce(transition)  # its old endpoints are dead: nobody should plan with them
    transition.publish(
        MachineWarmingFailed(
            machine=transition.state.me.machine,
            generation=transition.state.generation,
            slot=slot,
            rank=worker.rank,
            attempts=bay.failures,
            error=error,
            where=where,
            retry_in_s=delay_s,
        )
    )
    transition.do(After(delay_s, RetryBay(transition.state.generation, slot)))
    start_next(transition)


def _reason(worker: Worker, event: Exited) -> tuple[str, str]:
    """Why a process ended, in a line, and ``file:line`` if it said so itself."""
    if worker.broke is not None:
        return worker.broke.error, worker.broke.where
    if event.signal is not None:
        name = _SIGNALS.get(event.signal, f"signal {event.signal}")
        return f"its process was ended by {name}", _crashed_at(event.last_words)
    words = event.last_words.strip().splitlines()
    said = f": {words[-1][:_LONGEST_LINE]}" if words else ""
    return f"its process ended with exit code {event.exit_code}{said}", ""


def _crashed_at(words: str) -> str:
    """Where native code died, from what ``faulthandler`` wrote: innermost call first."""
    for match in _FRAME.finditer(words):
        file, line = match.groups()
        if not file.startswith(_OURS) and not any(part in file for part in _LIBRARIES):
            return f"{file}:{line}"
    return ""


def on_retry(transition: Transition, event: RetryBay) -> None:
    """The back-off is over: fresh sockets, and to the end of the queue."""
    bay = transition.state.bays.get(event.slot)
    if event.generation == transition.state.generation and bay is not None and bay.phase == "down":
        transition.do(Bind(event.generation, (event.slot,)))
