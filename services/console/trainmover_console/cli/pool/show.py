"""``trainmover pool advise``: asks the model of a pool and says what came of it."""

from __future__ import annotations

import math
from dataclasses import asdict
from typing import Any, Final

from rich.console import Group, RenderableType
from rich.text import Text

from trainmover.errors import ConfigError
from trainmover_console.cli import output
from trainmover_console.cli.pool.question import Question, long_words
from trainmover_simulator.failures import DAY_S
from trainmover_simulator.sizing.formula import Demand, Figures, advised, cheapest, needed
from trainmover_simulator.sizing.history import Repair, simulate

__all__ = ["answer", "render"]

_SHOWN: Final = 12
_COLUMNS: Final = (
    "stand-\nbys",
    "failures\ncovered",
    "slots\nfilled",
    "shortage\nevery",
    "\nlasts",
    "mean\nwait",
    "standby\nhours",
    "lost\nhours",
)
"""Hours are machine-hours a week."""

_OF_MOVES: Final = ("keep_\nreserve", "moves\nat once")
_ERA_S: Final = 1_000 * 365 * DAY_S

_MOST_TO_SIMULATE: Final = 2_000
"""Machines away at a time, above which a history takes minutes."""


def answer(question: Question, *, simulated: bool, seed: int) -> dict[str, Any]:
    """Everything that is advised, JSON-ready.

    Raises:
        ConfigError: The target cannot be held, or what is asked cannot be simulated.
    """
    demand = question.demand
    count = needed(demand, question.target, of=question.of)
    least = cheapest(demand, question.target, of=question.of, most=2 * count + 2 * demand.group)
    rows = [advised(demand, one, question.target, of=question.of) for one in _counts(count, least)]
    chosen = next(row for row in rows if row.standbys == count)
    cautious = None
    if question.cautious is not None:
        cautious = needed(question.cautious, question.target, of=question.of)
    found: dict[str, Any] = {
        "standbys": count,
        "keep_reserve": None if demand.move_s is None else chosen.reserve,
        "least_hours": least,
        "cautious": cautious,
        "there": question.there,
        "target": question.target,
        "of": question.of,
        "rows": [_row(row) for row in rows],
        "demand": asdict(demand),
        "assumptions": list(question.said),
    }
    found["words"] = _words(question, rows, count, least, cautious)
    found["simulated"] = _simulated(demand, chosen, seed) if simulated else None
    return found


def render(data: dict[str, Any]) -> RenderableType:
    """The same for people."""
    moves = data["demand"]["move_s"] is not None
    # There is room for eight columns on a terminal of 80 letters.
    columns = (*_COLUMNS[:4], *_COLUMNS[6:], *_OF_MOVES) if moves else _COLUMNS
    marks = {data["least_hours"]: "-", data["standbys"]: "*"}
    rows = [_cells(row, mark=marks.get(row["standbys"], " "), moves=moves) for row in data["rows"]]
    parts: list[RenderableType] = [output.table(columns, rows)]
    parts += [Text("* advised   - fewest machine-hours (standby and lost hours, a week)"), Text()]
    parts += [Text(line) for line in data["words"]]
    if data["simulated"] is not None:
        parts += [Text(), _simulated_table(data)]
    parts += [Text(), Text("It assumes:")]
    parts += [Text(f"  {sentence}") for sentence in data["assumptions"]]
    return Group(*parts)


