"""Views of tensors as flat elements and raw bytes; what lives on a device is staged on the host.

Links carry host memory. A CUDA tensor is copied into a pinned buffer (of torch's caching host
allocator), worked on there, and copied back: several ranks may share one GPU, and the order in
which values are added is the one of the CPU path, so the bits are too.
"""

from __future__ import annotations

import collections
import operator
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import torch

from trainmover_executor.links.exchange import PIECE_BYTES

__all__ = [
    "PieceBuffer",
    "Scratch",
    "bits_of",
    "bytes_of",
    "fence",
    "flat_of",
    "on_devices_of",
    "on_host",
    "without_history",
    "words_on_device",
    "write_back",
]


_WORD_BYTES: Final = 8


def on_host(tensor: torch.Tensor) -> bool:
    """Whether links can read and write the memory of ``tensor``."""
    return tensor.device.type == "cpu"


def on_devices_of(like: Any, value: Any) -> Any:
    """``value``, with tensors on the devices on which those are that ``like`` has in their places.

    What has come from another rank is on the host.

    Args:
        like: Nested dicts, lists and tuples.
        value: The same, perhaps with other things in it.
    """
    if isinstance(value, torch.Tensor) and isinstance(like, torch.Tensor):
        return value if on_host(like) else value.to(like.device)
    if isinstance(value, Mapping) and isinstance(like, Mapping):
        moved = {key: on_devices_of(like.get(key), each) for key, each in value.items()}
        return moved if any(moved[key] is not value[key] for key in moved) else value
    if type(value) in {list, tuple} and type(like) is type(value) and len(like) == len(value):
        items = list(map(on_devices_of, like, value))
        return type(value)(items) if any(map(operator.is_not, items, value)) else value
    return value


def without_history(value: Any) -> Any:
    """``value``, with its tensors apart from the graphs that made them, which no copy can have.

    Args:
        value: Nested dicts, lists and tuples; those that hold no such tensor are the same objects.
    """
    if isinstance(value, torch.Tensor):
        return value if value.is_leaf else value.detach()
    if type(value) in {dict, collections.OrderedDict}:
        freed = {key: without_history(each) for key, each in value.items()}
        is_same = all(freed[key] is each for key, each in value.items())
        return value if is_same else type(value)(freed)
    if type(value) in {list, tuple}:
        items = list(map(without_history, value))
        return value if all(map(operator.is_, items, value)) else type(value)(items)
    return value


def fence(tensors: Sequence[torch.Tensor]) -> Callable[[], None] | None:
    """Marks what the current CUDA stream was asked to do so far.

    Returns:
        Waits until that is done, from any thread; None where all of ``tensors`` are on the host.
    """
    devices = {tensor.device for tensor in tensors if not on_host(tensor)}
    events = []
    for device in devices:
        event = torch.cuda.Event()  # type: ignore[no-untyped-call]
        event.record(torch.cuda.current_stream(device))
        events.append(event)
    return partial(_wait_for, events) if events else None


def _wait_for(events: Sequence[torch.cuda.Event]) -> None:
    for event in events:
        event.synchronize()


def flat_of(tensor: torch.Tensor) -> torch.Tensor:
    """``tensor`` as one dimension on the host: a view where it can be one, else a copy."""
    plain = tensor.detach()
    if not on_host(plain):
        staged = torch.empty(plain.numel(), dtype=plain.dtype, pin_memory=torch.cuda.is_available())
        staged.view(plain.shape).copy_(plain)  # waits: the bytes are read next
        return staged
    return _in_a_row(plain if plain.is_contiguous() else plain.contiguous())


def _in_a_row(tensor: torch.Tensor) -> torch.Tensor:
    """A contiguous tensor as one dimension; of one element, expand() leaves it a stride of 0."""
    return tensor.as_strided((tensor.numel(),), (1,))


def bits_of(tensor: torch.Tensor) -> torch.Tensor:
    """The bytes of a tensor as one dimension, on its device: a view where it can be one."""
    return _in_a_row(tensor.detach().contiguous()).view(torch.uint8)


def write_back(tensor: torch.Tensor, flat: torch.Tensor) -> None:
    """Copy ``flat`` into ``tensor`` where ``flat_of`` had to make a copy."""
    plain = tensor.detach()
    if not (on_host(plain) and plain.is_contiguous()):
        plain.copy_(flat.view(plain.shape))


def bytes_of(flat: torch.Tensor) -> memoryview:
    """The bytes of a flat contiguous tensor, writable, without a copy."""
    if flat.numel() == 0:
        return memoryview(bytearray())
    raw: npt.NDArray[np.uint8] = flat.view(torch.uint8).numpy()
    return raw.data


def words_on_device(tensor: torch.Tensor) -> torch.Tensor | None:
    """The 64-bit words of ``tensor``, flat, for a device to add up; None where it must be staged.

    Integers wrap on a GPU as they do on the host, so a sum has the same bits, in any order.
    """
    plain = tensor.detach()
    if on_host(plain) or not plain.is_contiguous() or plain.nbytes % _WORD_BYTES:
        return None
    raw = plain.view(-1).view(torch.uint8)
    return None if raw.storage_offset() % _WORD_BYTES else raw.view(torch.int64)


class PieceBuffer:
    """The one piece of memory that a communicator receives into before it reduces."""

    __slots__ = ("_bytes",)

    def __init__(self) -> None:
        self._bytes = bytes_of(torch.empty(PIECE_BYTES, dtype=torch.uint8))

    @property
    def bytes(self) -> memoryview:
        """All of it as bytes."""
        return self._bytes


class Scratch:
    """Memory that is kept for the next time; it grows to the largest tensor it was asked for."""

    __slots__ = ("_bytes",)

    def __init__(self) -> None:
        self._bytes = torch.empty(0, dtype=torch.uint8)

    def like(self, flat: torch.Tensor, *, times: int = 1) -> torch.Tensor:
        """A flat tensor of the type and device of ``flat``, ``times`` as long; any content."""
        size = times * flat.numel() * flat.element_size()
        if self._bytes.numel() < size or self._bytes.device != flat.device:
            self._bytes = torch.empty(size, dtype=torch.uint8, device=flat.device)
        return self._bytes[:size].view(flat.dtype)
