"""``python -m tests.hostile --seconds 600``: hostile inputs until the time is over."""

from __future__ import annotations

import argparse
import json
import time
import traceback
from collections.abc import Callable
from typing import Any

from hypothesis import HealthCheck, given, seed, settings
from tests.hostile.decoders import DECODERS
from tests.hostile.readers import READERS
from tests.hostile.run import attack_decoder, attack_reader, inputs_of, stories

ROUND = 40


def targets() -> dict[str, tuple[Any, Callable[[Any], None]]]:
    """(what it is fed with, the attack) of everything that is attacked."""
    found: dict[str, tuple[Any, Callable[[Any], None]]] = {}
    for decoder in DECODERS:
        found[decoder.name] = (
            inputs_of(decoder),
            lambda data, decoder=decoder: attack_decoder(decoder, data),
        )
    for reader in READERS:
        found[reader] = (stories(), lambda lines, reader=reader: attack_reader(reader, lines))
    return found


def attack(strategy: Any, against: Callable[[Any], None], *, number: int) -> int:
    """One round; how many inputs were tried.

    Raises:
        Exception: What came of one of them.
    """
    tried = 0

    @seed(number)
    @settings(
        max_examples=ROUND,
        deadline=None,
        database=None,
        suppress_health_check=list(HealthCheck),
        print_blob=False,
    )
    @given(strategy)
    def run(data: Any) -> None:
        nonlocal tried
        tried += 1
        against(data)

    run()
    return tried


def main() -> int:
    """0 when nothing was raised that nobody knows."""
    parser = argparse.ArgumentParser(prog="python -m tests.hostile", description=__doc__)
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    known = targets()
    tried = dict.fromkeys(known, 0)
    wrong: dict[str, str] = {}
    deadline_s = time.monotonic() + arguments.seconds
    number = arguments.seed
    while time.monotonic() < deadline_s and len(wrong) < len(known):
        number += 1
        for name, (strategy, against) in known.items():
            if name in wrong or time.monotonic() >= deadline_s:
                continue
            try:
                tried[name] += attack(strategy, against, number=number)
            except Exception:  # noqa: BLE001 - whatever it is, it is told
                wrong[name] = f"seed {number}: {traceback.format_exc(limit=-6)}"
    if arguments.json:
        print(json.dumps({"tried": tried, "total": sum(tried.values()), "wrong": wrong}))
    else:
        for name, count in tried.items():
            print(f"{count:9,}  {name}")
        print(f"{sum(tried.values()):9,}  inputs in {arguments.seconds:g} s, {len(wrong)} wrong")
        for name, text in wrong.items():
            print(f"\n{name}: {text}")
    return 1 if wrong else 0


if __name__ == "__main__":
    raise SystemExit(main())
