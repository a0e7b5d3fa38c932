"""Small training programs, one for each way to parallelise; run by tests on real ranks."""

from __future__ import annotations

import argparse
import random
import time
from collections.abc import Iterator
from pathlib import Path

import halfway
import numpy as np
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.pipelining import PipelineStage, Schedule1F1B
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    RowwiseParallel,
    parallelize_module,
)
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, Dataset, DistributedSampler

from trainmover import Session
from trainmover_executor.state.packing.shards import local_of

WIDTH = 16


class Noise(Dataset):
    """Deterministic items."""

    def __len__(self) -> int:
        return 96

    def __getitem__(self, index: int) -> torch.Tensor:
        return torch.randn(WIDTH, generator=torch.Generator().manual_seed(index))


class Stream:
    """Endless batches from Python's and numpy's global generators: the session must carry them."""

    def __init__(self, rank: int) -> None:
        random.seed(rank)
        np.random.seed(rank)

    def __iter__(self) -> Iterator[torch.Tensor]:
        while True:
            seed = random.randrange(2**31) ^ int(np.random.randint(2**31))
            yield torch.randn(8, WIDTH, generator=torch.Generator().manual_seed(seed))


def mlp(*, batch_norm: bool = False) -> nn.Sequential:
    torch.manual_seed(0)
    middle = nn.BatchNorm1d(32) if batch_norm else nn.Identity()
    return nn.Sequential(
        nn.Linear(WIDTH, 32), middle, nn.ReLU(), nn.Dropout(0.1), nn.Linear(32, WIDTH)
    )


def build(workload: str, world: int) -> tuple[nn.Module, torch.optim.Optimizer]:
    if workload in {"ddp", "loader", "batchnorm", "adafactor", "clamped"}:
        model: nn.Module = DistributedDataParallel(mlp(batch_norm=workload == "batchnorm"))
        if workload == "adafactor":
            return model, torch.optim.Adafactor(model.parameters(), 1e-2)
        return model, torch.optim.AdamW(model.parameters(), 1e-2)
    model = mlp()
    if workload.startswith("fsdp2"):
        mesh = init_device_mesh("cpu", (world,))
    else:
        both = init_device_mesh("cpu", (world // 2, 2), mesh_dim_names=("dp", "tp"))
        parallelize_module(model, both["tp"], {"0": ColwiseParallel(), "4": RowwiseParallel()})
        mesh = both["dp"]
    for layer in (model[0], model[4]):
        fully_shard(layer, mesh=mesh)
    fully_shard(model, mesh=mesh)
    return model, torch.optim.AdamW(model.parameters(), 1e-2, foreach=workload == "fsdp2")


class Pipeline:
    """1F1B over all ranks; the first stage has the input, the last one the target."""

    def __init__(self, rank: int, world: int) -> None:
        torch.manual_seed(rank)
        self.layers = nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.Dropout(0.1), nn.Tanh())
        stage = PipelineStage(self.layers, rank, world, torch.device("cpu"), group=dist.group.WORLD)
        self._schedule = Schedule1F1B(stage, 4, loss_fn=lambda y, t: (y - t).pow(2).mean())
        self._first, self._last = rank == 0, rank == world - 1

    def step(self, batch: torch.Tensor) -> torch.Tensor:
        """Forward and backward; the loss, 0 on all stages but the last."""
        losses: list[torch.Tensor] = []
        if self._first:
            self._schedule.step(batch)
        elif self._last:
            self._schedule.step(target=batch, losses=losses)
        else:
            self._schedule.step()
        return torch.stack(losses).mean() if losses else torch.zeros(())


def wait_at(gate: Path, rank: int, *, held: bool) -> None:
    """Say that this rank is there, and wait until the test opens the gate if it is ``held``."""
    gate.with_suffix(f".{rank}").touch()
    while held and not gate.exists():
        time.sleep(0.005)


@torch.no_grad()
def clamp(model: nn.Module) -> None:
    """Change parameters behind the optimizer's back."""
    for parameter in model.parameters():
        local_of(parameter).clamp_(-0.05, 0.05)


def parse() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser()
    parser.add_argument("workload")
    parser.add_argument("--steps", type=int, default=30)
    parser.add_argument("--epochs", type=int, default=None)
    parser.add_argument("--loader-workers", type=int, default=0)
    parser.add_argument("--hold-at", type=int, default=-1)
    parser.add_argument("--hold-rank", type=int, help="only this rank; every rank when omitted")
    parser.add_argument("--gate", type=Path, help="file that opens the gate at step --hold-at")
    parser.add_argument("--pace", type=float, default=0.0, help="seconds a step takes at least")
    parser.add_argument("--then-hold-at", type=int, default=-1)
    parser.add_argument("--then-gate", type=Path, help="file that opens the second gate")
    return parser.parse_args()


def main() -> None:
    options = parse()
    gates = {options.hold_at: options.gate, options.then_hold_at: options.then_gate}
    torch.set_num_threads(1)
    dist.init_process_group("trainmover")
    rank, world = dist.get_rank(), dist.get_world_size()
    pipeline = Pipeline(rank, world) if options.workload.startswith("pp") else None
    if pipeline is not None:
        model: nn.Module = pipeline.layers
        kind = torch.optim.Adafactor if "adafactor" in options.workload else torch.optim.AdamW
        optimizer: torch.optim.Optimizer = kind(model.parameters(), 1e-2)
    else:
        model, optimizer = build(options.workload, world)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, step_size=7, gamma=0.5)
    torch.manual_seed(100 + rank)
    data: object = Stream(rank // 2 if options.workload == "tp_fsdp2" else rank)
    if pipeline is not None:
        data = Stream(0)
    if options.workload == "tp_fsdp2":
        torch.manual_seed(100 + rank // 2)
    if options.workload == "loader":
        dataset = Noise()
        sampler = DistributedSampler(dataset, num_replicas=world, rank=rank, seed=3)
        data = DataLoader(
            dataset, batch_size=4, sampler=sampler, num_workers=options.loader_workers
        )

    halfway.install()
    session = Session(model=model, optimizer=optimizer, scheduler=scheduler)
    for step in session.steps(data, epochs=options.epochs, max_steps=options.steps):
        with step as batch:
            gate = None if session.is_shadow else gates.get(step.index)
            if gate is not None:
                wait_at(gate, rank, held=options.hold_rank in {None, rank})
            if not session.is_shadow:
                time.sleep(options.pace)
            optimizer.zero_grad()
            if pipeline is not None:
                loss = pipeline.step(batch)
            else:
                loss = (model(batch) - batch).pow(2).mean()
                loss.backward()
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            scheduler.step()
            if options.workload.endswith("clamped"):
                clamp(model)
            session.log(loss=loss)


if __name__ == "__main__":
    main()
