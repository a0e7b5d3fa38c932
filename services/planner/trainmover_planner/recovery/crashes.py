"""Programs that crash on healthy machines: restart in place, or the program's own fault?

Moving a job away from its own bug helps nobody: each standby would run into it in turn. So an error
that comes again where another machine redoes the same step, or that every rank raises, ends the
job with its traceback. So does the first that a session raises about what it cannot carry: where a
machine redoes the step the session may not look there again.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Final

from trainmover.events.machine import WorkerExited
from trainmover_planner.state.inventory import incarnation_of
from trainmover_planner.state.state import Crash, State
from trainmover_planner.state.transition import Transition

__all__ = ["bug_of", "note", "restarts", "restarts_until_s", "signature"]

_FROM_OUTSIDE: Final = frozenset({9, 15})
"""Signals that somebody sends: the out-of-memory killer, an operator. They prove no bug."""

_ERROR: Final = re.compile(r"(?:\[rank\d+\]: *)?([A-Za-z_][\w.]*(?:Error|Exception|Interrupt)\b.*)")
_REFUSED: Final = "trainmover.errors.ConfigError"
_NUMBER: Final = re.compile(r"0x[0-9a-f]+|\d+")
_REASON: Final = 1500
_KEPT: Final = 4000
"""Characters of a process's last words that are remembered."""


def note(transition: Transition, fact: WorkerExited, *, is_member: bool) -> None:
    """Remember a crash until the next commit: then its step has been passed.

    Args:
        transition: Of the state.
        fact: The crash.
        is_member: Whether its machine had its slot, and was not about to take it.
    """
    incarnation, known = (fact.machine, fact.generation), transition.state.crashes
    if (incarnation, fact.rank) in known.every:
        return
    crash = Crash(
        incarnation=incarnation,
        rank=fact.rank,
        exit_code=fact.exit_code,
        signal=fact.signal,
        last_words=fact.last_words[-_KEPT:],
        at_s=transition.now_s,
    )
    crash = replace(crash, error=signature(crash))
    crashes = replace(known, every=known.every.put((incarnation, fact.rank), crash))
    if crash.error:
        where = (crash.rank, crash.error)
        incarnations = crashes.incarnations.get(where, ())
        count = crashes.ranks.get(crash.error, 0)
        crashes = replace(
            crashes,
            incarnations=crashes.incarnations.put(where, (*incarnations, incarnation)),
            ranks=crashes.ranks if incarnations else crashes.ranks.put(crash.error, count + 1),
            again=crashes.again or (crash if incarnations else None),
        )
    if is_member and crash.error.startswith(_REFUSED):
        crashes = replace(crashes, refused=crashes.refused or crash)
    transition.set(crashes=crashes)


def signature(crash: Crash) -> str:
    """What two crashes have in common when they are the same bug; empty for no bug of a program."""
    if crash.signal is not None:
        return "" if crash.signal in _FROM_OUTSIDE else f"signal {crash.signal}"
    if not crash.exit_code:
        return ""
    for line in reversed(crash.last_words.splitlines()):
        found = _ERROR.match(line.strip())
        if found is not None:
            ours = found[1].startswith("trainmover") and not found[1].startswith(_REFUSED)
            # What else we raise ourselves is a consequence of something else.
            return "" if ours else _NUMBER.sub("#", found[1])[:_REASON]
    return ""


def bug_of(state: State) -> str:
    """Why the job ends although machines are there: the traceback; empty when it goes on."""
    crashes = state.crashes
    # A machine's word alone ends no job: others have seen that it is gone.
    if crashes.refused is not None and crashes.refused.incarnation in state.deaths:
        machine, rank = crashes.refused.incarnation[0], crashes.refused.rank
        return _told(crashes.refused, f"the session of rank {rank} on {machine} refused it")
    if crashes.again is not None:
        crash = crashes.again
        incarnations = sorted(crashes.incarnations[crash.rank, crash.error])
        machines = " and then on ".join(machine for machine, _ in incarnations)
        return _told(crash, f"rank {crash.rank} failed in the same step on {machines}")
    world = 0 if state.membership is None else state.membership.layout.world_size
    for error, count in crashes.ranks.items():
        if count == world > 1:
            shown = next(one for one in crashes.every.values() if one.error == error)
            return _told(shown, "every rank failed in the same way")
    return ""


def _told(crash: Crash, what: str) -> str:
    how = f"signal {crash.signal}" if crash.signal is not None else f"exit code {crash.exit_code}"
    words = crash.last_words.strip()[-_REASON:]
    return f"The program is at fault: {what} ({how})" + (f":\n{words}" if words else ".")


def restarts(state: State, slots: Iterable[int], now_s: float) -> Mapping[int, str]:
    """Slots that wait for the machine whose program crashed there to start over, and its name."""
    membership = state.membership
    if state.policy.on_worker_crash != "restart" or membership is None:
        return {}
    waiting = {}
    for slot in slots:
        member = membership.members[slot]
        ranks = membership.layout.ranks_of(slot)
        ended = (state.crashes.every.get((incarnation_of(member), rank)) for rank in ranks)
        crash = next((one for one in ended if one is not None), None)
        if crash is None or member.machine in state.inventory.quarantined:
            continue
        if now_s < crash.at_s + state.policy.restart_within_s:
            waiting[slot] = member.machine
    return waiting


def restarts_until_s(state: State) -> list[float]:
    """When to stop waiting for machines to start over, in seconds."""
    if state.policy.on_worker_crash != "restart":
        return []
    return [crash.at_s + state.policy.restart_within_s for crash in state.crashes.every.values()]
