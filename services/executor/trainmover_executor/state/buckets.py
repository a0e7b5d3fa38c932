"""Buckets of DistributedDataParallel: settled before training, alike at all ranks and joiners.

DDP lays its buckets anew after the first backward pass that communicates, in the order in which
gradients came. A model that is trained every fifth step only, or whose first passes are under
``no_sync``, does that late: a joiner whose shadow iterations had no such pass would send other
buckets than the others. So one backward pass with gradients of zero is run when the session is
made, and the next forward pass finds the buckets laid, wherever the program goes.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel

__all__ = ["settle_buckets"]


def settle_buckets(models: Sequence[nn.Module]) -> None:
    """Have each DDP module of ``models`` lay its buckets; all ranks call this at the same place.

    A module is left alone where a backward pass does more than bring gradients: hooks on its
    parameters may take optimizer steps. So is one whose buckets depend on the first real pass
    (``static_graph``) or are never laid anew (``find_unused_parameters``, or sparse gradients).
    """
    for module in [module for model in models for module in model.modules()]:
        if isinstance(module, DistributedDataParallel) and not _is_left_alone(module):
            _lay(module)


def _is_left_alone(ddp: DistributedDataParallel) -> bool:
    if ddp.static_graph or ddp.find_unused_parameters or ddp._has_rebuilt_buckets:  # noqa: SLF001
        return True
    # By which DDP itself decides.
    sparse = ddp._build_params_for_reducer()[1]  # type: ignore[no-untyped-call] # noqa: SLF001
    return any(sparse) or any(
        parameter._backward_hooks or parameter._post_accumulate_grad_hooks  # noqa: SLF001
        for parameter in ddp.module.parameters()
    )


def _lay(ddp: DistributedDataParallel) -> None:
    ignored = ddp.parameters_to_ignore
    parameters = [
        parameter
        for name, parameter in ddp.module.named_parameters()
        if parameter.requires_grad and name not in ignored
    ]
    had = [parameter.grad for parameter in parameters]
    for parameter in parameters:
        parameter.grad = None
    ddp.reducer.prepare_for_backward([])
    # The last of them is reached first, as in the backward pass of a model.
    ends = [parameter.view_as(parameter) for parameter in parameters]
    torch.autograd.backward(ends, [torch.zeros_like(end) for end in ends])
    if ddp.reducer._rebuild_buckets():  # noqa: SLF001 - what DDP's own forward pass calls
        ddp._has_rebuilt_buckets = True  # noqa: SLF001
    for parameter, gradient in zip(parameters, had, strict=True):
        parameter.grad = gradient
