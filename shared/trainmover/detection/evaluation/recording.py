"""Recordings of a job for detectors: its facts, its telemetry and, where known, what was wrong.

A recording is a gzipped file of JSON lines, each with ``t`` (seconds since it began) and one of
``fact`` (a CloudEvents type and its payload), ``batch`` (a telemetry message, in base64) or
``label`` (what a perfect detector would have said). A fact's ``said`` is when it was stated, where
that is known: a recorder that comes later is handed all earlier facts at once. It can be read, cut
and joined by hand.
"""

from __future__ import annotations

import base64
import gzip
import json
import math
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, Self

from trainmover.detection.evaluation.scoring import Label
from trainmover.errors import ConfigError, MalformedEventError
from trainmover.events import lookup, type_of
from trainmover.job.topology import Frozen
from trainmover.telemetry.records import Batch, decode_batch, encode_batch

__all__ = ["Entry", "Recorder", "read"]


@dataclass(frozen=True, slots=True)
class Entry:
    """One line of a recording.

    Attributes:
        now_s: Seconds since the recording began.
        what: A fact, a batch, or a label.
        said_s: When a fact was stated, by the clock of who stated it: seconds since the recording
            began, negative for what was before. ``now_s`` where nobody wrote it down.
    """

    now_s: float
    what: Frozen | Batch | Label
    said_s: float


class Recorder:
    """Writes a recording.

    Args:
        path: The file; an existing one is replaced.
    """

    def __init__(self, path: Path) -> None:
        self._file: IO[str] = gzip.open(path, "wt", encoding="utf-8")  # noqa: SIM115 - see __exit__
        self.entries = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._file.close()

    def fact(self, now_s: float, fact: Frozen, *, said_s: float | None = None) -> None:
        """Add a fact, and when it was stated; see ``Entry``."""
        payload = fact.model_dump(mode="json")
        said = {} if said_s is None else {"said": round(said_s, 6)}
        self._line(now_s, {**said, "fact": {"type": type_of(fact).type, "payload": payload}})

    def batch(self, now_s: float, batch: Batch | bytes) -> None:
        """Add a telemetry message."""
        data = batch if isinstance(batch, bytes) else encode_batch(batch)
        self._line(now_s, {"batch": base64.b64encode(data).decode()})

    def label(self, label: Label) -> None:
        """Add what should be found."""
        self._line(label.since_s, {"label": label.as_data()})

    def _line(self, now_s: float, what: dict[str, Any]) -> None:
        self._file.write(json.dumps({"t": round(now_s, 6), **what}, separators=(",", ":")) + "\n")
        self.entries += 1


def read(path: Path) -> Iterator[Entry]:
    """Entries of a recording, in the order in which they were written.

    Raises:
        ConfigError: There is no such file, or a line of it is not an entry.
    """
    number = 0
    try:
        with gzip.open(path, "rt", encoding="utf-8") as file:
            for line in file:
                number += 1
                document = json.loads(line)
                now_s = _seconds(document["t"])
                said_s = _seconds(document.get("said", now_s))
                yield Entry(now_s, _what(document), said_s)
    except OSError as error:
        raise ConfigError(f"recording {path} cannot be read: {error}.") from error
    except (
        EOFError,
        ValueError,
        KeyError,
        TypeError,
        MalformedEventError,
    ) as error:
        raise ConfigError(
            f"line {number} of recording {path} is not an entry: {error}. Was it made by "
            "`trainmover job record` of this version, and to its end?"
        ) from error


def _seconds(value: Any) -> float:
    seconds = float(value)
    if not math.isfinite(seconds):
        raise ValueError(f"{value!r} is no time")
    return seconds


def _what(document: dict[str, Any]) -> Frozen | Batch | Label:
    if "fact" in document:
        fact = document["fact"]
        return lookup(fact["type"]).model.model_validate(fact["payload"])
    if "batch" in document:
        return decode_batch(base64.b64decode(document["batch"], validate=True))
    return Label.of(document["label"])
