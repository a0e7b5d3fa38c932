"""What a split of the analysis between agents and detector costs, and which one is best; pure.

A split is a number of stages: agents run so many of ``trainmover.telemetry.stages.STAGES``, in
their order, and the detector runs the rest.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Final

from trainmover.telemetry.records import ACTIVITY, RECORD
from trainmover.telemetry.stages import OPERATIONS, STAGES

__all__ = [
    "MEASURED",
    "Costs",
    "Estimate",
    "StageCosts",
    "Traffic",
    "allowed_by",
    "cheapest",
    "estimate",
]

_INPUTS: Final[Mapping[str, str]] = MappingProxyType({OPERATIONS: "records"})
"""The section that a stage leaves out: who reads it must run the stage itself."""


@dataclass(frozen=True, slots=True)
class Traffic:
    """What the machines of a job send.

    Attributes:
        machines: How many.
        ranks: Of each.
        batches_s: Batches of one machine in a second.
        operations_s: Operations of one machine in a second.
    """

    machines: int
    ranks: int
    batches_s: float
    operations_s: float


@dataclass(frozen=True, slots=True)
class StageCosts:
    """Processor seconds for one operation.

    Attributes:
        detector_s: Where the operation itself is sent: reading and looking at it in the detector.
        agent_sent_s: The same in the agent: packing it.
        agent_run_s: In the agent, where it runs the stage instead.
    """

    detector_s: float
    agent_sent_s: float
    agent_run_s: float


@dataclass(frozen=True, slots=True)
class Costs:
    """What analysis takes, measured by ``python -m benchmarks.placement``.

    Attributes:
        detector_batch_s: Processor seconds of the detector for a batch of eight ranks without any
            operation.
        agent_batch_s: The same of the agent.
        batch_bytes: The size of such a batch.
        stages: What each stage takes.
    """

    detector_batch_s: float
    agent_batch_s: float
    batch_bytes: int
    stages: Mapping[str, StageCosts] = field(default_factory=dict)


MEASURED: Final = Costs(
    detector_batch_s=95e-6,
    agent_batch_s=4.5e-3,
    batch_bytes=3_300,
    stages={OPERATIONS: StageCosts(detector_s=0.12e-6, agent_sent_s=1.1e-6, agent_run_s=1.1e-6)},
)
"""Of a batch a second, as in large jobs; see ``benchmarks/results/placement.md``."""


@dataclass(frozen=True, slots=True)
class Estimate:
    """What one split costs.

    Attributes:
        at_agents: Stages that agents run.
        detector_cpu: Processor seconds of the detector in a second.
        agent_cpu_ratio: Share of a core that an agent takes for each of its ranks.
        bytes_s: Bytes of telemetry of the whole job in a second.
    """

    at_agents: tuple[str, ...]
    detector_cpu: float
    agent_cpu_ratio: float
    bytes_s: float


def estimate(at_agents: tuple[str, ...], traffic: Traffic, costs: Costs = MEASURED) -> Estimate:
    """What a split costs under some traffic."""
    batches, operations = traffic.batches_s, traffic.operations_s
    detector_s = batches * costs.detector_batch_s
    agent_s = batches * costs.agent_batch_s
    nbytes = batches * costs.batch_bytes
    for name, stage in costs.stages.items():
        if name in at_agents:
            agent_s += operations * stage.agent_run_s
            nbytes += batches * traffic.ranks * ACTIVITY.itemsize
        else:
            detector_s += operations * stage.detector_s
            agent_s += operations * stage.agent_sent_s
            nbytes += operations * RECORD.itemsize
    return Estimate(
        at_agents=at_agents,
        detector_cpu=traffic.machines * detector_s,
        agent_cpu_ratio=agent_s / max(1, traffic.ranks),
        bytes_s=traffic.machines * nbytes,
    )


def allowed_by(reads: Collection[frozenset[str] | None]) -> tuple[str, ...]:
    """The stages that agents may run for detectors that read these sections; None reads all."""
    if None in reads:
        return ()
    read = frozenset[str]().union(*(names for names in reads if names is not None))
    # A stage works on what the ones before it left: behind one that is here, all are here.
    count = next((at for at, stage in enumerate(STAGES) if _INPUTS[stage] in read), len(STAGES))
    return STAGES[:count]


def cheapest(
    traffic: Traffic, costs: Costs = MEASURED, *, allowed: tuple[str, ...], most_agent_cpu: float
) -> Estimate:
    """The split with the least work for the detector.

    Args:
        traffic: What machines send.
        costs: What that takes.
        allowed: The stages that agents may run.
        most_agent_cpu: Share of a core for each rank that agents may not exceed for it.
    """
    splits = [estimate(allowed[:count], traffic, costs) for count in range(len(allowed) + 1)]
    central = splits[0]
    within = [
        s for s in splits if s.agent_cpu_ratio <= max(most_agent_cpu, central.agent_cpu_ratio)
    ]
    return min(within, key=lambda split: (split.detector_cpu, len(split.at_agents)))
