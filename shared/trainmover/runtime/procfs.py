"""What ``/proc`` knows: who descends from whom, and whether a pid is still the same process."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

__all__ = ["ProcessStat", "descendants", "read_stat", "same_process", "snapshot", "waits_of"]

_PROC = Path("/proc")


@dataclass(frozen=True, slots=True)
class ProcessStat:
    """A process as ``/proc/<pid>/stat`` shows it.

    Attributes:
        pid: Process id.
        parent: Parent's process id.
        state: One letter; ``Z`` is a zombie, ``T`` a stopped process.
        start_ticks: Kernel ticks from boot to the start of the process; with the pid it names
            one process for the life of the host.
    """

    pid: int
    parent: int
    state: str
    start_ticks: int


def parse_stat(text: str) -> ProcessStat:
    """Parse one ``stat`` line; the command name in it may hold blanks and brackets."""
    head, _, tail = text.rpartition(")")
    fields = tail.split()
    return ProcessStat(
        pid=int(head.split(" ", 1)[0]),
        parent=int(fields[1]),
        state=fields[0],
        start_ticks=int(fields[19]),
    )


def read_stat(pid: int) -> ProcessStat | None:
    """The process with this id, or None when there is none."""
    try:
        return parse_stat((_PROC / str(pid) / "stat").read_text(encoding="utf-8", errors="replace"))
    except (FileNotFoundError, ProcessLookupError):
        return None


def waits_of(pid: int) -> int | None:
    """How often a process went to sleep until somebody wakes it; None when there is none."""
    try:
        lines = (_PROC / str(pid) / "status").read_text(encoding="utf-8").splitlines()
    except (FileNotFoundError, ProcessLookupError):
        return None
    counts = (line.split()[1] for line in lines if line.startswith("voluntary_ctxt_switches:"))
    return next(map(int, counts), None)


def same_process(pid: int, start_ticks: int) -> bool:
    """Whether ``pid`` is alive and still the process that started at ``start_ticks``."""
    stat = read_stat(pid)
    return stat is not None and stat.start_ticks == start_ticks and stat.state != "Z"


def snapshot() -> dict[int, ProcessStat]:
    """Every process that can be seen now."""
    stats = (read_stat(int(entry.name)) for entry in _PROC.iterdir() if entry.name.isdigit())
    return {stat.pid: stat for stat in stats if stat is not None}


def descendants(
    pid: int, processes: dict[int, ProcessStat] | None = None
) -> list[tuple[int, ProcessStat]]:
    """Living descendants of ``pid`` as (generation below it, process), nearest first.

    Args:
        pid: The ancestor, itself not in the answer.
        processes: Where to look; every process of the host when omitted.
    """
    seen = snapshot() if processes is None else processes
    children: dict[int, list[ProcessStat]] = {}
    for stat in seen.values():
        children.setdefault(stat.parent, []).append(stat)
    found: list[tuple[int, ProcessStat]] = []
    level, depth = [pid], 1
    while level:
        below = [stat for parent in level for stat in children.get(parent, ())]
        found += [(depth, stat) for stat in below if stat.state != "Z"]
        level, depth = [stat.pid for stat in below], depth + 1
    return found
