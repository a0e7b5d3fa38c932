"""What of ``torch.distributed`` would wait for ever in a job: other backends, and ``Join``.

Members of other backends meet in a store that all ranks share. There is none here, so they would
wait for each other until their timeout, half an hour; and a machine that comes in later could not
join them. A job that is begun with one is refused at once. The groups of other backends that guides
and libraries make besides, of Gloo's for what is on the host, are TrainMover's: these carry tensors
of the host and of GPUs.

``Join`` has ranks that are out of batches follow what the others communicate; they take no steps
then, and the others wait for their votes.
"""

from __future__ import annotations

import functools
from types import ModuleType
from typing import Any, Final

import torch.distributed
from torch.distributed import distributed_c10d
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
    c10d: ModuleType = distributed_c10d, public: ModuleType = torch.distributed
) -> None:
    """Have ``new_group``, and what calls it, make groups of the backend that the job has.

    Args:
        c10d: Where it is.
        public: Where programs find it.
    """
    original = c10d.new_group

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

    c10d.new_group = public.new_group = new_group  # type: ignore[attr-defined]


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
            f"this program asks torch.distributed for a group of backend {backend!r}, whose "
            "members could not be exchanged. In place of init_process_group(...) use "
            "Session.init(): groups of TrainMover carry tensors of the host and of GPUs."
        )

    # Still a class, because torch asks of groups whether they are one of its instances.
    return type(native.__name__, (native,), {"__init__": refuse, "create": staticmethod(refuse)})
