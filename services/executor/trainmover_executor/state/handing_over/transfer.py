"""Handing a state tree from one rank to another over a link, checksummed.

The sender describes the tree (JSON: skeleton and tensor specs), then sends the bytes: small tensors
together, each large one by itself and straight from its live storage. The receiver receives large
ones into its own live tensors where path, dtype and shape agree, and answers whether the checksum
held. Both sides take the checksum of each piece just after it has moved: both cores are busy at the
same time, and no byte is fetched from memory twice.

Large tensors in the memory of a GPU are lent where both ranks are on one host (see ``lent``): the
receiver copies them into live tensors on its GPU, and only what it could not take goes over the
link.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import torch

from trainmover.errors import ProtocolError
from trainmover_executor.links.exchange import Watch, exchange
from trainmover_executor.links.link import Link
from trainmover_executor.state.handing_over.lent import Loan, lend, settle, take
from trainmover_executor.state.packing.checksum import Checksum, checksum_of
from trainmover_executor.state.packing.codec import TensorSpec, decode, encode
from trainmover_executor.state.packing.fingerprint import words_of
from trainmover_executor.state.packing.memory import bytes_of, flat_of, on_host

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
_SMALL_BYTES: Final = 64 * 1024
"""Up to here a message of its own costs a tensor more than a copy of it."""
_BUNDLE_BYTES: Final = 1024 * 1024
_TAG_SIZE, _TAG_HEAD, _TAG_TENSOR, _TAG_CHECK, _TAG_CHECKED, _TAG_TAKEN = range(900, 906)


class StateCorruptError(ProtocolError):
    """The bytes that arrived are not the bytes that were sent."""


@dataclass(frozen=True, slots=True)
class Transferred:
    """What went over the link.

    Attributes:
        nbytes: Bytes of tensors.
        checksum: Over all tensors, in the order in which they moved; 0 when unchecked.
        in_place: Number of tensors received without a copy.
        lent: Bytes of it that did not go over the link: from GPU memory to GPU memory.
    """

    nbytes: int
    checksum: int
    in_place: int = 0
    lent: int = 0


class _Channel:
    """Messages of one transfer, numbered."""

    def __init__(self, link: Link, *, epoch: int, stall_timeout_s: float) -> None:
        self._link = link
        self._epoch = epoch
        self._stall_timeout_s = stall_timeout_s
        self._count = 0

    def send(self, tag: int, data: memoryview, *, watch: Watch | None = None) -> None:
        self._count += 1
        exchange(
            frame=(self._epoch, tag, self._count),
            out=(self._link, data),
            watch=watch,
            stall_timeout_s=self._stall_timeout_s,
        )

    def receive(
        self,
        tag: int,
        into: memoryview,
        *,
        timeout_s: float | None = None,
        watch: Watch | None = None,
    ) -> None:
        self._count += 1
        exchange(
            frame=(self._epoch, tag, self._count),
            into=(self._link, len(into), into),
            watch=watch,
            stall_timeout_s=self._stall_timeout_s if timeout_s is None else timeout_s,
        )

    def send_ints(self, tag: int, *values: int) -> None:
        self.send(tag, memoryview(b"".join(value.to_bytes(8, "little") for value in values)))

    def receive_bytes(self, tag: int, count: int, *, timeout_s: float | None = None) -> bytearray:
        data = bytearray(count)
        self.receive(tag, memoryview(data), timeout_s=timeout_s)
        return data

    def receive_ints(self, tag: int, count: int, *, timeout_s: float | None = None) -> list[int]:
        data = self.receive_bytes(tag, 8 * count, timeout_s=timeout_s)
        return [int.from_bytes(data[at : at + 8], "little") for at in range(0, len(data), 8)]


class _Bytes:
    """The bytes of all tensors of one transfer, with the checksum over them."""

    def __init__(self, channel: _Channel, *, checked: bool) -> None:
        self._channel = channel
        self._checked = checked
        self._checksum = Checksum()

    @property
    def checksum(self) -> int:
        return self._checksum.value

    def send(self, views: Sequence[memoryview]) -> None:
        data = views[0] if len(views) == 1 else memoryview(b"".join(views))
        self._channel.send(_TAG_TENSOR, data, watch=self._watching(data))

    def receive(self, views: Sequence[memoryview]) -> None:
        if len(views) == 1:
            (data,) = views
        else:
            data = memoryview(bytearray(sum(map(len, views))))
        self._channel.receive(_TAG_TENSOR, data, watch=self._watching(data))
        if len(views) == 1:
            return
        for view in views:
            view[:], data = data[: len(view)], data[len(view) :]

    def lent(self, tensors: Iterable[torch.Tensor]) -> None:
        """Take in tensors that did not go over the link."""
        for words in words_of(tensors) if self._checked else ():
            self._checksum.add(words)

    def _watching(self, data: memoryview) -> Watch | None:
        if not self._checked:
            return None
        self._checksum.begin(data)
        return self._checksum.reached


def _messages(specs: Sequence[TensorSpec], *, taken: Collection[int] = ()) -> Iterator[list[int]]:
    """Which tensors go in one message: bundles of small ones first, then each large one.

    Args:
        specs: All of the tree.
        taken: Large ones that went another way.
    """
    bundle: list[int] = []
    size = 0
    for index, spec in enumerate(specs):
        if spec.nbytes > _SMALL_BYTES:
            continue
        bundle.append(index)
        size += spec.nbytes
        if size > _BUNDLE_BYTES:
            yield bundle
            bundle, size = [], 0
    if bundle:
        yield bundle
    large = (index for index, spec in enumerate(specs) if spec.nbytes > _SMALL_BYTES)
    yield from ([index] for index in large if index not in taken)


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
        checked: Take a checksum of all tensors; without it the caller compares by other means.
        stall_timeout_s: Give up when nothing moved for so long.

    Raises:
        LinkBrokenError: The receiver went away.
        StateCorruptError: The receiver got other bytes.
    """
    channel = _Channel(link, epoch=epoch, stall_timeout_s=stall_timeout_s)
    skeleton, tensors = encode(dict(tree))
    specs = [spec for spec, _ in tensors]
    described = [spec.to_json() for spec in specs]
    settle(tensor for _, tensor in tensors)
    loans = _loans(tensors) if link.shared is not None else {}
    about = {"tree": skeleton, "tensors": described, "checked": checked, "lent": loans}
    data = memoryview(json.dumps(about).encode())
    channel.send_ints(_TAG_SIZE, len(data), checksum_of(data))
    channel.send(_TAG_HEAD, data)
    content = _Bytes(channel, checked=checked)
    taken: list[int] = []
    if loans:
        answers = channel.receive_bytes(_TAG_TAKEN, len(loans))
        taken = [index for index, answer in zip(loans, answers, strict=True) if answer]
        content.lent(tensors[index][1] for index in taken)
    for indices in _messages(specs, taken=taken):
        content.send([bytes_of(flat_of(tensors[index][1])) for index in indices])
    channel.send_ints(_TAG_CHECK, content.checksum)
    if channel.receive_ints(_TAG_CHECKED, 1) != [content.checksum]:
        raise StateCorruptError(f"rank {link.peer} received other bytes than were sent")
    return Transferred(nbytes=sum(spec.nbytes for spec in specs), checksum=content.checksum)


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
        StateCorruptError: A checksum does not hold; the live tensors are garbage now.
        ProtocolError: The sender's description does not parse.
    """
    channel = _Channel(link, epoch=epoch, stall_timeout_s=HAND_OVER_TIMEOUT_S)
    head = _receive_head(link, channel, first_timeout_s=first_timeout_s)
    specs = head.specs
    content = _Bytes(channel, checked=head.checked)
    taken = _take_lent(head, channel, content, live=live) if head.lent else {}
    targets = [
        (taken[index], True) if index in taken else _target(live.get(spec.path), spec)
        for index, spec in enumerate(specs)
    ]
    tensors = [tensor for tensor, _ in targets]
    for indices in _messages(specs, taken=taken):
        content.receive([bytes_of(tensors[index].view(-1)) for index in indices])
    (expected,) = channel.receive_ints(_TAG_CHECK, 1)
    channel.send_ints(_TAG_CHECKED, content.checksum)
    if content.checksum != expected:
        raise StateCorruptError(f"state from rank {link.peer} arrived damaged: checksums differ")
    received = Transferred(
        nbytes=sum(spec.nbytes for spec in specs),
        checksum=expected,
        in_place=sum(reused for _, reused in targets),
        lent=sum(specs[index].nbytes for index in taken),
    )
    return decode(head.skeleton, tensors), received


@dataclass(frozen=True, slots=True)
class _Head:
    """What a sender says first: the tree, its tensors, and those that it lends, by index."""

    skeleton: Any
    specs: list[TensorSpec]
    checked: bool
    lent: dict[int, Loan]


def _receive_head(link: Link, channel: _Channel, *, first_timeout_s: float) -> _Head:
    """What the sender says first.

    Raises:
        StateCorruptError: It arrived damaged.
        ProtocolError: It does not parse.
    """
    size, checksum = channel.receive_ints(_TAG_SIZE, 2, timeout_s=first_timeout_s)
    if size > _HEAD_LIMIT_BYTES:
        raise StateCorruptError(f"rank {link.peer} describes its state in {size} bytes")
    data = bytearray(size)
    channel.receive(_TAG_HEAD, memoryview(data))
    if checksum_of(memoryview(data)) != checksum:
        link.shutdown()  # or the sender would wait until somebody takes the rest
        raise StateCorruptError(f"what rank {link.peer} says of its state arrived damaged")
    try:
        head = json.loads(data)
        specs = [TensorSpec.from_json(value) for value in head["tensors"]]
        lent = {int(index): loan for index, loan in head["lent"].items()}
        described = _Head(head["tree"], specs, bool(head["checked"]), lent)
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise ProtocolError(f"state description of rank {link.peer}: {error}") from error
    if not all(0 <= index < len(specs) for index in lent):
        raise ProtocolError(f"rank {link.peer} lends tensors {list(lent)} of {len(specs)}")
    return described


def _loans(tensors: Sequence[tuple[TensorSpec, torch.Tensor]]) -> dict[int, Loan]:
    """What is lent of ``tensors``, by index."""
    loans = {}
    for index, (spec, tensor) in enumerate(tensors):
        if spec.nbytes > _SMALL_BYTES and (loan := lend(tensor)) is not None:
            loans[index] = loan
    return loans


def _take_lent(
    head: _Head, channel: _Channel, content: _Bytes, *, live: Mapping[str, torch.Tensor]
) -> dict[int, torch.Tensor]:
    """Copy what the sender lends into live tensors of a GPU, and say which of it was taken.

    Returns:
        The live tensors, by index.
    """
    fitting = {
        index: target
        for index in head.lent
        if (target := live.get(head.specs[index].path)) is not None
        and not on_host(target)
        and _fits(target, head.specs[index])
    }
    try:
        done = take([(head.lent[index], target) for index, target in fitting.items()])
    except ValueError as error:
        raise ProtocolError(str(error)) from error
    taken = {index: target for (index, target), ok in zip(fitting.items(), done, strict=True) if ok}
    channel.send(_TAG_TAKEN, memoryview(bytes(index in taken for index in head.lent)))
    content.lent(taken.values())
    return taken


def _fits(live: torch.Tensor, spec: TensorSpec) -> bool:
    alike = live.dtype == spec.dtype and tuple(live.shape) == spec.shape
    return alike and live.is_contiguous()


def _target(live: torch.Tensor | None, spec: TensorSpec) -> tuple[torch.Tensor, bool]:
    if live is not None and _fits(live, spec) and on_host(live):
        return live, True
    return torch.empty(spec.shape, dtype=spec.dtype), False
