"""The phases of a rank, as its training thread goes through them."""

from __future__ import annotations

from typing import Final

from trainmover.protocol.chart import Arrow, Chart

__all__ = ["RANK"]

RANK: Final = Chart(
    "a rank",
    start="starting",
    arrows=(
        Arrow("starting", "training", "it is a member of the first membership"),
        Arrow("starting", "warm", "a standby: its shadow iterations are done"),
        Arrow("warm", "joining", "a plan needs it"),
        Arrow("joining", "warm", "it could not join"),
        Arrow("joining", "training", "it has the state"),
        Arrow("training", "voting", "its gradients are whole"),
        Arrow("voting", "training", "the vote passed, or broke"),
        Arrow("voting", "switching", "the vote passed, and all were prepared"),
        Arrow("switching", "training", "links to the joiner are in place"),
        Arrow("switching", "left", "its state is handed over"),
        Arrow("training", "broken", "communication broke"),
        Arrow("switching", "broken", "communication broke"),
        Arrow("left", "broken", "the slot was given back"),
        Arrow("broken", "agreeing", "a recovery plan came"),
        Arrow("agreeing", "broken", "communication broke"),
        Arrow("agreeing", "recovering", "all know how many steps are complete"),
        Arrow("recovering", "broken", "communication broke"),
        Arrow("recovering", "training", "joiners have what it held for them"),
    ),
)
