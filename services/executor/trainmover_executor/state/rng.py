"""The random number generators a training step draws from."""

from __future__ import annotations

import random
import struct
from array import array
from typing import Any, Final

import numpy as np
import torch

from trainmover.errors import ProtocolError

__all__ = ["capture_rng", "restore_rng"]

_HEAD: Final = struct.Struct("<iI?diiidI")
"""Python: version, number of words, whether there is a spare normal variate, and that one; numpy:
number of keys, position, the same two; bytes of torch's."""


def capture_rng() -> dict[str, Any]:
    """State of the generators of Python, numpy and torch (CPU and every CUDA device in use).

    Those of the host are one piece: it is taken twice a step and handed over with each vote.
    """
    version, words, gauss = random.getstate()
    legacy = np.random.get_state(legacy=False)
    twister, own = legacy["state"], torch.get_rng_state().numpy()
    head = _HEAD.pack(
        *(version, len(words), gauss is not None, gauss or 0.0),
        *(len(twister["key"]), twister["pos"], legacy["has_gauss"], legacy["gauss"]),
        len(own),
    )
    pieces = (head, array("I", words), twister["key"].tobytes(), own.tobytes())
    state: dict[str, Any] = {"host": np.frombuffer(b"".join(pieces), np.uint8)}
    if torch.cuda.is_available() and torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
        state["cuda"] = torch.cuda.get_rng_state_all()
    return state


def restore_rng(state: dict[str, Any]) -> None:
    """Put back what ``capture_rng`` returned.

    Raises:
        ProtocolError: It is something else.
    """
    host = state["host"].tobytes()
    if len(host) < _HEAD.size:
        raise ProtocolError(f"a state of random generators has {len(host)} bytes")
    version, words, spare, gauss, keys, position, cached, normal, own = _HEAD.unpack_from(host)
    said = _HEAD.size + 4 * words + 4 * keys + own
    if said != len(host):
        raise ProtocolError(f"a state of random generators has {len(host)} bytes, not {said}")
    at = _HEAD.size
    numbers = array("I", host[at : (at := at + 4 * words)])
    random.setstate((version, tuple(numbers), gauss if spare else None))
    twister = np.frombuffer(host[at : (at := at + 4 * keys)], np.uint32)
    np.random.set_state(("MT19937", twister, position, cached, normal))
    torch.set_rng_state(torch.frombuffer(bytearray(host[at:]), dtype=torch.uint8))
    if "cuda" in state:
        torch.cuda.set_rng_state_all(state["cuda"])
