"""The sum over ranks of sparse tensors, by gathering what is in them."""

from __future__ import annotations

import torch

from trainmover_executor.collectives.communicator.base import Communicator

__all__ = ["allreduce_sparse"]


def allreduce_sparse(communicator: Communicator, tensor: torch.Tensor, *, size: int) -> None:
    """``tensor`` becomes the sum over ranks, coalesced.

    Summed in the order of ranks, as Gloo does it, so the bits are the same at all of them.

    Args:
        communicator: What carries it.
        tensor: Sparse COO.
        size: Number of ranks.
    """
    mine = tensor.detach().coalesce()
    counts = [torch.zeros(1, dtype=torch.int64) for _ in range(size)]
    communicator.all_gather(counts, torch.tensor([mine._nnz()]))  # noqa: SLF001 - it has no other name
    lengths = [int(count) for count in counts]
    # Padded, because not every communicator gathers tensors of different sizes.
    longest = max(*lengths, mine._nnz())  # noqa: SLF001
    indices = _gathered(communicator, mine.indices().t(), longest, size=size)
    values = _gathered(communicator, mine.values(), longest, size=size)
    total = torch.sparse_coo_tensor(
        torch.cat([part[:n].t() for part, n in zip(indices, lengths, strict=True)], dim=1),
        torch.cat([part[:n] for part, n in zip(values, lengths, strict=True)]),
        tensor.shape,
    )
    with torch.no_grad():  # not on a detached one: what is sparse is exchanged, not overwritten
        tensor.copy_(total.coalesce())


def _gathered(
    communicator: Communicator, rows: torch.Tensor, longest: int, *, size: int
) -> list[torch.Tensor]:
    padded = rows.new_zeros((longest, *rows.shape[1:]))
    padded[: len(rows)] = rows
    parts = [torch.empty_like(padded) for _ in range(size)]
    communicator.all_gather(parts, padded)
    return parts
