"""A machine of a pool as a state machine: (state, event, time) -> (state, actions).

It is the machine that decides which job it serves, and it serves one at a time. So it can be
promised to one plan at most, whatever the leaders of the pool believe.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import Final

from trainmover.commands import ASSIGN_WITHIN_S, Assign, Command
from trainmover.events.machine import PoolMachineSeen, PoolPhase

__all__ = [
    "Action",
    "Decline",
    "Ended",
    "Event",
    "Exit",
    "Log",
    "Ordered",
    "PooledState",
    "StartAgent",
    "StopAgent",
    "Terminate",
    "step",
    "word",
]

_PROVED_S: Final = 60.0
"""An agent that ran for so long had no trouble in beginning."""

_FIRST_DECLINE_S: Final = 10.0
_LONGEST_DECLINE_S: Final = 300.0
_DOUBLINGS: Final = 8
_OFFERS: Final = 64


@dataclass(frozen=True, slots=True)
class Decline:
    """A job that is not served for now.

    Attributes:
        count: How often in a row its agent ended soon after it had begun.
    """

    reason: str
    until_s: float
    count: int


@dataclass(frozen=True, slots=True, kw_only=True)
class PooledState:
    """What a machine of a pool knows.

    Attributes:
        run: Of this process; another one has another.
        term: Highest term of a leader that was heard.
        job: The job that is served.
        since_s: Since when the phase holds.
        offer: Number of the latest word.
        offers: The latest words that said "idle", and when each was said.
        declines: By job.
    """

    machine: str
    run: str
    labels: Mapping[str, str] = field(default_factory=lambda: MappingProxyType({}))
    term: int = 0
    phase: PoolPhase = "idle"
    job: str | None = None
    since_s: float = 0.0
    offer: int = 0
    offers: Mapping[int, float] = field(default_factory=lambda: MappingProxyType({}))
    declines: Mapping[str, Decline] = field(default_factory=lambda: MappingProxyType({}))


@dataclass(frozen=True, slots=True)
class Ordered:
    """A command came from a leader of the pool."""

    command: Command


@dataclass(frozen=True, slots=True)
class Ended:
    """The agent is gone, or could not be started: then ``reason`` says why, and no code."""

    code: int | None
    reason: str = ""


@dataclass(frozen=True, slots=True)
class Terminate:
    """The process was asked to end."""


Event = Ordered | Ended | Terminate


@dataclass(frozen=True, slots=True)
class StartAgent:
    """Run the agent of a job."""

    job: str


@dataclass(frozen=True, slots=True)
class StopAgent:
    """Ask the agent to end."""


@dataclass(frozen=True, slots=True)
class Exit:
    """Nothing is left to do."""


@dataclass(frozen=True, slots=True)
class Log:
    """Tell people."""

    event: str
    fields: Mapping[str, object]


Action = StartAgent | StopAgent | Exit | Log


def step(state: PooledState, event: Event, now_s: float) -> tuple[PooledState, tuple[Action, ...]]:
    """Take in one event.

    Args:
        state: What is known.
        event: What happened.
        now_s: The time in seconds, steady.
    """
    match event:
        case Ordered(command=command):
            return _on_order(state, command, now_s)
        case Ended():
            return _on_ended(state, event, now_s)
        case Terminate():
            leaving = replace(state, phase="leaving", since_s=now_s)
            return leaving, (Exit() if state.job is None else StopAgent(),)


def word(state: PooledState, now_s: float) -> tuple[PooledState, PoolMachineSeen]:
    """What to say now, and the state in which it was said."""
    offer = state.offer + 1
    offers = {n: at_s for n, at_s in state.offers.items() if now_s - at_s <= ASSIGN_WITHIN_S}
    if state.phase == "idle":
        offers[offer] = now_s
    fact = PoolMachineSeen(
        machine=state.machine,
        run=state.run,
        offer=offer,
        phase=state.phase,
        job=state.job,
        for_s=max(0.0, now_s - state.since_s),
        term=state.term,
        declines={job: one.reason for job, one in state.declines.items() if one.until_s > now_s},
        labels=state.labels,
    )
    kept = dict(list(offers.items())[-_OFFERS:])
    return replace(state, offer=offer, offers=MappingProxyType(kept)), fact


def _on_order(
    state: PooledState, command: Command, now_s: float
) -> tuple[PooledState, tuple[Action, ...]]:
    if command.term < state.term:
        return state, (_ignored(command, "its leader leads no more"),)
    state = replace(state, term=command.term)
    if not isinstance(command, Assign):
        return state, ()
    obstacle = _obstacle(state, command, now_s)
    if obstacle:
        return state, (_ignored(command, obstacle),)
    serving = replace(
        state,
        phase="serving",
        job=command.job,
        since_s=now_s,
        # What was offered before is taken: no other order may answer to it.
        offers=MappingProxyType({}),
    )
    return serving, (Log("pool.serves", {"job": command.job}), StartAgent(command.job))


def _obstacle(state: PooledState, command: Assign, now_s: float) -> str:
    if command.run != state.run:
        return "it is meant for an earlier process of this machine"
    if state.phase != "idle":
        return f"this machine is {state.phase}"
    said_s = state.offers.get(command.offer)
    if said_s is None or now_s - said_s > ASSIGN_WITHIN_S:
        return "it answers to what was said too long ago"
    decline = state.declines.get(command.job)
    if decline is not None and decline.until_s > now_s:
        return decline.reason
    return ""


def _on_ended(
    state: PooledState, event: Ended, now_s: float
) -> tuple[PooledState, tuple[Action, ...]]:
    job = state.job
    if job is None:
        return state, ()
    if state.phase == "leaving":
        told = Log("pool.served", {"job": job, "reason": "this machine was asked to end"})
        return replace(state, job=None), (told, Exit())
    ran_s = now_s - state.since_s
    declines = dict(state.declines)
    known = declines.pop(job, None)
    why = event.reason or f"its agent ended with exit code {event.code} after {ran_s:.0f} s"
    if event.code is None or ran_s < _PROVED_S:
        count = 1 + (0 if known is None else known.count)
        wait_s = _FIRST_DECLINE_S * 2.0 ** min(count - 1, _DOUBLINGS)
        declines[job] = Decline(why, now_s + min(_LONGEST_DECLINE_S, wait_s), count)
    told = Log("pool.served", {"job": job, "reason": why})
    idle = replace(
        state, job=None, declines=MappingProxyType(declines), phase="idle", since_s=now_s
    )
    return idle, (told,)


def _ignored(command: Command, reason: str) -> Log:
    return Log("command.ignored", {"verb": command.verb, "reason": reason})
