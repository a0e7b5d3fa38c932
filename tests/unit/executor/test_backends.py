"""Groups that could not be moved are refused where torch would make them."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch.distributed as dist
from torch.distributed import distributed_c10d

from trainmover.errors import ConfigError
from trainmover_executor.worker.adapters.refuse_backends import refuse_others


def test_a_group_of_another_backend_is_refused_with_what_to_do_instead():
    native = SimpleNamespace(ProcessGroupGloo=distributed_c10d.ProcessGroupGloo)
    refuse_others(native)
    assert vars(native).keys() == {"ProcessGroupGloo"}
    assert issubclass(native.ProcessGroupGloo, distributed_c10d.ProcessGroupGloo)
    with pytest.raises(ConfigError, match=r"backend 'gloo'.*Session\.init\(\)"):
        native.ProcessGroupGloo(dist.HashStore(), 0, 2)


def test_torch_makes_groups_by_the_names_that_are_refused(monkeypatch):
    native = SimpleNamespace(ProcessGroupGloo=distributed_c10d.ProcessGroupGloo)
    refuse_others(native)
    monkeypatch.setattr(distributed_c10d, "ProcessGroupGloo", native.ProcessGroupGloo)
    with pytest.raises(ConfigError, match="backend 'gloo'"):
        dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=2)
