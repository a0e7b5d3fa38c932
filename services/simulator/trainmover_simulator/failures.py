"""What fails and when: published rates, histories drawn from a seed, histories from a file."""

from __future__ import annotations

import csv
import random
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final, Literal

from trainmover.errors import ConfigError

__all__ = [
    "DAY_S",
    "GPUS_PER_MACHINE",
    "MODELS",
    "RACK",
    "Failure",
    "FailureModel",
    "Kind",
    "draw",
    "evenly",
    "read_csv",
]

DAY_S: Final = 86_400.0
GPUS_PER_MACHINE: Final = 8
RACK: Final = 8
"""Machines that a failing rack takes down; an assumption."""
SWITCH: Final = 32
"""Machines behind a switch; an assumption."""

Kind = Literal["machine", "rack", "switch", "planned"]
_KINDS: Final[tuple[Kind, ...]] = ("machine", "rack", "switch", "planned")


@dataclass(frozen=True, slots=True)
class Failure:
    """Machines leave a job at the same moment.

    Attributes:
        at_s: Seconds since the job began.
        slots: The slots whose machines leave.
        kind: What failed; a planned departure was announced.
    """

    at_s: float
    slots: tuple[int, ...]
    kind: Kind = "machine"


@dataclass(frozen=True, slots=True)
class FailureModel:
    """How often machines fail.

    Attributes:
        name: How the command line calls it.
        source: Where the rate was published, and what was derived from it.
        machine_day: Failures of one machine in one day.
        planned: Announced departures for each failure.
        racks: Share of the failures that takes a whole rack.
        switches: Share of the failures that takes all machines of a switch.
    """

    name: str
    source: str
    machine_day: float
    planned: float = 0.0
    racks: float = 0.0
    switches: float = 0.0

    def mttf_s(self, machines: int) -> float:
        """Mean time between failures of a job of so many machines, in seconds."""
        return DAY_S / (self.machine_day * machines)


def _machine_day(mttf_h: float, gpus: int) -> float:
    return 24.0 / mttf_h / (gpus / GPUS_PER_MACHINE)


_RSC: Final = _machine_day(1.8, 16_384)
PLANNED: Final = 1 / 8.9
"""Planned departures for each failure, of Llama 3, as the TrainMover paper takes it (8.2)."""

MODELS: Final = {
    one.name: one
    for one in (
        FailureModel(
            name="trainmover",
            source="TrainMover 8.2: MTTF of Meta's RSC, one planned departure for 8.9 failures",
            machine_day=_RSC,
            planned=PLANNED,
        ),
        FailureModel(
            name="rsc",
            source="Kokolis et al., HPCA 2025: MTTF 1.8 h at 16,384 GPUs; rate per machine derived",
            machine_day=_RSC,
        ),
        FailureModel(
            name="llama3",
            source="Llama 3 (quoted by TrainMover): MTTF 2.7 h at 16,384 GPUs, 8.9 : 1 unplanned",
            machine_day=_machine_day(2.7, 16_384),
            planned=PLANNED,
        ),
        FailureModel(
            name="c4",
            source="C4, HPCA 2025: 82.5 % of errors stay in one machine (recalled, not verified); "
            "C4 gives no rate, so RSC's; that the rest takes a rack is our assumption",
            machine_day=_RSC,
            racks=0.175,
        ),
    )
}


def draw(
    model: FailureModel, *, machines: int, days: float, seed: int | str
) -> tuple[Failure, ...]:
    """A history of failures: a Poisson process over all machines.

    Args:
        model: How often they fail.
        machines: Machines that may fail.
        days: Length of the history.
        seed: The same one gives the same history.
    """
    source = random.Random(seed)  # noqa: S311 - reproducible, not secret
    found: list[Failure] = []
    per_day = model.machine_day * machines * (1 + model.planned)
    if per_day <= 0:
        return ()
    weights = (1 - model.racks - model.switches, model.racks, model.switches, model.planned)
    at_s = source.expovariate(per_day / DAY_S)
    while at_s < days * DAY_S:
        kind = source.choices(_KINDS, weights)[0]
        found.append(Failure(at_s, _beside(source.randrange(machines), kind, machines), kind))
        at_s += source.expovariate(per_day / DAY_S)
    return tuple(found)


def _beside(slot: int, kind: Kind, machines: int) -> tuple[int, ...]:
    """The slots that go down together with this one."""
    size = {"rack": RACK, "switch": SWITCH}.get(kind, 1)
    first = slot - slot % size
    return tuple(range(first, min(first + size, machines)))


def evenly(*, mttf_s: float, planned: float, days: float) -> tuple[Failure, ...]:
    """A history without chance: failures of slot 0 at even distances.

    It is what formulas of the form ``1 - downtime / MTTF`` describe.

    Args:
        mttf_s: Between two failures, seconds.
        planned: Announced departures for each failure.
        days: Length of the history.
    """
    end_s = days * DAY_S
    found = [Failure((n + 0.5) * mttf_s, (0,)) for n in range(round(end_s / mttf_s))]
    if planned:
        apart_s = mttf_s / planned
        count = round(end_s / apart_s)
        found += [Failure((n + 0.5) * apart_s, (0,), "planned") for n in range(count)]
    return tuple(sorted(found, key=lambda one: one.at_s))


def read_csv(lines: Iterable[str], *, machines: int) -> tuple[Failure, ...]:
    """A history from a file with the columns ``at_s``, ``slots`` (``3`` or ``8-15``) and ``kind``.

    ``kind`` may be left out; it is ``machine`` then.

    Raises:
        ConfigError: A line does not say what failed and when.
    """
    reader = csv.DictReader(lines)
    if not {"at_s", "slots"} <= set(reader.fieldnames or ()):
        raise ConfigError("a file of failures begins with the line 'at_s,slots,kind'.")
    found = []
    for row in reader:
        try:
            found.append(_of_row(row, machines))
        except (TypeError, ValueError) as error:
            raise ConfigError(
                f"line {reader.line_num} of the file of failures: {error}. "
                "Write seconds, a slot or a span such as 8-15, "
                f"and one of {', '.join(_KINDS)}."
            ) from error
    return tuple(sorted(found, key=lambda one: one.at_s))


def _of_row(row: dict[str, str], machines: int) -> Failure:
    kinds: Sequence[Kind] = [one for one in _KINDS if one == (row.get("kind") or "machine").strip()]
    if not kinds:
        raise ValueError(f"there is no kind {row.get('kind')!r}")
    first, _, last = row["slots"].partition("-")
    slots = range(int(first), int(last or first) + 1)
    at_s = float(row["at_s"])
    if not slots or slots[0] < 0 or slots[-1] >= machines:
        raise ValueError(f"slots {row['slots']!r} are not among 0 to {machines - 1}")
    if not 0 <= at_s < float("inf"):
        raise ValueError(f"{row['at_s']!r} is no time")
    return Failure(at_s, tuple(slots), kinds[0])
