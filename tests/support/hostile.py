"""Facts that parse and that no honest machine says: valid ones with fields swapped for extremes."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from typing import Any

from hypothesis import strategies as st
from pydantic import ValidationError

from trainmover.events import executor, incident, machine
from trainmover.job.topology import Frozen, Machine

__all__ = ["facts"]

EXTREMES: tuple[Any, ...] = (
    *(-1, 0, 1, 2, 3, 5, 7, 2**20, 2**31 - 1, 2**32 - 1, 2**63 - 1, 10**30),
    *(-1e300, 0.0, 1e300),
    *("", "w-0", "w-1", "w-4", "m-0001", "i-1", "x" * 3000, "a/b:1\n"),
    *(None, True, [], {}, [0], [[0, 1]], {"0": []}, {"-1": ["h:1"]}, {"99": ["h:1"]}),
    {"0": ["h:1", "h:2"]},
    [{"first": 0, "last": 2**31 - 1, "step": 1}],
    [{"first": 5, "last": 0, "step": 1}],
    list(range(200)),
)


def honest() -> list[Frozen]:
    """One of each, as machines of a job of four slots with one rank each say them."""
    at = {"machine": "w-1", "rank": 1, "epoch": 1}
    plan = {**at, "migration": "m-0001"}
    return [
        machine.MachineRegistered(
            machine=Machine(name="w-7", generation=0, endpoints=("w-7:1",)),
            nnodes_min=4,
            nnodes_max=6,
            pid=1,
            host="h",
        ),
        machine.MachineWarming(machine="w-4", generation=0, endpoints={0: ("w-4:1",)}),
        machine.MachineReady(machine="w-4", generation=0, slot=0, shadow_iterations=3, warm_s=1.0),
        machine.WorkerExited(**at, generation=0, exit_code=1, signal=None, last_words="KeyError"),
        machine.LinkLost(**at, peer_rank=2, peer_machine="w-2", step=3, kind="reset"),
        machine.MachineNoticed(machine="w-1", kind="maintenance", leaves_in_s=60.0),
        executor.JobLayoutKnown(machine="w-1", rank=1, alike=executor.Span.of(range(4))),
        executor.StateFollowed(machine="w-2", rank=1, follower=2, epoch=1),
        executor.PlanPrepared(**plan, prepare_s=0.1),
        executor.PlanSwitched(**plan, step=3, phases_s={"links": 0.1}),
        executor.PlanCommitted(**plan, step=3),
        executor.PlanFailed(**plan, reason="no", step_safe=True),
        executor.StepBroken(**at, committed_step=3, reason="reset"),
        executor.StepProgress(**at, step=3, step_s=0.1),
        executor.StepResumed(
            **at, step=3, pause_s=0.1, step_s=0.1, steps_redone=1, migration="m-0001"
        ),
        executor.CheckpointSaved(**at, step=3, path="/x"),
        executor.WorkerFinished(**at, step=3),
        incident.IncidentClosed(id="i-1", reason="over"),
    ]


def places(value: Any, way: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Every place in a JSON document."""
    if way:
        yield way
    if isinstance(value, dict):
        for key, inner in value.items():
            yield from places(inner, (*way, key))
    elif isinstance(value, list):
        for index, inner in enumerate(value):
            yield from places(inner, (*way, index))


@st.composite
def facts(draw: st.DrawFn) -> Frozen:
    """A fact that parses, with up to three of its fields swapped."""
    payload = draw(st.sampled_from(honest()))
    document = payload.model_dump(mode="json")
    for _ in range(draw(st.integers(0, 3))):
        changed = copy.deepcopy(document)
        *way, last = draw(st.sampled_from(list(places(changed))))
        inner: Any = changed
        for step in way:
            inner = inner[step]
        inner[last] = draw(st.sampled_from(EXTREMES))
        try:
            payload = type(payload).model_validate(changed)
        except ValidationError:
            continue  # the bus makes a dead letter of it
        document = changed
    return payload
