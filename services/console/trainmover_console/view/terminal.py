"""Pictures of a job for the terminal: who computes what, who is late, what moves. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import datetime
from typing import Final

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from trainmover_console.view import JobView, MigrationView
from trainmover_console.view.live import Line, Watched

__all__ = ["clock", "headline", "not_ready", "phases", "plain_line", "render", "strip"]

_BLOCKS: Final = " ▁▂▃▄▅▆▇█"
_STRIP: Final = 48
_EVENTS: Final = 10
_ENDED: Final = 3
"""So many migrations that are over stay on the screen."""

_PHASES: Final = ("proposed", "approved", "preparing", "ready", "switching", "committed")
_STATES: Final = {"running": "green", "held": "bold yellow", "failed": "bold red"}


def strip(lateness_s: Sequence[float], *, full_s: float) -> str:
    """Lateness as blocks, one per step; ``full_s`` seconds and more are a full block."""
    top = len(_BLOCKS) - 1
    return "".join(_BLOCKS[min(top, round(top * late / full_s))] for late in lateness_s)


def clock(at: datetime) -> str:
    """``12:03:59`` of this place."""
    return at.astimezone().strftime("%H:%M:%S")


def phases(move: MigrationView, *, now: datetime) -> Text:
    """One migration as a line: seconds in each phase, a running timer in the open one."""
    text = Text(f"{move.id} {move.kind} {move.words}: ")
    spans = move.spans_s()
    for phase in _PHASES:
        if phase not in move.times:
            continue
        if phase in spans:
            text.append(f"{phase} {spans[phase]:.2f} s  ", style="green")
        elif phase == move.state and move.open:
            waited = (now - move.times[phase]).total_seconds()
            text.append(f"{phase} {max(0.0, waited):.2f} s ...", style="yellow")
        else:
            text.append(phase, style="bold green")
    if not move.open and move.state != "committed":
        text.append(f"{move.state}: {move.reason or 'no reason given'}", style="red")
    if move.pause_s is not None:
        text.append(f"  pause {move.pause_s:.3f} s", style="bold")
    return text


def headline(watched: Watched, *, now: datetime) -> Text:
    """Job, state, epoch, step, pace, in one line."""
    view = watched.view
    epoch = "-" if view.membership is None else view.membership.epoch
    text = Text(f"job {view.job}  ", style="bold")
    text.append(view.state, style=_STATES.get(view.state, ""))
    text.append(f"  epoch {epoch}  step {view.step}", style="not bold")
    rate = watched.rate(now)
    if rate is not None:
        text.append(f"  {rate:.2f} steps/s", style="not bold")
    if view.automation != "automatic":
        text.append(f"  automation {view.automation}", style="not bold yellow")
    if not watched.connected:
        text.append("  the bus does not answer", style="bold red")
    return text


def render(watched: Watched, *, now: datetime) -> RenderableType:
    """The whole of it."""
    parts: list[RenderableType] = [headline(watched, now=now)]
    if watched.view.reason:
        parts.append(Text(watched.view.reason, style="yellow"))
    parts += [Text(""), _slots(watched), *_bystanders(watched.view, now)]
    incidents = [one for one in watched.view.incidents.values() if one.closed is None]
    parts += [
        Text(f"{one.id} {one.kind} {one.machine or 'nobody'}: {one.summary}", style="yellow")
        for one in incidents
    ]
    parts += [Text(""), *_moves(watched.view, now), Text("")]
    parts += [_event(line) for line in list(watched.lines)[-_EVENTS:]]
    return Group(*parts)


def not_ready(view: JobView, *, now: datetime) -> Iterator[str]:
    """A line for each reason why a standby is not ready."""
    for standby in view.standbys:
        for one in standby.not_ready:
            yield f"{standby.name} is not ready for {one.slot_words}: {one.words(now)}"


def plain_line(watched: Watched, *, now: datetime) -> str:
    """The headline and the latest rank, for where nothing can be redrawn."""
    text = f"{clock(now)}  {headline(watched, now=now).plain}"
    members = watched.view.membership
    if members is None:
        return text
    late = {rank: watched.late_s(rank, 10) for rank in range(members.layout.world_size)}
    means = {rank: sum(each) / len(each) for rank, each in late.items() if each}
    if means:
        rank = max(means, key=lambda one: means[one])
        text += f"  latest: rank {rank} on {members.machine_of(rank)} by {means[rank]:.3f} s"
    return text


def _slots(watched: Watched) -> RenderableType:
    members = watched.view.membership
    if members is None:
        return Text("machines register ...", style="dim")
    grid = Table.grid(padding=(0, 2))
    heads = ("slot", "rank", "machine", "step s", f"lateness, last {_STRIP} steps", "now s")
    grid.add_row(*(Text(name, style="dim") for name in heads))
    full_s = max(watched.step_s() or 0.0, 0.02)
    leaving = {
        move.leaver for one in watched.view.migrations.values() if one.open for move in one.moves
    }
    for slot, member in enumerate(members.members):
        known = watched.view.machines.get(member.machine)
        step_s = "-" if known is None or known.step_s is None else f"{known.step_s:.3f}"
        style = "yellow" if member.machine in leaving else ""
        for rank in members.layout.ranks_of(slot):
            late = watched.late_s(rank, _STRIP)
            grid.add_row(
                str(slot),
                str(rank),
                Text(member.machine, style=style),
                step_s,
                Text(strip(late, full_s=full_s).ljust(_STRIP)),
                f"{late[-1]:.3f}" if late else "-",
            )
    return grid


def _bystanders(view: JobView, now: datetime) -> Iterator[Text]:
    slots = 0 if view.membership is None else view.membership.layout.slots
    standbys = [
        f"{one.name} (ready for {len(one.ready_slots)} of {slots} slots)" for one in view.standbys
    ]
    yield Text(f"standbys: {', '.join(standbys) or 'none'}", style="dim" if standbys else "yellow")
    yield from (Text(line, style="yellow") for line in not_ready(view, now=now))
    for role in ("quarantined", "lost"):
        names = [
            f"{one.name} ({one.note})" if one.note else one.name
            for one in view.machines.values()
            if one.role == role
        ]
        if names:
            yield Text(f"{role}: {', '.join(names)}", style="dim")


def _moves(view: JobView, now: datetime) -> Iterator[Text]:
    under_way = [one for one in view.migrations.values() if one.open]
    ended = [one for one in view.migrations.values() if not one.open]
    for one in [*ended[-_ENDED:], *under_way]:
        yield phases(one, now=now)
        if one.waiting and one.requested_by == "policy":
            yield Text(
                f"  waits for you: trainmover migration approve|reject {one.id}",
                style="bold yellow",
            )


def _event(line: Line) -> Text:
    text = Text(clock(line.time) + "  ", style="dim", overflow="ellipsis", no_wrap=True)
    text.append(line.text, style="yellow" if line.bad else "not dim")
    return text
