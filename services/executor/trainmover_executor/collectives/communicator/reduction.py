"""Reduce operations on flat tensors, and what an average needs at the end."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, Final

import torch
from torch.distributed import ReduceOp

from trainmover_executor.collectives.communicator.checks import CollectiveError

__all__ = ["Reduction", "reduction_of"]


class Reduction:
    """How pieces combine.

    Attributes:
        name: Name of the operation.
        combine: In-place ``accumulator, piece -> None``; commutative, so that both partners of an
            exchange get the same bits.
        averages: Whether the sum is divided by the group's size at the end.
        chooses: Whether the result is one of the inputs. Of zeros of both signs torch chooses by
            where in a vector they stand, so they come out positive.
        factor: What every rank's contribution is multiplied with before (``PREMUL_SUM``).
    """

    __slots__ = ("averages", "chooses", "combine", "factor", "name")

    def __init__(
        self,
        name: str,
        combine: Callable[[torch.Tensor, torch.Tensor], Any],
        *,
        averages: bool = False,
        chooses: bool = False,
        factor: float | torch.Tensor | None = None,
    ) -> None:
        self.name = name
        self.combine = combine
        self.averages = averages
        self.chooses = chooses
        self.factor = factor

    def check(self, op: str, tensor: torch.Tensor) -> None:
        """Refuse a type that cannot be combined like this.

        Raises:
            CollectiveError: This operation has no meaning for it, or torch cannot do it.
        """
        dtype = tensor.dtype
        scales = self.factor is None or dtype.is_floating_point or dtype.is_complex
        if not (scales and _combines(self.name, dtype)):
            what = "premul_sum" if self.factor is not None else self.name
            raise CollectiveError(
                f"{op}: {dtype} cannot be reduced by {what}. Convert the tensor, or use another "
                "reduce operation."
            )

    def prepare(self, contribution: torch.Tensor) -> None:
        """Turn this rank's input into what is combined, in place."""
        if self.factor is not None:
            contribution.mul_(self.factor)

    def finish(self, total: torch.Tensor, *, size: int) -> None:
        """Turn the combined value into the result, in place."""
        if self.chooses and total.is_floating_point():
            total.add_(0.0)
        if not self.averages:
            return
        if total.is_floating_point() or total.is_complex():
            total.div_(size)
        else:
            total.div_(size, rounding_mode="trunc")


def _add(accumulator: torch.Tensor, piece: torch.Tensor) -> None:
    if accumulator.dtype == torch.bool:
        accumulator.logical_or_(piece)
    else:
        accumulator.add_(piece)


def _minimum(accumulator: torch.Tensor, piece: torch.Tensor) -> None:
    torch.minimum(accumulator, piece, out=accumulator)


def _maximum(accumulator: torch.Tensor, piece: torch.Tensor) -> None:
    torch.maximum(accumulator, piece, out=accumulator)


_KNOWN: Final = {
    ReduceOp.SUM: Reduction("sum", _add),
    ReduceOp.AVG: Reduction("avg", _add, averages=True),
    ReduceOp.MIN: Reduction("min", _minimum, chooses=True),
    ReduceOp.MAX: Reduction("max", _maximum, chooses=True),
    ReduceOp.PRODUCT: Reduction("product", torch.Tensor.mul_),
    ReduceOp.BAND: Reduction("band", torch.Tensor.bitwise_and_),
    ReduceOp.BOR: Reduction("bor", torch.Tensor.bitwise_or_),
    ReduceOp.BXOR: Reduction("bxor", torch.Tensor.bitwise_xor_),
}


_BY_NAME: Final = {reduction.name: reduction for reduction in _KNOWN.values()}


@functools.cache
def _combines(name: str, dtype: torch.dtype) -> bool:
    """Whether torch can do it with ``dtype``: tried, as it has no list of that."""
    reduction = _BY_NAME[name]
    try:
        tried = torch.zeros(1, dtype=torch.uint8).repeat(dtype.itemsize).view(dtype)
        reduction.combine(tried, tried.clone())
        reduction.finish(tried, size=2)
    except (NotImplementedError, RuntimeError, TypeError):
        return False
    return True


def reduction_of(op: ReduceOp | ReduceOp.RedOpType) -> Reduction:
    """The reduction for torch's ``op``.

    Raises:
        CollectiveError: The operation is not supported.
    """
    if op == ReduceOp.PREMUL_SUM:
        # torch hands the factor out by no other way than pickling's.
        state: Any = op.__getstate__()
        return Reduction("sum", _add, factor=state[1])
    for known, reduction in _KNOWN.items():
        if op == known:
            return reduction
    raise CollectiveError(
        f"reduce operation {op} is not supported by the trainmover backend; "
        f"use one of {', '.join(r.name for r in _KNOWN.values())}"
    )
