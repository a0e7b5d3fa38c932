"""The recorder of process groups of PyTorch 2.15 and later is off: it would end programs."""

from __future__ import annotations

import os

import pytest

from trainmover.job.topology import Layout, Member, Membership
from trainmover_executor.messages.worker import WorkerSpec
from trainmover_executor.worker import main


def spec() -> WorkerSpec:
    member = Member(machine="m", generation=0, endpoints=("127.0.0.1:1",))
    return WorkerSpec(
        job="demo",
        machine="m",
        generation=0,
        rank=0,
        local_rank=0,
        role="active",
        membership=Membership(epoch=1, layout=Layout(slots=1), members=(member,)),
        control="",
        listen_fd=-1,
        clock_fd=-1,
        endpoint=member.endpoints[0],
        program=("none",),
    )


@pytest.mark.parametrize(("records", "left"), [(True, "0"), (False, "2000")])
def test_it_is_off_where_torch_would_attach_it(
    monkeypatch: pytest.MonkeyPatch, records: bool, left: str
) -> None:
    monkeypatch.setattr(os, "environ", {"TORCH_FR_BUFFER_SIZE": "2000"})
    name = "_maybe_attach_flight_recorder"
    if records:
        monkeypatch.setattr(main.distributed_c10d, name, lambda *_: None, raising=False)
    else:
        monkeypatch.delattr(main.distributed_c10d, name, raising=False)
    main._set_environment(spec())
    assert os.environ["TORCH_FR_BUFFER_SIZE"] == left
    assert os.environ["RANK"] == "0"
