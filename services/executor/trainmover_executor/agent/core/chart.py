"""The life of a machine, and of a slot that a standby keeps processes warm for."""

from __future__ import annotations

from typing import Final

from trainmover.protocol.chart import Arrow, Chart

__all__ = ["BAY", "MACHINE"]

MACHINE: Final = Chart(
    "a machine",
    start="new",
    arrows=(
        Arrow("new", "registered", "its sockets are bound"),
        Arrow("registered", "active", "start: it is a member of the first membership"),
        Arrow("registered", "standby", "warm"),
        Arrow("standby", "active", "its ranks committed a plan"),
        Arrow("registered", "ending", "stop, release or SIGTERM"),
        Arrow("standby", "ending", "stop, release or SIGTERM"),
        Arrow("active", "ending", "left, crashed, stop or SIGTERM"),
        Arrow("active", "finished", "its program ended normally"),
        Arrow("ending", "registered", "its processes are gone: a new incarnation"),
        Arrow("ending", "finished", "its processes are gone: the agent ends"),
    ),
)

BAY: Final = Chart(
    "a bay",
    start="queued",
    arrows=(
        Arrow("queued", "warming", "its processes are started"),
        Arrow("warming", "ready", "shadow iterations are done"),
        Arrow("warming", "down", "a process died, or made room for another bay"),
        Arrow("ready", "down", "a process died, or made room for another bay"),
        Arrow("down", "queued", "it listens again"),
    ),
)
