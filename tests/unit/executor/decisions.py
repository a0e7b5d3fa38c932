"""Plans and ranks for tests of the decisions of a rank."""

from __future__ import annotations

from tests.support.fabric import membership

from trainmover.job.plan import Move, Plan
from trainmover.job.topology import Member
from trainmover_executor.decisions import core
from trainmover_executor.decisions.effects import Action, Event, Warm
from trainmover_executor.decisions.shell import RankDecisions
from trainmover_executor.decisions.state import WorkerState

STAYER, LEAVER = 0, 2


def plan(epoch: int, *, kind: str = "planned") -> Plan:
    """Rank 2 of three goes from m2 to the spare machine."""
    joiner = Member(machine="spare", generation=0, endpoints=("spare:1",))
    return Plan.model_validate(
        {
            "id": f"m-{epoch}",
            "job": "test",
            "kind": kind,
            "from_epoch": epoch - 1,
            "membership": membership(3).replace({2: joiner}, epoch=epoch),
            "moves": (Move(slot=2, leaver="m2", joiner="spare"),),
            "sources": {2: 2 if kind == "planned" else 0},
        }
    )


def back(epoch: int) -> Plan:
    """Rank 2 stays with m2 after all."""
    return plan(epoch, kind="failure").model_copy(
        update={"membership": membership(3, epoch=epoch), "moves": (), "sources": {}}
    )


def active(rank: int = STAYER) -> WorkerState:
    """A member of the first membership."""
    return WorkerState.first(machine=f"m{rank}", rank=rank, epoch=1, standby=False)


def standby() -> WorkerState:
    """A warm standby for slot 2."""
    cold = WorkerState.first(machine="spare", rank=2, epoch=1, standby=True)
    return core.step(cold, Warm())[0]


class Rank:
    """The decisions of a rank and what it did."""

    def __init__(self, state: WorkerState) -> None:
        self.decisions = RankDecisions(state)
        self.did: list[Action] = []
        self.decisions.act(self.did.append)

    @property
    def state(self) -> WorkerState:
        """What it knows."""
        return self.decisions.state

    def take(self, *events: Event) -> list[Action]:
        """What it does about ``events``."""
        self.did.clear()
        for event in events:
            self.decisions.take(event)
        return [*self.did]
