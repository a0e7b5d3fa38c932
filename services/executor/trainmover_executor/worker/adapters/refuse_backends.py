"""Other backends of ``torch.distributed`` are refused at once.

Their members meet in a store that all ranks share. There is none here, so they would wait for each
other until their timeout, half an hour; and a machine that comes in later could not join them.
"""

from __future__ import annotations

from types import ModuleType
from typing import Any, Final

from torch.distributed import distributed_c10d

from trainmover.errors import ConfigError

__all__ = ["refuse_others"]

_NATIVE: Final = {
    "ProcessGroupGloo": "gloo",
    "ProcessGroupMPI": "mpi",
    "ProcessGroupNCCL": "nccl",
    "ProcessGroupUCC": "ucc",
    "ProcessGroupXCCL": "xccl",
}


def refuse_others(c10d: ModuleType = distributed_c10d) -> None:
    """Have this process raise a ``ConfigError`` where it would make a group of another backend.

    Torch makes them by these names; what is made by other means (``TRAINMOVER_COMMUNICATOR``) is
    not touched.
    """
    for name, backend in _NATIVE.items():
        if (native := getattr(c10d, name, None)) is not None:
            setattr(c10d, name, _refused(native, backend))


def _refused(native: Any, backend: str) -> type:
    def refuse(*_: Any, **__: Any) -> None:
        raise ConfigError(
            f"this program asks torch.distributed for a group of backend {backend!r}, whose "
            "members could not be exchanged. In place of init_process_group(...) use "
            "Session.init(), and leave out backend= in new_group(): groups of TrainMover carry "
            "tensors of the host and of GPUs."
        )

    # Still a class, because torch asks of groups whether they are one of its instances.
    return type(native.__name__, (native,), {"__init__": refuse, "create": staticmethod(refuse)})
