"""Which ranks hold the same state: where a crashed rank's state survives."""

from __future__ import annotations

from collections.abc import Iterable

import torch.distributed as dist
from torch import nn
from torch.distributed.tensor import DTensor, Replicate
from torch.nn.parallel import DistributedDataParallel

__all__ = ["replicas_of"]


def replicas_of(models: Iterable[nn.Module], *, rank: int) -> tuple[int, ...]:
    """Global ranks, ``rank`` included, that hold bitwise the same model and optimizer state.

    Known from the wrappers: the process group of DistributedDataParallel, and for DTensors the
    ranks along replicated mesh dimensions. Nothing is assumed of a model without a wrapper: two
    pipeline stages may look alike and differ.
    """
    common: set[int] | None = None
    for model in models:
        for holders in (*_ddp_holders(model), *_dtensor_holders(model)):
            common = holders if common is None else common & holders
    return tuple(sorted((common or set()) | {rank}))


def _ddp_holders(model: nn.Module) -> Iterable[set[int]]:
    for module in model.modules():
        if isinstance(module, DistributedDataParallel):
            yield set(dist.get_process_group_ranks(module.process_group))


def _dtensor_holders(model: nn.Module) -> Iterable[set[int]]:
    for parameter in model.parameters():
        if not isinstance(parameter, DTensor):
            continue
        mesh = parameter.device_mesh
        coordinate = mesh.get_coordinate()
        if coordinate is None:
            continue
        index = tuple(
            slice(None) if isinstance(placement, Replicate) else at
            for placement, at in zip(parameter.placements, coordinate, strict=True)
        )
        yield {int(holder) for holder in mesh.mesh[index].reshape(-1).tolist()}
