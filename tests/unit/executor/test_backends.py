"""What of torch.distributed would wait for ever is refused where a program asks for it."""

from __future__ import annotations

from datetime import timedelta
from types import SimpleNamespace

import pytest
import torch.distributed as dist
from torch import nn
from torch.distributed import distributed_c10d
from torch.distributed.algorithms.join import Join
from torch.nn.parallel import DistributedDataParallel

from trainmover.errors import ConfigError
from trainmover_executor.collectives.process_group import BACKEND
from trainmover_executor.worker.adapters.distributed import (
    refuse_backends,
    refuse_join,
    take_groups,
)


def test_a_group_of_another_backend_is_refused_with_what_to_do_instead():
    native = SimpleNamespace(ProcessGroupGloo=distributed_c10d.ProcessGroupGloo)
    refuse_backends(native)
    assert vars(native).keys() == {"ProcessGroupGloo"}
    assert issubclass(native.ProcessGroupGloo, distributed_c10d.ProcessGroupGloo)
    with pytest.raises(ConfigError, match=r"backend 'gloo'.*with init_process_group"):
        native.ProcessGroupGloo(dist.HashStore(), 0, 2)


def test_torch_makes_groups_by_the_names_that_are_refused(monkeypatch):
    native = SimpleNamespace(ProcessGroupGloo=distributed_c10d.ProcessGroupGloo)
    refuse_backends(native)
    monkeypatch.setattr(distributed_c10d, "ProcessGroupGloo", native.ProcessGroupGloo)
    with pytest.raises(ConfigError, match="backend 'gloo'"):
        dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=2)


OTHERS = ["gloo", "nccl", "cpu:gloo,cuda:nccl", dist.Backend("gloo")]


def _c10d(**functions):
    """A module whose functions do not call each other."""

    def init_process_group(*args, **options):
        """Nothing asks for it."""

    def new_group(*args, **options):
        """Nothing asks for it."""

    return SimpleNamespace(
        **{"init_process_group": init_process_group, "new_group": new_group, **functions}
    )


@pytest.fixture
def begun(monkeypatch):
    """Calls of torch's own ``init_process_group``, in rank 1 of 4; how programs call it."""
    calls = []

    def init_process_group(backend, *args, **options):
        calls.append((backend, args, options))

    monkeypatch.setenv("RANK", "1")
    monkeypatch.setenv("WORLD_SIZE", "4")
    public, meshes = SimpleNamespace(), SimpleNamespace()
    take_groups(_c10d(init_process_group=init_process_group), (public, meshes))
    assert public.init_process_group is meshes.init_process_group
    return calls, public.init_process_group


@pytest.mark.parametrize("asked", [None, *OTHERS])
def test_a_job_that_a_program_begins_with_another_backend_is_ours(begun, asked):
    """Each script that torchrun starts begins so, and it had to be changed for that."""
    calls, init_process_group = begun
    timeout = timedelta(minutes=10)
    init_process_group(asked, "tcp://10.0.0.1:29500", timeout, 4, 1, device_id="cuda:0")
    init_process_group(backend=asked, init_method="env://", pg_options="of that backend")
    for (backend, args, options), expected in zip(calls, (timeout, None), strict=True):
        assert (backend, args) == (BACKEND, ())
        assert isinstance(options.pop("store"), dist.HashStore)
        assert options == {"timeout": expected, "rank": 1, "world_size": 4}


@pytest.mark.parametrize(("name", "here"), [("rank", 1), ("world_size", 4)])
def test_a_job_of_another_shape_is_refused(begun, name, here):
    """SLURM_PROCID, say, is the number of a machine and not of a slot."""
    calls, init_process_group = begun
    with pytest.raises(ConfigError, match=rf"{name}=2\).*this process has {name} {here}\. Leave"):
        init_process_group("gloo", **{name: 2})
    assert calls == []


@pytest.mark.parametrize("own", [BACKEND, "fake"])
def test_a_job_of_this_backend_or_a_special_one_is_left_alone(begun, own):
    calls, init_process_group = begun
    init_process_group(own, store="given", rank=0, world_size=8)
    assert calls == [(own, (None, None, 8, 0), {"store": "given"})]


@pytest.mark.parametrize("asked", OTHERS)
def test_a_group_that_a_library_asks_of_another_backend_is_ours(asked):
    calls = []

    def new_group(*args, **options):
        calls.append((args, options))

    c10d = _c10d(new_group=new_group, get_backend=lambda: BACKEND)
    public = SimpleNamespace(new_group=new_group)
    take_groups(c10d, (public,))
    public.new_group([0, 1], None, asked, "options", group_desc="saves")
    c10d.new_group(backend=asked)
    c10d.new_group([1], backend="fake", pg_options="its own")
    assert calls == [
        (([0, 1], None, None, None), {"group_desc": "saves"}),
        ((None, None, None, None), {}),
        (([1], None, "fake", "its own"), {}),
    ]


def test_a_group_of_a_job_of_another_backend_is_left_alone():
    calls = []
    c10d = _c10d(new_group=lambda *args: calls.append(args), get_backend=lambda: "gloo")
    take_groups(c10d, ())
    c10d.new_group([0], backend="gloo")
    assert calls == [([0], None, "gloo", None)]


def test_ranks_that_take_other_numbers_of_steps_are_refused(monkeypatch):
    """The job hung: ranks without batches take no part in votes."""
    monkeypatch.setattr(Join, "__init__", Join.__init__)
    monkeypatch.setenv("MASTER_ADDR", "127.0.0.1")
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    try:
        model = DistributedDataParallel(nn.Linear(1, 1))
        refuse_join()
        with pytest.raises(ConfigError, match="as many batches"):
            Join([model])
        with pytest.raises(ConfigError, match="drop_last=True"):
            model.join()
        with model.join(enable=False):
            pass
    finally:
        dist.destroy_process_group()