def _counts(count: int, least: int) -> list[int]:
    """The numbers of standbys to show: around those that matter, and some of the way there."""
    most = max(count, least) + 2
    apart = -(-(most + 1) // _SHOWN)
    near = {count - 1, count, count + 1, least}
    return sorted({one for one in (*range(0, most + 1, apart), *near) if one >= 0})


def _row(one: Figures) -> dict[str, Any]:
    data = asdict(one) | {"hours": one.hours}
    data["shortage_every_s"] = None if math.isinf(one.shortage_every_s) else one.shortage_every_s
    return data


def _cells(row: dict[str, Any], *, mark: str, moves: bool) -> tuple[object, ...]:
    cells = [
        f"{row['standbys']} {mark}",
        _percent(row["failures_covered"]),
        _percent(row["time_filled"]),
        _every(row),
        long_words(row["shortage_s"]) if row["shortage_s"] else None,
        long_words(row["wait_s"]),
        f"{row['standby_hours']:,.0f}",
        f"{row['lost_hours']:,.0f}",
    ]
    if moves:
        return (*cells[:4], *cells[6:], row["reserve"], f"{row['moves_at_once']:.0%}")
    return tuple(cells)


def _every(row: dict[str, Any]) -> str:
    every_s: float | None = row["shortage_every_s"]
    if every_s is None:
        return "always" if row["time_filled"] < 0.5 else "never"
    return "> 1,000 years" if every_s > _ERA_S else long_words(every_s)


def _percent(share: float) -> str:
    """As many digits as are needed to tell it from all, up to a thousandth of a percent."""
    missing = 1 - share
    if 0 < missing < 1e-5:
        return "> 99.999%"
    digits = 2 if missing >= 0.001 or not missing else -math.floor(math.log10(missing)) - 1
    return f"{share:.{digits}%}"


def _words(
    question: Question, rows: list[Figures], count: int, least: int, cautious: int | None
) -> list[str]:
    """The advice, in sentences."""
    target, failures = question.target, question.of == "failures"
    by_count = {row.standbys: row for row in rows}
    chosen, fewer = by_count[count], by_count.get(count - 1)

    def share(row: Figures) -> str:
        return _percent(row.failures_covered if failures else row.time_filled)

    what = (
        "of the failures find a standby at once for each machine that they take"
        if failures
        else "of the time every slot has a machine"
    )
    less = "" if fewer is None else f"; {count - 1} would give {share(fewer)}"
    lines = [
        f"Keep {count} standby{'s' * (count != 1)}: {share(chosen)} {what} "
        f"({_percent(target)} is asked{less})."
    ]
    if question.there is not None:
        lines[0] += f" The job has {question.there} at present."
    if failures:
        lines.append(
            "In the long run at least one slot is without a machine, and the job stands still, for "
            f"{long_words(_short_s(chosen))} a year."
        )
    if cautious is not None and cautious != count:
        lines.append(
            f"So few failures were seen that {cautious} are needed to be sure (95 %) of the target."
        )
    if chosen.moves_at_once is not None:
        lines.append(
            f"keep_reserve: {chosen.reserve} leaves enough for failures while policy moves "
            f"machines; {chosen.moves_at_once:.0%} of the moves find more than that and go on at "
            "once. With more standbys, fewer wait."
        )
    if least != count:
        lines.append(f"The fewest machine-hours are spent with {least}.")
    return lines


def _short_s(row: Figures) -> float:
    return (1 - row.time_filled) * 365 * DAY_S


def _simulated(demand: Demand, row: Figures, seed: int) -> dict[str, Any]:
    if demand.elsewhere_s is not None:
        raise ConfigError(
            "--simulate has no machine from elsewhere: leave --elsewhere out, or ask "
            "`trainmover simulate --sweep standbys 0..16`."
        )
    if demand.load > _MOST_TO_SIMULATE:
        raise ConfigError("so many machines are away at a time that --simulate would take minutes.")
    found: dict[str, Any] = {"seed": seed}
    repairs: tuple[Repair, ...] = ("exponential", "constant")
    for repair in repairs:
        drawn = simulate(demand, row.standbys, reserve=row.reserve, repair=repair, seed=seed)
        found[repair] = asdict(drawn)
    return found


def _simulated_table(data: dict[str, Any]) -> RenderableType:
    names = ("failures_covered", "machines_covered", "time_filled", "wait_s")
    row = next(one for one in data["rows"] if one["standbys"] == data["standbys"])
    drawn = data["simulated"]

    def cell(name: str, mean: float, error: float | None = None) -> str:
        if name == "wait_s":
            return f"{mean:,.1f} s" if error is None else f"{mean:,.1f} +- {error:,.1f} s"
        return f"{mean:.4%}" if error is None else f"{mean:.4%} +- {error:.4%}"

    lines = [
        (
            name.replace("_", " ").removesuffix(" s"),
            cell(name, row[name]),
            *(cell(name, **drawn[repair][name]) for repair in ("exponential", "constant")),
        )
        for name in names
    ]
    title = (
        f"{data['standbys']} standbys, a history of {drawn['exponential']['days']:,.0f} days, "
        f"seed {drawn['seed']}"
    )
    columns = ("", "formula", "drawn", "repairs all as long")
    return output.table(columns, lines, title=title)
