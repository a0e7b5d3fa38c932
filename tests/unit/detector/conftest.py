"""Synthetic jobs: records of collectives as the ranks of a data-parallel job would send them."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np
import pytest

from trainmover.detection import CollectiveWindow
from trainmover.job.topology import Layout, Member, Membership
from trainmover.telemetry.records import OPS, RECORD

VOTE, ALLREDUCE = OPS.index("vote"), OPS.index("allreduce")


def make_membership(
    slots: int = 4, *, ranks: int = 1, epoch: int = 1, names: list[str] | None = None
) -> Membership:
    chosen = names or [f"w-{slot}" for slot in range(slots)]
    return Membership(
        epoch=epoch,
        layout=Layout(slots=slots, ranks_per_slot=ranks),
        members=tuple(
            Member(
                machine=name,
                generation=0,
                endpoints=tuple(f"{name}:{local}" for local in range(ranks)),
            )
            for name in chosen
        ),
    )


class SyntheticJob:
    """Ranks compute, all-reduce in overlapping buckets, vote.

    ``slow`` maps a rank to the factor of its computing time, ``noise`` is the standard deviation
    of every rank's computing time in every step, as a fraction of it.
    """

    def __init__(
        self,
        membership: Membership,
        *,
        seed: int = 0,
        compute_s: float = 0.2,
        comm_s: float = 0.03,
        noise: float = 0.02,
        buckets: int = 4,
        slow: dict[int, float] | None = None,
    ) -> None:
        self.membership = membership
        self.rng = np.random.default_rng(seed)
        self.compute_s, self.comm_s = compute_s, comm_s
        self.noise, self.buckets, self.slow = noise, buckets, slow or {}
        world = membership.layout.world_size
        self.offset_s = self.rng.uniform(0, 1e6, world)  # clocks of machines have nothing in common
        self.now_s, self.step = 0.0, 0

    def one_step(self) -> Iterator[CollectiveWindow]:
        world = self.membership.layout.world_size
        factor = np.array([self.slow.get(rank, 1.0) for rank in range(world)])
        jitter = np.maximum(0.3, 1 + self.noise * self.rng.standard_normal(world))
        compute = self.compute_s * factor * jitter
        rows: list[list[tuple[int, ...]]] = [[] for _ in range(world)]
        done = np.full(world, self.now_s)
        for bucket in range(self.buckets):
            enter = self.now_s + compute * (0.5 + 0.5 * (bucket + 1) / self.buckets)
            done = np.maximum(done, enter).max() + self.comm_s / self.buckets * np.ones(world)
            for rank in range(world):
                rows[rank].append(self._row(rank, bucket, ALLREDUCE, enter[rank], done[rank]))
        for rank in range(world):
            rows[rank].append(self._row(rank, 99, VOTE, done[rank], done.max() + 0.001))
        self.now_s = float(done.max()) + 0.001
        self.step += 1
        for slot, member in enumerate(self.membership.members):
            mine = [row for rank in self.membership.layout.ranks_of(slot) for row in rows[rank]]
            yield CollectiveWindow(
                machine=member.machine,
                epoch=self.membership.epoch,
                membership=self.membership,
                records=np.array(mine, dtype=RECORD),
                received_s=self.now_s,
            )

    def _row(self, rank: int, bucket: int, op: int, enter: float, end: float) -> tuple[int, ...]:
        own = self.offset_s[rank]
        enter_ns = int((own + enter) * 1e9)
        sequence = self.step * 10 + bucket
        return (rank, self.step, 1, -1, sequence, op, 1024, enter_ns, int((end - enter) * 1e9))


@pytest.fixture
def membership_of() -> Callable[..., Membership]:
    return make_membership


@pytest.fixture
def job_class() -> type[SyntheticJob]:
    return SyntheticJob
