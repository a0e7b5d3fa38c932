"""What became of a dead rank's variables between its last vote and where the job stands now.

Code behind the vote changes them: it counts steps, and averages losses. Ranks run one program, so a
variable that was the same at the rank that gives the state is what that rank has now. One that
differs from rank to rank keeps its value at the vote.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import structlog

from trainmover_executor.values import equal

__all__ = ["predicted"]

log = structlog.get_logger(__name__)


def predicted(
    theirs: Mapping[str, Any], *, then: Mapping[str, Any], now: Mapping[str, Any]
) -> dict[str, Any]:
    """The dead rank's variables where the job stands.

    Args:
        theirs: At its last vote.
        then: Another rank's at that vote.
        now: That rank's now.
    """
    values = dict(theirs)
    unknown = []
    for path, value in now.items():
        before = then.get(path)
        if (path not in theirs and path not in then) or (
            path in theirs and path in then and equal(theirs[path], before)
        ):
            values[path] = value
        elif path not in then or not equal(before, value):
            unknown.append(path)
    if unknown:
        log.warning(
            "variables that differ from rank to rank are as they were at the last vote",
            variables=unknown,
        )
    return values
