"""What ``LightningModule.log`` has collected, as a portable tree."""

from __future__ import annotations

from typing import Any, Final

import torch
from lightning.pytorch.trainer.connectors.logger_connector.result import (
    _Metadata,
    _ResultCollection,
    _ResultMetric,
    _Sync,
)
from torch import nn
from torchmetrics import Metric

from trainmover.errors import ConfigError

__all__ = ["load_results", "results_tree"]

_META: Final = (
    *("fx", "name", "prog_bar", "logger", "on_step", "on_epoch", "enable_graph"),
    *("add_dataloader_idx", "dataloader_idx", "metric_attribute"),
)
_VALUES: Final = ("value", "cumulated_batch_size", "_forward_cache", "_computed")


def results_tree(results: _ResultCollection) -> dict[str, Any]:
    """What is logged, by the key that Lightning gives it.

    Raises:
        ConfigError: What was logged is a metric that the LightningModule does not have.
    """
    return {
        "dataloader_idx": results.dataloader_idx,
        "logged": {key: _tree(one) for key, one in results.items()},
    }


def load_results(
    results: _ResultCollection, tree: dict[str, Any], *, module: nn.Module, reduce: Any
) -> None:
    """Have ``results`` hold what ``results_tree`` returned here or elsewhere.

    Args:
        results: Lightning's, of one loop.
        tree: What was logged.
        module: The LightningModule, which has the metrics that were logged as such.
        reduce: Combines values of all ranks.
    """
    results.dataloader_idx = tree["dataloader_idx"]
    # An aborted body or evaluation left its batch here.
    results.batch = results.batch_size = None
    logged = tree["logged"]
    for key in results.keys() - logged.keys():
        del results[key]
    for key, one in logged.items():
        if key not in results:
            results[key] = _made(one, reduce)
        _load(results[key], one, module)


def _tree(one: _ResultMetric) -> dict[str, Any]:
    meta = one.meta
    if not one.is_tensor and meta.metric_attribute is None:
        raise ConfigError(
            f"self.log({meta.name!r}, ...) was given a metric that is no attribute of the "
            "LightningModule, and a joiner would not find it: keep it as one, self.metric = ..."
        )
    return {
        "meta": {name: getattr(meta, name) for name in _META},
        "reduce_fx": meta.reduce_fx.__name__,
        "sync": [meta.sync.should, meta.sync.rank_zero_only, meta.sync.op],
        "is_tensor": one.is_tensor,
        "has_reset": one.has_reset,
        "updates": one._update_count,  # noqa: SLF001 - torchmetrics has no public name
        "values": {
            name: value.detach().clone() if isinstance(value, torch.Tensor) else value
            for name in _VALUES
            if not isinstance(value := getattr(one, name, None), Metric)
        },
    }


def _made(tree: dict[str, Any], reduce: Any) -> _ResultMetric:
    meta = _Metadata(**tree["meta"], reduce_fx=getattr(torch, tree["reduce_fx"]))
    should, rank_zero_only, op = tree["sync"]
    meta.sync = _Sync(_should=should, fn=reduce, _op=op, rank_zero_only=rank_zero_only)
    return _ResultMetric(meta, tree["is_tensor"])


def _load(one: _ResultMetric, tree: dict[str, Any], module: nn.Module) -> None:
    one.has_reset = tree["has_reset"]
    one._update_count = tree["updates"]  # noqa: SLF001 - torchmetrics has no public name
    for name, value in tree["values"].items():
        if name == "cumulated_batch_size" and value is None:
            continue  # of what is no mean
        setattr(one, name, value.clone() if isinstance(value, torch.Tensor) else value)
    if not one.is_tensor:
        one.value = module.get_submodule(tree["meta"]["metric_attribute"])
