"""Uses what torch offers on a process group, and writes what came out."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.pipelining import PipelineStage, Schedule1F1B


def pipeline(rank: int, world: int) -> list[str]:
    """1F1B over all ranks: losses of the last stage, bit for bit."""
    torch.manual_seed(rank)
    layers = nn.Sequential(nn.Linear(16, 16), nn.Tanh())
    stage = PipelineStage(layers, rank, world, torch.device("cpu"), group=dist.group.WORLD)
    schedule = Schedule1F1B(stage, 4, loss_fn=lambda y, t: (y - t).pow(2).mean())
    optimizer = torch.optim.AdamW(layers.parameters(), 1e-2)
    losses: list[torch.Tensor] = []
    for step in range(4):
        x = torch.randn(8, 16, generator=torch.Generator().manual_seed(step))
        optimizer.zero_grad()
        if rank == 0:
            schedule.step(x)
        elif rank == world - 1:
            schedule.step(target=x, losses=losses)
        else:
            schedule.step()
        optimizer.step()
    return [loss.item().hex() for loss in losses]


def collectives(rank: int, world: int) -> dict[str, object]:
    seen: dict[str, object] = {}
    objects: list[object] = [None] * world
    dist.all_gather_object(objects, {"rank": rank})
    seen["all_gather_object"] = objects
    shared = [{"from": rank}] if rank == 1 else [None]
    dist.broadcast_object_list(shared, src=1)
    seen["broadcast_object_list"] = shared

    values = torch.arange(float(world)) + 10 * rank
    exchanged = torch.empty(world)
    dist.all_to_all_single(exchanged, values)
    seen["all_to_all_single"] = exchanged.tolist()
    scattered = torch.empty(2)
    dist.reduce_scatter_tensor(scattered, torch.arange(2.0 * world) * (rank + 1))
    seen["reduce_scatter_tensor"] = scattered.tolist()
    gathered = torch.empty(2 * world)
    dist.all_gather_into_tensor(gathered, scattered)
    seen["all_gather_into_tensor"] = gathered.tolist()
    lists = [torch.empty(3) for _ in range(world)]
    dist.all_gather(lists, torch.full((3,), float(rank)))
    seen["all_gather"] = [tensor.tolist() for tensor in lists]
    total = torch.full((3,), float(rank))
    dist.reduce(total, dst=2)
    seen["reduce"] = total.tolist() if rank == 2 else None
    piece = torch.empty(2)
    dist.scatter(piece, [torch.full((2,), float(i)) for i in range(world)] if rank == 0 else None)
    seen["scatter"] = piece.tolist()
    pieces = [torch.empty(2) for _ in range(world)] if rank == 3 else None
    dist.gather(piece, pieces, dst=3)
    seen["gather"] = [tensor.tolist() for tensor in pieces or []]

    pair = dist.new_group([0, 2])
    mine = torch.tensor([rank, rank], dtype=torch.int64)
    if rank in (0, 2):
        dist.all_reduce(mine, op=dist.ReduceOp.MAX, group=pair)
    seen["new_group"] = mine.tolist()
    average = torch.full((2,), float(rank))
    work = dist.all_reduce(average, op=dist.ReduceOp.AVG, async_op=True)
    work.wait()
    seen["async all_reduce"] = [average.tolist(), work.is_completed()]
    requests = dist.batch_isend_irecv(
        [
            dist.P2POp(dist.isend, torch.full((4,), float(rank)), (rank + 1) % world),
            dist.P2POp(dist.irecv, received := torch.empty(4), (rank - 1) % world),
        ]
    )
    for request in requests:
        request.wait()
    seen["batch_isend_irecv"] = received.tolist()
    dist.barrier()
    return seen


def main() -> None:
    torch.set_num_threads(1)
    dist.init_process_group("trainmover")
    rank, world = dist.get_rank(), dist.get_world_size()
    results = {"pipeline": pipeline(rank, world), **collectives(rank, world)}
    Path(sys.argv[1], f"{rank}.json").write_text(json.dumps(results))
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
