"""PyTorch's own c10d tests, one after the other, over the group that TrainMover made.

Called with a file of names and a folder; each rank writes what came of each test there.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import traceback
import unittest
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

LIMIT_S = 60


def one(kind: type, name: str, rank: int) -> str:
    """What came of a test: "passed", why it was skipped, or a traceback."""
    test = kind("runTest")
    test.rank = rank
    test.file_name = os.environ["INIT_METHOD_FILE"]
    # Gates of backends are around it. They ask for Gloo by name, which is what we offer.
    method = getattr(kind, name)
    while hasattr(method, "__wrapped__"):
        method = method.__wrapped__
    torch.manual_seed(1234)
    signal.alarm(LIMIT_S)
    try:
        method(test)
        dist.barrier()
    except (unittest.SkipTest, SystemExit) as skipped:
        return f"skipped: {skipped}"
    except BaseException:  # noqa: BLE001 - whatever it is, it is this test's result
        return traceback.format_exc()
    finally:
        signal.alarm(0)
    return "passed"


def late(*_: Any) -> None:
    raise TimeoutError(f"not done in {LIMIT_S} s")


def main() -> None:
    names, folder = Path(sys.argv[1]).read_text().split(), Path(sys.argv[2])
    dist.init_process_group("trainmover")
    rank, world = dist.get_rank(), dist.get_world_size()
    for part in ("barrier", "test_dir", "init_dir"):
        (folder / part).mkdir(exist_ok=True)
    os.environ |= {
        "BACKEND": "gloo",
        "TEMP_DIR": str(folder),
        "INIT_METHOD_FILE": str(folder / "init_dir" / "shared"),
        "WORLD_SIZE": str(world),
        "RANK": str(rank),
    }
    signal.signal(signal.SIGALRM, late)
    # They read the environment when they are imported.
    from torch.testing._internal.common_utils import TestCase
    from torch.testing._internal.distributed import distributed_test

    base = distributed_test.DistributedTest._DistTestBase
    kind = type("Tests", (base, TestCase), {"world_size": world, "runTest": lambda self: None})
    results: dict[str, str] = {}
    for name in names:
        results[name] = one(kind, name, rank)
        (folder / f"{rank}.json").write_text(json.dumps(results))
        if results[name] != "passed":
            os._exit(1)  # the others are somewhere else in it by now
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
