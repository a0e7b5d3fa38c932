"""What of ``torch.distributed`` would wait for ever in a job: other backends, and ``Join``.

Members of other backends meet in a store that all ranks share. There is none here, so they would
wait for each other until their timeout, half an hour; and a machine that comes in later could not
join them. So the groups that programs, guides and libraries ask for, of Gloo or NCCL, are
TrainMover's (ADR 68): these carry tensors of the host and of GPUs. One that is made in another
way is refused at once.

``Join`` has ranks that are out of batches follow what the others communicate; they take no steps
then, and the others wait for their votes.
"""

from __future__ import annotations

import functools
import os
from collections.abc import Callable
from types import ModuleType
from typing import Any, Final

import torch.distributed
from torch._C._distributed_c10d import HashStore
from torch.distributed import device_mesh, distributed_c10d
from torch.distributed.algorithms.join import Join

from trainmover.errors import ConfigError
from trainmover_executor.collectives.process_group import BACKEND

__all__ = ["refuse_backends", "refuse_join", "take_groups"]

_NATIVE: Final = {
    "ProcessGroupGloo": "gloo",
    "ProcessGroupMPI": "mpi",
    "ProcessGroupNCCL": "nccl",
    "ProcessGroupUCC": "ucc",
    "ProcessGroupXCCL": "xccl",
}


def take_groups(
    c10d: ModuleType = distributed_c10d,
    named_in: tuple[ModuleType, ...] = (torch.distributed, device_mesh),
) -> None:
    """Have torch make groups of TrainMover's backend where it is asked for those of another one.

    Args:
        c10d: Where ``init_process_group`` and ``new_group`` are.
        named_in: Where programs and torch find them.
    """
    taken = {"init_process_group": _take_job(c10d), "new_group": _take_further(c10d)}
    for module in (c10d, *named_in):
        vars(module).update(taken)


def _take_job(c10d: ModuleType) -> Callable[..., None]:
    original: Callable[..., None] = c10d.init_process_group

    @functools.wraps(original)
    def init_process_group(
        backend: Any = None,
        init_method: Any = None,
        timeout: Any = None,
        world_size: int = -1,
        rank: int = -1,
        *args: Any,
        **options: Any,
    ) -> None:
        if backend is not None and not _is_other(str(backend)):
            original(backend, init_method, timeout, world_size, rank, *args, **options)
            return
        # Where ranks meet, and options of a backend, are of no use to this one.
        given = {"rank": rank, "world_size": world_size}
        original(BACKEND, timeout=timeout, store=HashStore(), **_checked(given))

    return init_process_group


def _checked(given: dict[str, int]) -> dict[str, int]:
    """Rank and number of ranks as they are in this job, which those that are given must be."""
    here = {"rank": int(os.environ["RANK"]), "world_size": int(os.environ["WORLD_SIZE"])}
    for name, number in given.items():
        if number not in (-1, here[name]):
            raise ConfigError(
                f"the program calls init_process_group({name}={number}), and this process has "
                f"{name} {here[name]}. Leave out rank and world_size, or take them from the "
                "environment: RANK and WORLD_SIZE are set as torchrun sets them."
            )
    return here


def _take_further(c10d: ModuleType) -> Callable[..., Any]:
    original: Callable[..., Any] = c10d.new_group

    @functools.wraps(original)
    def new_group(
        ranks: Any = None,
        timeout: Any = None,
        backend: Any = None,
        pg_options: Any = None,
        *args: Any,
        **options: Any,
    ) -> Any:
        if backend is not None and _is_other(str(backend)) and c10d.get_backend() == BACKEND:
            backend = pg_options = None  # such options are of that backend
        return original(ranks, timeout, backend, pg_options, *args, **options)

    return new_group


def _is_other(backend: str) -> bool:
    """Whether all that ``backend`` names, for devices each perhaps (``cpu:gloo``), are others."""
    names = {each.rpartition(":")[2].strip().lower() for each in backend.split(",")}
    return names <= {*_NATIVE.values()}


def refuse_backends(c10d: ModuleType = distributed_c10d) -> None:
    """Have this process raise a ``ConfigError`` where it would make a group of another backend.

    Torch makes them by these names; what is made by other means (``TRAINMOVER_COMMUNICATOR``) is
    not touched.
    """
    for name, backend in _NATIVE.items():
        if (native := getattr(c10d, name, None)) is not None:
            setattr(c10d, name, _refused(native, backend))


def refuse_join() -> None:
    """Have this process raise a ``ConfigError`` where it would let ranks take other steps."""
    original = Join.__init__

    def refuse(
        join: Join, joinables: list[Any], enable: bool = True, *args: Any, **options: Any
    ) -> None:
        if enable:
            raise ConfigError(
                "torch.distributed.algorithms.Join lets ranks with fewer batches take fewer steps, "
                "and all ranks of a job take every step together. Give every rank as many batches: "
                "shard the data with DistributedSampler, drop the rest (drop_last=True), or end "
                "all ranks by session.steps(..., max_steps=N)."
            )
        original(join, joinables, enable, *args, **options)

    Join.__init__ = refuse  # type: ignore[assignment, method-assign] # also of DistributedDataParallel.join()


def _refused(native: Any, backend: str) -> type:
    def refuse(*_: Any, **__: Any) -> None:
        raise ConfigError(
            f"this program makes a group of torch.distributed's backend {backend!r}, whose members "
            "could not be exchanged. Make groups with init_process_group(...) and new_group(...): "
            "they are TrainMover's, and carry tensors of the host and of GPUs."
        )

    # Still a class, because torch asks of groups whether they are one of its instances.
    return type(native.__name__, (native,), {"__init__": refuse, "create": staticmethod(refuse)})
