"""Handing a state tree from one rank to another over a link, tensor by tensor, checksummed.

The sender describes the tree (JSON: skeleton and tensor specs), then sends the bytes of each tensor
straight from its live storage, then a CRC-32 over all of them. The receiver receives into its own
live tensors where path, dtype and shape agree, and answers whether the checksum held.
"""

from __future__ import annotations

import json
import zlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

import torch

from trainmover.errors import ProtocolError
from trainmover_executor.communicator.memory import bytes_of, flat_of, on_host
from trainmover_executor.links.link import Link
from trainmover_executor.links.pump import pump
from trainmover_executor.state.codec import TensorSpec, decode, encode

__all__ = [
    "HAND_OVER_TIMEOUT_S",
    "StateCorruptError",
    "Transferred",
    "live_tensors",
    "receive_tree",
    "send_tree",
]

HAND_OVER_TIMEOUT_S: Final = 60.0
"""How long the other side of a hand-over may take to come, or to move anything."""

_HEAD_LIMIT_BYTES: Final = 256 * 1024 * 1024
_TAG_SIZE, _TAG_HEAD, _TAG_TENSOR, _TAG_CHECK, _TAG_VERDICT = range(900, 905)


class StateCorruptError(ProtocolError):
    """The bytes that arrived are not the bytes that were sent."""


@dataclass(frozen=True, slots=True)
class Transferred:
    """What went over the link.

    Attributes:
        nbytes: Bytes of tensors.
        checksum: CRC-32 over all tensors in order.
        in_place: Number of tensors received without a copy.
    """

    nbytes: int
    checksum: int
    in_place: int = 0


class _Channel:
    """Messages of one transfer, numbered."""

    def __init__(self, link: Link, *, epoch: int, stall_timeout_s: float) -> None:
        self._link = link
        self._epoch = epoch
        self._stall_timeout_s = stall_timeout_s
        self._count = 0

    def send(self, tag: int, data: memoryview) -> None:
        self._count += 1
        pump(
            frame=(self._epoch, tag, self._count),
            out=(self._link, data),
            stall_timeout_s=self._stall_timeout_s,
        )

    def receive(self, tag: int, into: memoryview, *, timeout_s: float | None = None) -> None:
        self._count += 1
        pump(
            frame=(self._epoch, tag, self._count),
            into=(self._link, len(into), into),
            stall_timeout_s=self._stall_timeout_s if timeout_s is None else timeout_s,
        )

    def send_int(self, tag: int, value: int) -> None:
        self.send(tag, memoryview(value.to_bytes(8, "little")))

    def receive_int(self, tag: int, *, timeout_s: float | None = None) -> int:
        data = bytearray(8)
        self.receive(tag, memoryview(data), timeout_s=timeout_s)
        return int.from_bytes(data, "little")


def live_tensors(tree: Mapping[str, Any]) -> dict[str, torch.Tensor]:
    """The tensors of one's own tree by path, to receive another rank's into."""
    return {spec.path: tensor for spec, tensor in encode(dict(tree))[1]}


def send_tree(
    link: Link,
    tree: Mapping[str, Any],
    *,
    epoch: int,
    checked: bool = True,
    stall_timeout_s: float = HAND_OVER_TIMEOUT_S,
) -> Transferred:
    """Send ``tree`` and wait until the receiver confirmed it.

    Args:
        link: Link to the receiver.
        tree: What to send, straight from its live tensors.
        epoch: Epoch both sides are at or about to enter.
        checked: Compute a CRC-32 over all tensors; without it the caller compares by other means.
        stall_timeout_s: Give up when nothing moved for so long.

    Raises:
        LinkBrokenError: The receiver went away.
        StateCorruptError: The receiver got other bytes.
    """
    channel = _Channel(link, epoch=epoch, stall_timeout_s=stall_timeout_s)
    skeleton, tensors = encode(dict(tree))
    specs = [spec.to_json() for spec, _ in tensors]
    head = json.dumps({"tree": skeleton, "tensors": specs, "checked": checked})
    data = memoryview(head.encode())
    channel.send_int(_TAG_SIZE, len(data))
    channel.send(_TAG_HEAD, data)
    checksum = 0
    nbytes = 0
    for _, tensor in tensors:
        view = bytes_of(flat_of(tensor))
        channel.send(_TAG_TENSOR, view)
        checksum = zlib.crc32(view, checksum) if checked else 0
        nbytes += len(view)
    channel.send_int(_TAG_CHECK, checksum)
    if channel.receive_int(_TAG_VERDICT) != checksum:
        raise StateCorruptError(f"rank {link.peer} received other bytes than were sent")
    return Transferred(nbytes=nbytes, checksum=checksum)


def receive_tree(
    link: Link, *, epoch: int, live: Mapping[str, torch.Tensor], first_timeout_s: float
) -> tuple[Any, Transferred]:
    """Receive a tree, into the tensors of ``live`` where they agree.

    Args:
        link: Link to the sender.
        epoch: Epoch both sides are at or about to enter.
        live: Tensors to receive into, by path; others are received into fresh memory.
        first_timeout_s: How long the sender may take to begin.

    Raises:
        LinkBrokenError: The sender went away.
        StateCorruptError: The checksum does not hold; the live tensors are garbage now.
        ProtocolError: The sender's description does not parse.
    """
    channel = _Channel(link, epoch=epoch, stall_timeout_s=HAND_OVER_TIMEOUT_S)
    size = channel.receive_int(_TAG_SIZE, timeout_s=first_timeout_s)
    if size > _HEAD_LIMIT_BYTES:
        raise ProtocolError(f"rank {link.peer} describes its state in {size} bytes")
    data = bytearray(size)
    channel.receive(_TAG_HEAD, memoryview(data))
    try:
        head = json.loads(data)
        specs = [TensorSpec.from_json(value) for value in head["tensors"]]
        checked = bool(head["checked"])
    except (ValueError, KeyError, TypeError) as error:
        raise ProtocolError(f"state description of rank {link.peer}: {error}") from error
    tensors = []
    checksum = nbytes = in_place = 0
    for spec in specs:
        tensor, reused = _target(live.get(spec.path), spec)
        view = bytes_of(tensor.view(-1))
        if len(view) != spec.nbytes:
            raise ProtocolError(f"tensor {spec.path}: {len(view)} bytes for {spec}")
        channel.receive(_TAG_TENSOR, view)
        checksum = zlib.crc32(view, checksum) if checked else 0
        nbytes += len(view)
        in_place += reused
        tensors.append(tensor)
    expected = channel.receive_int(_TAG_CHECK)
    channel.send_int(_TAG_VERDICT, checksum)
    if checksum != expected:
        raise StateCorruptError(f"state from rank {link.peer} arrived damaged: CRC-32 differs")
    return decode(head["tree"], tensors), Transferred(nbytes, checksum, in_place)


def _target(live: torch.Tensor | None, spec: TensorSpec) -> tuple[torch.Tensor, bool]:
    if (
        live is not None
        and live.dtype == spec.dtype
        and tuple(live.shape) == spec.shape
        and live.is_contiguous()
        and on_host(live)
    ):
        return live, True
    return torch.empty(spec.shape, dtype=spec.dtype), False
