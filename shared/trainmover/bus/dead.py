"""Dead letters: what nobody could read, or what must not count, with the reason."""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final, ParamSpec, TypeVar

from nats.js.api import Header

from trainmover.errors import MalformedEventError
from trainmover.events.envelope import percent_encode

__all__ = ["KEPT_BYTES", "Letter", "letter", "readable"]

P = ParamSpec("P")
T = TypeVar("T")

_NAME: Final = re.compile(r"[A-Za-z0-9_-]{1,64}")
KEPT_BYTES: Final = 64 * 1024
"""So much of an oversized body is kept: the dead must not fill the disk."""

_KEPT_HEADERS: Final = 32
_KEPT_CHARACTERS: Final = 400
"""Of a header's value, of the reason and of the subject."""


@dataclass(frozen=True, slots=True)
class Letter:
    """What goes to ``tm.v1.dead``.

    Attributes:
        headers: The message's own, percent-encoded and cut, and ``tm-kind``, ``tm-reason``,
            ``tm-subject``, ``tm-bytes``; ``tm-sequence`` where it was stored.
        data: The body, at most ``KEPT_BYTES`` of it.
    """

    headers: dict[str, str]
    data: bytes


def readable(parse: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
    """What ``parse`` makes of a message.

    Raises:
        MalformedEventError: It makes nothing of it, for whatever reason: a bug in a parser must not
            let one message end whoever reads, now and each time that it starts.
    """
    try:
        return parse(*args, **kwargs)
    except MalformedEventError:
        raise
    except Exception as error:
        raise MalformedEventError(f"{type(error).__name__}: {error}") from error


def letter(
    *,
    subject: str,
    headers: Mapping[str, str] | None,
    data: bytes,
    error: MalformedEventError,
    stored: tuple[str, int] | None = None,
) -> Letter:
    """The letter about one message.

    Args:
        subject: Where the message came.
        headers: Its headers.
        data: Its body.
        error: Why it does not count.
        stored: Stream and sequence of the message, where a stream holds it: every reader finds the
            same bad message, and the letter is kept once.
    """
    sendable = (
        (name, value)
        for name, value in (headers or {}).items()
        # The server would obey its own headers once more, and nats-py sends no odd names.
        if _NAME.fullmatch(name) and not name.lower().startswith("nats-")
    )
    kept = {name: _cut(value) for name, value in itertools.islice(sendable, _KEPT_HEADERS)}
    kept["tm-kind"] = error.kind
    kept["tm-reason"] = _cut(str(error))
    kept["tm-subject"] = _cut(subject)
    kept["tm-bytes"] = str(len(data))
    if stored is not None:
        kept["tm-sequence"] = str(stored[1])
        kept[Header.MSG_ID.value] = f"{stored[0]}/{stored[1]}"
    return Letter(headers=kept, data=data[:KEPT_BYTES])


def _cut(text: str) -> str:
    return percent_encode(
        text if len(text) <= _KEPT_CHARACTERS else f"{text[:_KEPT_CHARACTERS]}..."
    )
