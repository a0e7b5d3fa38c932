"""Which machine has which slot, as the facts tell it, and what a batch means then; pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields, replace
from itertools import islice
from typing import Final

import numpy as np

from trainmover.detection.model import CollectiveWindow
from trainmover.events.executor import PlanSwitched
from trainmover.events.migration import JobFormed, MigrationApproved, MigrationCommitted
from trainmover.job.topology import Frozen, Membership
from trainmover.telemetry.records import RECORD, Batch, Sections

__all__ = ["MembershipTracker"]

_SECTIONS: Final = tuple(each.name for each in fields(Sections))
_NOTHING: Final = Sections()
_MOST_GROUPS: Final = 1_024
_MOST_SPANS: Final = 4_096


class MembershipTracker:
    """Follows the membership of a job.

    Attributes:
        membership: That of the latest epoch that is known to have begun.
    """

    def __init__(self) -> None:
        self.membership: Membership | None = None
        self._planned: dict[int, Membership] = {}
        self._early_s: dict[str, float] = {}
        self._slots: dict[str, int] = {}
        self._ranks: list[frozenset[int]] = []

    @property
    def epoch(self) -> int:
        """The latest epoch; 0 before the job formed."""
        return 0 if self.membership is None else self.membership.epoch

    def learn(self, fact: Frozen) -> Membership | None:
        """Take in a fact; the membership if it is a new one."""
        match fact:
            case JobFormed(membership=membership) | MigrationCommitted(membership=membership):
                return self._begin(membership)
            case MigrationApproved(plan=plan):
                self._planned[plan.epoch] = plan.membership
                # A recovery replaces machines that are gone: its slots count from now on.
                # Those of a planned move count when the first rank has switched.
                return self._begin(plan.membership) if plan.kind == "failure" else None
            case PlanSwitched(epoch=epoch) if epoch in self._planned:
                return self._begin(self._planned[epoch])
            case _:
                return None

    def _begin(self, membership: Membership) -> Membership | None:
        if membership.epoch <= self.epoch:
            return None
        self.membership = membership
        self._slots = {member.machine: slot for slot, member in enumerate(membership.members)}
        self._ranks = [frozenset(membership.layout.ranks_of(slot)) for slot in self._slots.values()]
        self._planned = {e: m for e, m in self._planned.items() if e > membership.epoch}
        return membership

    def holds_slot(self, machine: str) -> bool:
        """Whether a machine fills a slot."""
        return machine in self._slots

    def window(self, batch: Batch, now_s: float) -> CollectiveWindow | None:
        """What a batch means now; None when it means nothing (yet).

        A batch of another epoch, or of a machine without a slot, is a sign of life and no more. One
        of an earlier incarnation of a machine is not even that.
        """
        membership = self.membership
        if membership is None:
            self._early_s[batch.machine] = now_s
            return None
        slot = self._slots.get(batch.machine)
        if slot is not None and membership.members[slot].generation != batch.generation:
            return None  # believed dead, it may still send: it must not count as its successor
        whole = slot is not None and batch.epoch == membership.epoch
        sections = _NOTHING
        if whole and slot is not None:
            said = batch.more
            if said.records is not batch.records:
                said = replace(said, records=batch.records)
            sections = _about(said, self._ranks[slot])
        return CollectiveWindow(
            machine=batch.machine,
            epoch=membership.epoch,
            membership=membership,
            records=sections.records,
            received_s=now_s,
            more=sections,
            groups=self._own_groups(batch, slot) if whole and slot is not None else {},
            dropped=batch.dropped,
        )

    def _own_groups(self, batch: Batch, slot: int) -> Mapping[int, tuple[range, ...]]:
        """Groups that can be: of ranks of the job, the sender's among them, and not too many."""
        assert self.membership is not None  # noqa: S101 - asked when the job has formed
        if not batch.groups:
            return {}
        world, own = self.membership.layout.world_size, self._ranks[slot]
        return {
            group: spans
            for group, spans in islice(batch.groups.items(), _MOST_GROUPS)
            if len(spans) <= _MOST_SPANS
            and all(s and min(s[0], s[-1]) >= 0 and max(s[0], s[-1]) < world for s in spans)
            and sum(map(len, spans)) <= world
            and any(rank in span for rank in own for span in spans)
        }

    def early(self) -> list[CollectiveWindow]:
        """Signs of life from before the job formed, once: only so is their end noticed."""
        assert self.membership is not None  # noqa: S101 - asked when the job has formed
        early, self._early_s = self._early_s, {}
        return [
            CollectiveWindow(machine, self.epoch, self.membership, np.zeros(0, RECORD), heard_s)
            for machine, heard_s in early.items()
        ]


def _about(sections: Sections, ranks: frozenset[int]) -> Sections:
    """Without what a machine says about ranks of others: nobody speaks for them."""
    foreign = {}
    for name in _SECTIONS:
        array = sections.named(name)
        # Most sections are short: numpy would need longer than a set does.
        if len(array) and not ranks.issuperset(array["rank"].tolist()):
            foreign[name] = array[np.isin(array["rank"], list(ranks))]
    return replace(sections, **foreign) if foreign else sections
