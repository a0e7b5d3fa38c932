"""Imported before the programs of ``tests/programs``: as they stand, they train on a GPU then.

Models go to the GPU when they are wrapped, batches when they are drawn. A program that mixes in
other tensors of the host does not run like that, and its test is skipped.
"""

from __future__ import annotations

from functools import wraps
from typing import Any

import torch
from torch.nn.parallel import DistributedDataParallel
from torch.utils._pytree import tree_map_only

from trainmover_executor.feed.batches.kept import KeptBatch

_wrap = DistributedDataParallel.__init__
_keep = KeptBatch.__init__


@wraps(_wrap)
def _wrap_on_device(self: Any, module: Any, *arguments: Any, **options: Any) -> None:
    torch.use_deterministic_algorithms(True, warn_only=True)
    _wrap(self, module.cuda(), *arguments, **options)


@wraps(_keep)
def _keep_on_device(self: KeptBatch, batch: Any, **options: Any) -> None:
    _keep(self, tree_map_only(torch.Tensor, torch.Tensor.cuda, batch), **options)


DistributedDataParallel.__init__ = _wrap_on_device  # type: ignore[method-assign]
KeptBatch.__init__ = _keep_on_device  # type: ignore[method-assign]
