"""Bars as a trace file in the Trace Event format, which Perfetto and Chrome open.

https://docs.google.com/document/d/1CvAClvFfyA5R-PhYUmn5OOQtYMH4h6I0nSsKchNAySU
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Any, Final

from trainmover.tracing.timeline import Bar

__all__ = ["chrome_trace"]

_FIRST: Final = ("detector", "planner")


def chrome_trace(
    bars: Sequence[Bar], *, roles: Mapping[str, str] | None = None, **about: Any
) -> dict[str, Any]:
    """A JSON-ready document; times in microseconds since the first bar.

    Args:
        bars: What is drawn: a process for each ``who``, a thread for each ``lane``.
        roles: What a machine is to the migration ("joiner"), shown beside its name.
        about: Kept in ``otherData``.
    """
    begin = min((bar.start for bar in bars), default=datetime.fromtimestamp(0, UTC))
    pids = _numbered({bar.who for bar in bars}, key=_order)
    tids: dict[tuple[str, str], int] = {}
    for who in pids:
        lanes = _numbered({bar.lane for bar in bars if bar.who == who}, key=_natural)
        tids |= {(who, lane): number for lane, number in lanes.items()}
    events: list[dict[str, Any]] = []
    for who, pid in pids.items():
        role = (roles or {}).get(who)
        events.append(_name("process_name", pid, 0, f"{who} ({role})" if role else who))
        events.append(
            {"ph": "M", "name": "process_sort_index", "pid": pid, "args": {"sort_index": pid}}
        )
    events += [_name("thread_name", pids[who], tid, lane) for (who, lane), tid in tids.items()]
    events += [_event(bar, begin, pids[bar.who], tids[bar.who, bar.lane]) for bar in bars]
    return {
        "displayTimeUnit": "ms",
        "otherData": {"begin": begin.isoformat(), **about},
        "traceEvents": events,
    }


def _event(bar: Bar, begin: datetime, pid: int, tid: int) -> dict[str, Any]:
    event: dict[str, Any] = {
        "name": bar.name,
        "cat": bar.lane.partition(" ")[0],
        "ts": round((bar.start - begin).total_seconds() * 1e6, 3),
        "pid": pid,
        "tid": tid,
        "args": dict(bar.details),
    }
    if bar.seconds > 0:
        return {**event, "ph": "X", "dur": round(bar.seconds * 1e6, 3)}
    return {**event, "ph": "i", "s": "t"}  # a moment, drawn on its thread


def _name(what: str, pid: int, tid: int, name: str) -> dict[str, Any]:
    return {"ph": "M", "name": what, "pid": pid, "tid": tid, "args": {"name": name}}


def _numbered(names: set[str], *, key: Any) -> dict[str, int]:
    return {name: number for number, name in enumerate(sorted(names, key=key), start=1)}


def _order(who: str) -> tuple[int, Any]:
    return (_FIRST.index(who) if who in _FIRST else len(_FIRST), _natural(who))


def _natural(text: str) -> tuple[str, int]:
    head = text.rstrip("0123456789")
    return head, int(text[len(head) :] or 0)
