"""What is wrong with the arguments of a collective, said before anything is sent.

An operation that fails on its way leaves ranks behind that wait for an answer; an operation that is
refused here leaves everything as it was.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import torch

from trainmover.errors import ProtocolError

__all__ = [
    "CollectiveError",
    "check_contiguous",
    "check_dense",
    "check_even",
    "check_part",
    "check_parts",
    "check_splits",
    "check_tag",
]

_TAG_LIMIT: Final = 1 << 32


class CollectiveError(ProtocolError, ValueError):
    """A collective was called with something that it cannot do."""


def check_dense(op: str, *tensors: torch.Tensor) -> None:
    """Refuse sparse tensors.

    Raises:
        CollectiveError: One is not dense.
    """
    for tensor in tensors:
        if tensor.layout is not torch.strided:
            raise CollectiveError(
                f"{op} takes dense tensors, this one is {tensor.layout}: use to_dense() first. "
                "Sparse COO tensors can be summed by all_reduce."
            )


def check_part(op: str, part: torch.Tensor, whole: torch.Tensor, *, parts: int) -> None:
    """Refuse a part that is not one of ``parts`` equal ones of ``whole``.

    Raises:
        CollectiveError: Types or sizes do not fit.
    """
    check_dense(op, part, whole)
    _check_dtypes(op, part, whole)
    if part.numel() * parts != whole.numel():
        raise CollectiveError(
            f"{op} among {parts} ranks: a tensor of {tuple(whole.shape)} does not consist of "
            f"{parts} of {tuple(part.shape)}"
        )


def check_parts(
    op: str,
    parts: Sequence[torch.Tensor],
    tensor: torch.Tensor,
    *,
    size: int,
    rank: int | None = None,
) -> None:
    """Refuse a list that has not one tensor for each rank, of the size of ``tensor``.

    Args:
        op: The operation.
        parts: The list.
        tensor: What goes into it, or comes out of it.
        size: Number of ranks.
        rank: The only one whose size is known here; None where all are alike.

    Raises:
        CollectiveError: Length, types or sizes do not fit.
    """
    if len(parts) != size:
        raise CollectiveError(f"{op} among {size} ranks: the list has {len(parts)} tensors")
    check_dense(op, tensor, *parts)
    _check_dtypes(op, tensor, *parts)
    for index, part in enumerate(parts):
        if rank in {None, index} and part.numel() != tensor.numel():
            raise CollectiveError(
                f"{op}: tensor {index} of the list is of shape {tuple(part.shape)}, "
                f"and {tuple(tensor.shape)} belongs to it"
            )


def check_splits(op: str, tensor: torch.Tensor, splits: Sequence[int], *, size: int) -> None:
    """Refuse numbers of rows that are not one for each rank.

    Raises:
        CollectiveError: The tensor cannot be split like that.
    """
    check_dense(op, tensor)
    rows = tensor.shape[0] if tensor.dim() else 0
    if len(splits) != size or sum(splits) != rows or min(splits) < 0:
        raise CollectiveError(
            f"{op}: sizes {list(splits)} do not split {rows} rows among {size} ranks"
        )


def check_even(op: str, tensor: torch.Tensor, *, size: int) -> None:
    """Refuse a tensor that cannot be cut in equal parts.

    Raises:
        CollectiveError: Its elements are not the same number for each rank.
    """
    check_dense(op, tensor)
    if tensor.numel() % size:
        raise CollectiveError(
            f"{op}: the elements of {tuple(tensor.shape)} are not the same number for each of "
            f"{size} ranks: say how many rows each gets (input_split_sizes, output_split_sizes)"
        )


def check_contiguous(op: str, out: torch.Tensor) -> None:
    """Refuse an output whose parts would be copies.

    Raises:
        CollectiveError: It is not contiguous.
    """
    if not out.is_contiguous():
        raise CollectiveError(f"{op}: the output is not contiguous; give it one that is")


def check_tag(op: str, tag: int) -> None:
    """Refuse a tag that no message can carry.

    Raises:
        CollectiveError: It is negative, or too large.
    """
    if not 0 <= tag < _TAG_LIMIT:
        raise CollectiveError(f"{op}: tag {tag} is not between 0 and {_TAG_LIMIT - 1}")


def _check_dtypes(op: str, tensor: torch.Tensor, *others: torch.Tensor) -> None:
    for other in others:
        if other.dtype != tensor.dtype:
            raise CollectiveError(f"{op}: {tensor.dtype} and {other.dtype} do not go together")
