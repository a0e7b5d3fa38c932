"""A joiner says that its program stands where the job does: the state may come."""

from __future__ import annotations

from typing import Final

from trainmover_executor.links.link import Link, LinkBrokenError
from trainmover_executor.state.handing_over.transfer import receive_tree, send_tree

__all__ = ["await_arrival", "say_arrived"]

_WAY_TIMEOUT_S: Final = 600.0
"""How long a joiner's program may take from its shadow iterations to where the job stands."""


def say_arrived(link: Link, *, epoch: int) -> None:
    """Tell the giver that the state may come.

    Raises:
        LinkBrokenError: It is gone.
    """
    send_tree(link, {"kind": "arrived"}, epoch=epoch)


def await_arrival(link: Link, *, epoch: int) -> None:
    """Wait for ``say_arrived`` of the other side.

    Raises:
        LinkBrokenError: It is gone, or did not get there.
    """
    message, _ = receive_tree(link, epoch=epoch, live={}, first_timeout_s=_WAY_TIMEOUT_S)
    if message != {"kind": "arrived"}:
        raise LinkBrokenError(f"the joiner said {message!r} instead of that it arrived")
