"""Which ranks hold the same state, and hence where a crashed rank's state survives."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.tensor import DTensor, Replicate
from torch.nn.parallel import DistributedDataParallel

from trainmover.errors import ConfigError
from trainmover.job.redundancy import Redundancy, RedundancyChoice
from trainmover.job.topology import Layout

__all__ = ["redundancy_of", "replicas_of"]


def replicas_of(
    models: Sequence[nn.Module], optimizers: Iterable[torch.optim.Optimizer], *, rank: int
) -> tuple[int, ...]:
    """Global ranks, ``rank`` included, that hold bitwise the same model and optimizer state.

    Known from the wrappers: the process group of DistributedDataParallel, and for DTensors the
    ranks along replicated mesh dimensions. Nothing is assumed of parameters that are trained
    without a wrapper: two pipeline stages may look alike and differ, and so may the heads of two
    ranks over a body that they share.
    """
    if _trained_alone(models, optimizers):
        return (rank,)
    common: set[int] | None = None
    for model in models:
        for holders in (*_ddp_holders(model), *_dtensor_holders(model)):
            common = holders if common is None else common & holders
    return tuple(sorted((common or set()) | {rank}))


def redundancy_of(
    choice: RedundancyChoice,
    *,
    rank: int,
    replicas: Iterable[int],
    layout: Layout,
    obstacle: str,
    log_obstacle: str,
) -> tuple[Redundancy, str]:
    """Where the state of ``rank`` is to survive its machine.

    Args:
        choice: What was asked for.
        rank: Global rank.
        replicas: Ranks that hold the same state.
        layout: Shape of the job.
        obstacle: Why the state cannot be followed; empty when it can.
        log_obstacle: Why steps since a snapshot of it cannot be taken again; empty when they can.

    Returns:
        The kind, and why it is no better one; empty when it is as asked.

    Raises:
        ConfigError: What was asked for is impossible.
    """
    elsewhere = {layout.slot_of(one) for one in replicas} - {layout.slot_of(rank)}
    if layout.slots == 1:
        obstacle = log_obstacle = "the job has one machine"
    if choice == "replica" and not elsewhere:
        raise ConfigError(
            f"--redundancy replica: no other machine holds the state of rank {rank}. Use data "
            "parallelism or hybrid sharding across machines, or --redundancy follower."
        )
    if choice == "follower" and obstacle:
        instead = "checkpoint, and save checkpoints" if log_obstacle else "snapshot"
        raise ConfigError(
            f"--redundancy follower: the state of rank {rank} cannot be followed: {obstacle}. "
            f"Use --redundancy {instead}."
        )
    if choice == "snapshot" and log_obstacle:
        raise ConfigError(
            f"--redundancy snapshot: steps of rank {rank} cannot be taken again: {log_obstacle}. "
            "Use --redundancy checkpoint, and save checkpoints."
        )
    if choice == "replica" or (choice == "auto" and elsewhere):
        return "replica", ""
    if choice == "follower" or (choice == "auto" and not obstacle):
        return "follower", ""
    if choice == "snapshot" or (choice == "auto" and not log_obstacle):
        return "snapshot", obstacle
    return "checkpoint", log_obstacle


def _trained_alone(
    models: Sequence[nn.Module], optimizers: Iterable[torch.optim.Optimizer]
) -> bool:
    """Whether an optimizer trains a parameter that no wrapper knows."""
    modules = [module for model in models for module in model.modules()]
    wrapped = {
        id(parameter)
        for module in modules
        if isinstance(module, DistributedDataParallel)
        for parameter in module.parameters()
    }
    return any(
        id(parameter) not in wrapped and not isinstance(parameter, DTensor)
        for optimizer in optimizers
        for group in optimizer.param_groups
        for parameter in group["params"]
    )


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
