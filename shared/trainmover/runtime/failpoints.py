"""Named places at which a test may hold a process, kill it or freeze it.

Nothing happens unless ``TRAINMOVER_FAILPOINTS`` names a JSON file with rules when the process
starts: then the first process that reaches a rule's point, and matches it, does what the rule says.
Callers test ``ARMED`` first, so that a point costs a training step one attribute look-up.
"""

from __future__ import annotations

import json
import os
import signal
import time
from pathlib import Path
from typing import Any, Final

__all__ = ["ARMED", "VARIABLE", "reach"]

VARIABLE: Final = "TRAINMOVER_FAILPOINTS"
"""Names the file: a list of ``{"point", "match", "when", "do", "path"}``.

``match``: values that the point must be reached with. ``when``: only once this file exists.
``do``: ``kill``, ``freeze`` or ``hold``. ``path``: ``<path>.reached`` is created by who gets there
first, and alone acts; a process on ``hold`` goes on when ``<path>.go`` exists.
"""

ARMED: Final = VARIABLE in os.environ

_POLL_S: Final = 0.002


def reach(point: str, **where: Any) -> None:
    """This process is at ``point``; ``where`` says as what."""
    for rule in json.loads(Path(os.environ[VARIABLE]).read_text()):
        wanted = rule.get("match", {})
        if rule["point"] != point or any(where.get(key) != wanted[key] for key in wanted):
            continue
        if "when" in rule and not Path(rule["when"]).exists():
            continue
        if _first(Path(f"{rule['path']}.reached"), where):
            _act(rule)


def _first(marker: Path, where: dict[str, Any]) -> bool:
    try:
        descriptor = os.open(marker, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o644)
    except FileExistsError:
        return False
    with os.fdopen(descriptor, "w") as file:
        json.dump({"pid": os.getpid(), **where}, file)
    return True


def _act(rule: dict[str, Any]) -> None:
    if rule["do"] == "hold":
        go = Path(f"{rule['path']}.go")
        while not go.exists():
            time.sleep(_POLL_S)  # on purpose not woken: whoever holds it here may be dead by then
    else:
        os.kill(os.getpid(), signal.SIGKILL if rule["do"] == "kill" else signal.SIGSTOP)
