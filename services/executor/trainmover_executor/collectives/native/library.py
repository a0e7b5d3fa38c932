"""Gloo and NCCL, as far as they differ: how a group is made and broken, and whose memory it takes.

A communication thread works on a stream of its own, and is done when that stream is: an operation
is complete when its ``Work`` is, whatever carried it.
"""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Iterator, Sequence
from datetime import timedelta
from typing import Any, Final

import torch
from torch._C import _distributed_c10d as c10d

from trainmover.errors import ConfigError
from trainmover_executor.state.packing.memory import flat_of, on_host, write_back

__all__ = ["Gloo", "Library", "Nccl"]

Flats = tuple[list[torch.Tensor], list[torch.Tensor]]

_GUARDS: Final = (
    "TORCH_NCCL_ASYNC_ERROR_HANDLING",
    "TORCH_NCCL_ENABLE_MONITORING",
    "TORCH_NCCL_DUMP_ON_TIMEOUT",
)
"""Threads of torch that end the process when a peer is gone, which is survived here, or that ask
the store, which is gone, for what another rank wants."""


class Gloo:
    """Collectives in host memory."""

    name: Final = "gloo"

    def build(self, store: c10d.Store, *, rank: int, size: int, timeout_s: float) -> Any:
        """A group whose members meet in ``store``; returns when all are connected."""
        return c10d.ProcessGroupGloo(store, rank, size, timedelta(seconds=timeout_s))

    def abort(self, group: Any) -> None:
        """Nothing but to forget it, which closes its connections: that ends what peers wait for."""

    def carries(self, tensor: torch.Tensor) -> bool:  # noqa: ARG002 - any: what is not there is staged
        """Whether it takes a tensor on this device."""
        return True

    @contextlib.contextmanager
    def flats(
        self, outs: Sequence[torch.Tensor], ins: Sequence[torch.Tensor] = ()
    ) -> Iterator[Flats]:
        """Tensors as one dimension where the library can work on them.

        Args:
            outs: What is written; copied back at the end where a copy had to be made.
            ins: What is only read.
        """
        flats = [flat_of(out) for out in outs]
        yield flats, [flat_of(one) for one in ins]
        for out, flat in zip(outs, flats, strict=True):
            write_back(out, flat)


class _OfThread(threading.local):
    """What each communication thread has for itself."""

    def __init__(self) -> None:
        self.streams: dict[torch.device, torch.cuda.Stream] = {}


class Nccl:
    """Collectives in the memory of GPUs.

    Raises:
        ConfigError: This torch was built without NCCL.
    """

    name: Final = "nccl"

    def __init__(self) -> None:
        if not hasattr(c10d, "ProcessGroupNCCL"):
            raise ConfigError(
                "this torch was built without NCCL. Install a CUDA build of torch, or leave "
                "TRAINMOVER_COMMUNICATOR at 'link', which carries tensors of a GPU too."
            )
        for name in _GUARDS:
            os.environ.setdefault(name, "0")
        self._mine = _OfThread()

    def build(self, store: c10d.Store, *, rank: int, size: int, timeout_s: float) -> Any:
        """A group whose members meet in ``store``; returns when all are connected.

        On the current device. It connects at once, for messages between two as well, which would
        otherwise take a second communicator with memory and kernels of its own; the first
        operations make it wait for that.
        """
        options = c10d.ProcessGroupNCCL.Options()
        options._timeout = timedelta(seconds=timeout_s)  # noqa: SLF001 - the one name it has
        group: Any = c10d.ProcessGroupNCCL(store, rank, size, options)
        device = torch.device("cuda", torch.cuda.current_device())
        group.bound_device_id = device
        group.eager_connect_single_device(device)
        token = torch.zeros(1, device=device)
        group.allreduce([token], c10d.AllreduceOptions()).wait()
        if size == 2:
            work = group.send([token], 1, 0) if rank == 0 else group.recv([token], 0, 0)
            work.wait()
        torch.cuda.current_stream().synchronize()
        return group

    def abort(self, group: Any) -> None:
        """End what runs on it, from any thread, and do not wait for that.

        To end one communicator frees memory, which waits for all kernels of the device: those of
        the others spin until they are ended, too.
        """
        threading.Thread(target=_abort, args=(group,), name="nccl-abort", daemon=True).start()

    def carries(self, tensor: torch.Tensor) -> bool:
        """Whether it takes a tensor on this device."""
        return not on_host(tensor)

    @contextlib.contextmanager
    def flats(
        self, outs: Sequence[torch.Tensor], ins: Sequence[torch.Tensor] = ()
    ) -> Iterator[Flats]:
        """See ``Gloo.flats``. On this thread's stream; returns when the device is done."""
        stream = self._stream((outs or ins)[0].device)
        with torch.cuda.stream(stream):
            flats = [out.detach().contiguous().view(-1) for out in outs]
            yield flats, [one.detach().contiguous().view(-1) for one in ins]
            for out, flat in zip(outs, flats, strict=True):
                if not out.is_contiguous():
                    out.detach().copy_(flat.view(out.shape))
            stream.synchronize()

    def _stream(self, device: torch.device) -> torch.cuda.Stream:
        streams = self._mine.streams
        if device not in streams:
            streams[device] = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
        return streams[device]


def _abort(group: Any) -> None:
    with contextlib.suppress(RuntimeError):  # it is broken: that is why it is ended
        group.abort()


Library = Gloo | Nccl
