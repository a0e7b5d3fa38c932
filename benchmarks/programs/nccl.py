"""What NCCL takes where several ranks share one GPU: pairs, their memory, an abort.

Started by ``benchmarks.gpu`` once for each rank, without TrainMover. With NCCL from 2.30 on and
``NCCL_MULTI_RANK_GPU_ENABLE=1``, several ranks may share a GPU.
"""

from __future__ import annotations

import argparse
import ctypes
import json
import os
import select
import signal
import threading
import time
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
from torch._C import _distributed_c10d as c10d


def group_of(store: c10d.Store, rank: int, size: int) -> Any:
    options = c10d.ProcessGroupNCCL.Options()
    options._timeout = timedelta(seconds=60)
    group = c10d.ProcessGroupNCCL(store, rank, size, options)
    token = torch.ones(1, device="cuda")
    group.allreduce([token], c10d.AllreduceOptions()).wait()
    torch.cuda.synchronize()
    assert token.item() == size
    return group


def eager_pair(store: c10d.Store, rank: int) -> Any:
    """A pair that connects at once, and sends messages over the same communicator."""
    options = c10d.ProcessGroupNCCL.Options()
    options._timeout = timedelta(seconds=60)
    group = c10d.ProcessGroupNCCL(store, rank, 2, options)
    device = torch.device("cuda", torch.cuda.current_device())
    group.bound_device_id = device
    group.eager_connect_single_device(device)
    message(group, rank)
    return group


def message(group: Any, rank: int) -> None:
    token = torch.ones(1, device="cuda")
    work = group.send([token], 1, 0) if rank == 0 else group.recv([token], 0, 0)
    work.wait()
    torch.cuda.synchronize()


def free() -> int:
    return torch.cuda.mem_get_info()[0]


def abort_s(group: Any) -> float:
    """Wait for a rank that is dead, and end that from another thread; seconds that it takes."""
    waits = threading.Event()

    def wait() -> None:
        token = torch.ones(1 << 20, device="cuda")
        work = group.allreduce([token], c10d.AllreduceOptions())
        waits.set()
        try:
            work.wait()
            torch.cuda.current_stream().synchronize()
        except RuntimeError as error:
            print("the operation raised", str(error)[:200], flush=True)

    thread = threading.Thread(target=wait)
    thread.start()
    waits.wait()
    began = time.perf_counter()
    group.abort()
    thread.join()
    return time.perf_counter() - began


def await_death(pid: int) -> None:
    """Return when a process that is no child of this one is gone."""
    poll = select.poll()
    poll.register(os.pidfd_open(pid), select.POLLIN)
    poll.poll()


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--rank", type=int, required=True)
    parser.add_argument("--ranks", type=int, required=True)
    parser.add_argument("--pairs", type=int, default=4)
    parser.add_argument("--folder", type=Path, required=True)
    options = parser.parse_args()
    rank, ranks = options.rank, options.ranks
    result: dict[str, Any] = {}
    files = c10d.FileStore(str(options.folder / "store"), ranks)
    torch.cuda.set_device(0)
    torch.ones(1, device="cuda")
    number = ctypes.c_int()
    ctypes.CDLL("libnccl.so.2").ncclGetVersion(ctypes.byref(number))
    result["version"] = number.value
    before = free()
    began = time.perf_counter()
    groups = [group_of(c10d.PrefixStore("whole", files), rank, ranks)]
    result["whole_s"] = time.perf_counter() - began
    result["whole_bytes"] = before - free()
    if rank < 2:
        pairs = []
        before = free()
        for index in range(options.pairs):
            began = time.perf_counter()
            groups.append(group_of(c10d.PrefixStore(f"pair{index}", files), rank, 2))
            pairs.append(time.perf_counter() - began)
        result["pairs_s"] = pairs
        result["pair_bytes"] = (before - free()) / options.pairs
        before, began = free(), time.perf_counter()
        message(groups[1], rank)
        result["first_message_s"] = time.perf_counter() - began
        result["first_message_bytes"] = before - free()
        before, began = free(), time.perf_counter()
        try:
            groups.append(eager_pair(c10d.PrefixStore("eager", files), rank))
            result["eager_pair_s"] = time.perf_counter() - began
            result["eager_pair_bytes"] = before - free()
        except (RuntimeError, AttributeError, TypeError) as error:
            result["eager_failed"] = repr(error)[:300]
    write = options.folder / f"nccl-{rank}.json"
    write.write_text(json.dumps(result))
    if rank == 1:
        files.set("dies", str(os.getpid()))
        os.kill(os.getpid(), signal.SIGKILL)
    if rank == 0:
        await_death(int(files.get("dies")))
        result["abort_s"] = abort_s(groups[1])
        write.write_text(json.dumps(result))
    os._exit(0)  # the group of all has a dead member: to end in order would wait for it


if __name__ == "__main__":
    main()
