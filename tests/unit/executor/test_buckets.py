"""DDP's buckets are settled when a session is made, and training does not notice."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from trainmover_executor.state.buckets import settle_buckets


@pytest.fixture(autouse=True)
def _alone() -> Iterator[None]:
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    yield
    dist.destroy_process_group()


def build(**options: bool) -> DistributedDataParallel:
    torch.manual_seed(1)
    layers = nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 2))
    return DistributedDataParallel(layers, **options)


def trained(model: DistributedDataParallel) -> list[torch.Tensor]:
    optimizer = torch.optim.AdamW(model.parameters(), 0.1)
    for step in range(4):
        numbers = torch.randn(6, 4, generator=torch.Generator().manual_seed(step))
        optimizer.zero_grad()
        model(numbers).pow(2).sum().backward()
        optimizer.step()
    return [tensor.clone() for tensor in model.state_dict().values()]


def is_settled(model: DistributedDataParallel) -> bool:
    return bool(model._has_rebuilt_buckets)


@pytest.mark.parametrize("views", [False, True])
def test_buckets_are_laid_before_the_first_step_and_change_no_bit(views: bool) -> None:
    settled, plain = build(gradient_as_bucket_view=views), build(gradient_as_bucket_view=views)
    settle_buckets([nn.ModuleList([settled])])
    assert is_settled(settled)
    assert not is_settled(plain)
    assert all(parameter.grad is None for parameter in settled.parameters())
    assert all(map(torch.equal, trained(settled), trained(plain)))


def test_buckets_that_the_first_real_pass_decides_are_left_alone() -> None:
    static, unused = build(static_graph=True), build(find_unused_parameters=True)
    settle_buckets([static, unused])
    assert not is_settled(static)
    assert not is_settled(unused)


def test_sparse_gradients_are_left_alone() -> None:
    model = DistributedDataParallel(nn.Embedding(4, 3, sparse=True))
    settle_buckets([model])
    assert not is_settled(model)


def test_a_hook_that_would_take_a_step_is_not_called() -> None:
    model, called = build(), list[torch.Tensor]()
    first = next(model.module.parameters())
    first.register_post_accumulate_grad_hook(called.append)
    settle_buckets([model])
    assert not called
    assert not is_settled(model)


def test_gradients_that_were_there_stay() -> None:
    model = build()
    first = next(model.module.parameters())
    first.grad = torch.full_like(first, 3.0)
    settle_buckets([model])
    assert first.grad.unique().tolist() == [3.0]
