"""Memory of a GPU that a process on the same host reads by itself, without a copy through the host.

CUDA lets a process export an allocation as a handle of 64 bytes, which another process maps (CUDA
driver API, "Memory Management": cuIpcGetMemHandle, cuIpcOpenMemHandle). The giver of a state lends
its tensors; the receiver copies them from GPU memory to GPU memory and gives them back by saying
so. What cannot be lent, or not be mapped, goes over the link: expandable segments, another host,
containers that do not share a process namespace.
"""

from __future__ import annotations

import ctypes
import functools
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, Final

import torch

from trainmover_executor.state.packing.memory import on_host

__all__ = ["Loan", "lend", "settle", "take"]

_HANDLE_BYTES: Final = 64
_LAZY_PEER_ACCESS: Final = 1

Loan = dict[str, Any]
"""What the receiver maps: ``handle`` of the allocation in hexadecimal, ``offset`` in it, bytes."""


class _Handle(ctypes.Structure):
    _fields_ = (("reserved", ctypes.c_byte * _HANDLE_BYTES),)


class _NotSharedError(Exception):
    """The driver does not map this memory between processes."""


def lend(tensor: torch.Tensor) -> Loan | None:
    """Offer the memory of ``tensor``; None where it cannot be offered.

    The tensor has to stay as it is until the receiver has answered.
    """
    if on_host(tensor) or not tensor.is_contiguous():
        return None
    base, size, handle = ctypes.c_uint64(), ctypes.c_size_t(), _Handle()
    address = ctypes.c_uint64(tensor.data_ptr())
    try:
        with torch.cuda.device(tensor.device):
            _call("cuMemGetAddressRange_v2", ctypes.byref(base), ctypes.byref(size), address)
            _call("cuIpcGetMemHandle", ctypes.byref(handle), base)
    except _NotSharedError:
        return None
    return {"handle": bytes(handle).hex(), "offset": tensor.data_ptr() - base.value}


def take(loans: Sequence[tuple[Loan, torch.Tensor]]) -> list[bool]:
    """Copy what was lent into tensors of the same size, and give it back.

    Args:
        loans: What ``lend`` returned at the other process, and where it goes: contiguous memory of
            a GPU.

    Returns:
        Which of them were copied; the others could not be mapped.

    Raises:
        ValueError: A loan does not parse.
    """
    taken = []
    with _Mapped() as mapped:
        for loan, tensor in loans:
            source = mapped.address_of(loan, tensor.device)
            taken.append(source is not None and _copied(tensor, source))
        settle(tensor for _, tensor in loans)
    return taken


def settle(tensors: Iterable[torch.Tensor]) -> None:
    """Wait until the devices of ``tensors`` have done what they were asked to.

    Another process reads what is there, and knows nothing of this one's streams.
    """
    for device in {tensor.device for tensor in tensors if not on_host(tensor)}:
        torch.cuda.synchronize(device)


class _Mapped:
    """Allocations of another process while they are mapped here; each one once."""

    def __init__(self) -> None:
        self._bases: dict[bytes, tuple[torch.device, int] | None] = {}

    def __enter__(self) -> _Mapped:
        return self

    def __exit__(self, *_: object) -> None:
        for found in self._bases.values():
            if found is not None:
                device, base = found
                with torch.cuda.device(device), _ignoring_errors():
                    _call("cuIpcCloseMemHandle", ctypes.c_uint64(base))

    def address_of(self, loan: Mapping[str, Any], device: torch.device) -> int | None:
        """Where the lent memory is in this process; None where it cannot be mapped."""
        try:
            handle, offset = bytes.fromhex(loan["handle"]), int(loan["offset"])
        except (KeyError, TypeError) as error:
            raise ValueError(f"a loan of GPU memory: {error!r}") from error
        if len(handle) != _HANDLE_BYTES or offset < 0:
            raise ValueError(f"a loan of GPU memory has {len(handle)} bytes, offset {offset}")
        if handle not in self._bases:
            self._bases[handle] = self._open(handle, device)
        found = self._bases[handle]
        return None if found is None else found[1] + offset

    @staticmethod
    def _open(handle: bytes, device: torch.device) -> tuple[torch.device, int] | None:
        base, whole = ctypes.c_uint64(), _Handle.from_buffer_copy(handle)
        try:
            with torch.cuda.device(device):
                _call("cuIpcOpenMemHandle_v2", ctypes.byref(base), whole, _LAZY_PEER_ACCESS)
        except _NotSharedError:
            return None
        return device, base.value


def _copied(tensor: torch.Tensor, source: int) -> bool:
    target, nbytes = ctypes.c_uint64(tensor.data_ptr()), ctypes.c_size_t(tensor.nbytes)
    try:
        with torch.cuda.device(tensor.device):
            _call("cuMemcpyDtoD_v2", target, ctypes.c_uint64(source), nbytes)
    except _NotSharedError:
        return False
    return True


@contextmanager
def _ignoring_errors() -> Iterator[None]:
    try:
        yield
    except _NotSharedError:  # the giver is gone, and its memory with it
        return


@functools.cache
def _driver() -> Any:
    try:
        return ctypes.CDLL("libcuda.so.1")
    except OSError as error:
        raise _NotSharedError(str(error)) from error


def _call(name: str, *arguments: Any) -> None:
    """Call the driver in the context that torch has made current.

    Raises:
        _NotSharedError: It returned an error.
    """
    torch.cuda.current_stream().query()  # a thread gets the context with its first call of CUDA
    if (status := getattr(_driver(), name)(*arguments)) != 0:
        raise _NotSharedError(f"{name} returned {status}")
