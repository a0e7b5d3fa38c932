"""Who waits for whom: the same answer for few ranks as for many, in time that grows with them."""

from __future__ import annotations

import numpy as np

from trainmover.telemetry.records import LINK, OPS, PULSE, RECORD, Phase
from trainmover_detector.measures.mismatch import find_mismatch
from trainmover_detector.measures.waits import Standstill, find_waits

GROUP = 7


def standstill(ranks: int, *, absent: list[int], stale: list[int] | None = None) -> Standstill:
    """All ranks but ``absent`` are in the first all-reduce of one group."""
    there = np.array([rank for rank in range(ranks) if rank not in absent])
    running = np.zeros(len(there), RECORD)
    running["rank"], running["peer"], running["group"] = there, -1, GROUP
    running["op"], running["sequence"] = OPS.index("allreduce"), 0
    pulses = np.zeros(ranks, PULSE)
    pulses["rank"], pulses["phase"] = np.arange(ranks), Phase.BODY
    issued = {(GROUP, rank): int(rank not in absent) for rank in range(ranks)}
    return Standstill(
        open=running,
        pulses=pulses,
        links=np.zeros(0, LINK),
        issued=issued,
        groups={GROUP: (range(ranks),)},
        stale=frozenset(stale or ()),
    )


def test_all_wait_for_those_who_are_not_there() -> None:
    waits = find_waits(standstill(6, absent=[2, 4]))
    assert waits.roots == (2, 4)
    assert sorted(waits.lines) == [0, 1, 3, 5]
    assert waits.chain_to(2) == ["rank 5 waits for rank 2 in allreduce 0 of group 00000007"]


def test_a_chain_leads_through_several_groups() -> None:
    now = standstill(4, absent=[3])
    first = np.zeros(1, RECORD)
    first["rank"], first["peer"], first["group"], first["op"] = 3, 9, 5, OPS.index("recv")
    waits = find_waits(
        Standstill(
            open=np.concatenate([now.open, first]),
            pulses=now.pulses,
            links=now.links,
            issued=now.issued,
            groups=now.groups,
            stale=frozenset(),
        )
    )
    assert waits.roots == (9,)
    assert waits.chain_to(9) == [
        "rank 2 waits for rank 3 in allreduce 0 of group 00000007",
        "rank 3 waits for rank 9 in recv 0 between them",
    ]


def test_votes_wait_for_whoever_does_not_vote() -> None:
    now = standstill(4, absent=[0, 1, 2, 3])
    now.pulses["phase"] = [Phase.VOTE, Phase.VOTE, Phase.BODY, Phase.VOTE]
    waits = find_waits(now)
    assert waits.roots == (2,)
    assert waits.chain_to(2) == ["rank 3 waits for rank 2 in the vote on step 0"]


def test_what_is_kept_grows_with_the_ranks_and_not_with_their_pairs() -> None:
    waits = find_waits(standstill(4_096, absent=list(range(0, 4_096, 2))))
    distinct = {wait for lines in waits.lines.values() for wait in lines}
    assert sum(len(wait.others) for wait in distinct) == 2_048
    assert len(waits.roots) == 2_048


def test_one_that_claims_to_be_in_thousands_of_operations_costs_no_more_than_others() -> None:
    now = standstill(64, absent=[5])
    wild = np.zeros(10_000, RECORD)
    wild["rank"], wild["peer"], wild["group"] = 0, -1, GROUP
    wild["sequence"], wild["op"] = np.arange(10_000) + 1, 77
    waits = find_waits(
        Standstill(
            open=np.concatenate([now.open, wild]),
            pulses=now.pulses,
            links=now.links,
            issued=now.issued,
            groups={GROUP: (range(64),)},
            stale=frozenset(),
        )
    )
    assert waits.roots[0] == 5
    assert sum(map(len, waits.lines.values())) < 20_000


def test_who_is_odd_is_not_said_before_most_of_a_group_were_heard(membership_of) -> None:
    for absent in ([2, 3, 4, 5], []):
        now = standstill(6, absent=absent)
        now.open["bytes"] = np.where(now.open["rank"] == 1, 4, 8)
        found = find_mismatch(now, membership_of(6))
        if absent:
            assert found is None, "one against one: the other four will tell"
        else:
            assert found is not None
            assert (found.machine, found.rank) == ("w-1", 1)
