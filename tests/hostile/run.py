"""One attack: an input, and what must not come of it."""

from __future__ import annotations

import contextlib
from typing import Any

from hypothesis import strategies as st
from tests.hostile.decoders import Decoder
from tests.hostile.inputs import bytes_like, documents_like
from tests.hostile.readers import GOLDEN, READERS, story_of

__all__ = ["attack_decoder", "attack_reader", "inputs_of", "stories"]


def inputs_of(decoder: Decoder) -> st.SearchStrategy[bytes]:
    """What a decoder is fed with."""
    return st.sampled_from(decoder.samples).flatmap(bytes_like)


def attack_decoder(decoder: Decoder, data: bytes) -> None:
    """Whatever it raises, its callers know it."""
    with contextlib.suppress(*decoder.knows):
        decoder.read(data)


def stories() -> st.SearchStrategy[list[Any]]:
    """Facts in any order, some of them swapped, some said by others."""
    line = st.sampled_from(GOLDEN)
    swapped = line.flatmap(_with_another_body)
    return st.lists(line | swapped, min_size=1, max_size=25)


@st.composite
def _with_another_body(draw: st.DrawFn, line: dict[str, Any]) -> Any:
    import json

    body = draw(documents_like(json.loads(line["body"])))
    number = draw(st.integers(0, 10**9))
    headers = line["headers"] | {"ce-id": f"h-{number}", "ce-sequence": ""}
    return {**line, "headers": headers, "body": body}


def attack_reader(reader: str, lines: list[Any]) -> None:
    """It takes everything in."""
    READERS[reader](story_of(lines))
