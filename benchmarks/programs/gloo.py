"""A plain Gloo group beside the group under test, in the same processes."""

from __future__ import annotations

from datetime import timedelta

import torch
import torch.distributed as dist
from torch._C import _distributed_c10d as c10d


def gloo_group() -> dist.ProcessGroup:
    """A Gloo group of all ranks; the port of its store travels over the group under test."""
    rank, world = dist.get_rank(), dist.get_world_size()
    port = torch.zeros(1, dtype=torch.int64)
    store = None
    if rank == 0:
        store = c10d.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
        port[0] = store.port
    dist.broadcast(port, 0)
    store = store or c10d.TCPStore("127.0.0.1", int(port.item()), is_master=False)
    backend = c10d.ProcessGroupGloo(store, rank, world, timedelta(seconds=60))
    backend._set_sequence_number_for_group()
    group = dist.ProcessGroup(store, rank, world)
    group._set_default_backend(dist.ProcessGroup.BackendType.GLOO)
    group._register_backend(torch.device("cpu"), dist.ProcessGroup.BackendType.GLOO, backend)
    return group
