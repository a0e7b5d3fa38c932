"""One transition while it is being made: the state so far and the actions so far."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from types import MappingProxyType
from typing import Any, Literal

from trainmover.job.topology import Frozen, Membership
from trainmover_executor.agent.core.chart import BAY, MACHINE
from trainmover_executor.agent.core.effects import Action, End, Forward, Log, Publish, Spawn
from trainmover_executor.agent.core.state import AgentState, Bay, Worker
from trainmover_executor.messages.worker import ToWorker

__all__ = ["Transition"]


class Transition:
    """Collects what one event changes.

    Attributes:
        state: The state so far.
        actions: What the shell is to do, in order.
    """

    def __init__(self, state: AgentState) -> None:
        self.state = state
        self.actions: list[Action] = []

    def set(self, **changes: Any) -> None:
        """Replace fields of the state."""
        MACHINE.check(self.state.phase, changes.get("phase", self.state.phase))
        self.state = replace(self.state, **changes)

    def do(self, action: Action) -> None:
        """Add an action."""
        self.actions.append(action)

    def publish(self, fact: Frozen, *, urgent: bool = False) -> None:
        """State a fact."""
        self.do(Publish(fact, urgent=urgent))

    def log(
        self, level: Literal["debug", "info", "warning", "error"], event: str, **fields: Any
    ) -> None:
        """Tell people; machine and generation are added."""
        self.do(Log(level, event, {"generation": self.state.generation, **fields}))

    def ignore(self, verb: str, reason: str, **fields: Any) -> None:
        """Say why a command changes nothing."""
        self.log("info", "command.ignored", verb=verb, reason=reason, **fields)

    def worker(self, key: str, **changes: Any) -> Worker:
        """Replace fields of one worker."""
        changed = replace(self.state.workers[key], **changes)
        self.set(workers=MappingProxyType({**self.state.workers, key: changed}))
        return changed

    def bay(self, slot: int, **changes: Any) -> Bay:
        """Replace fields of one bay, or open it."""
        before = self.state.bays.get(slot, Bay())
        changed = replace(before, **changes)
        BAY.check(before.phase, changed.phase)
        self.set(bays=MappingProxyType({**self.state.bays, slot: changed}))
        return changed

    def forget(self, key: str) -> Worker:
        """Take a worker off the tables, as its process is gone."""
        worker = self.state.workers[key]
        left = {name: other for name, other in self.state.workers.items() if name != key}
        self.set(workers=MappingProxyType(left))
        return worker

    def end(self, workers: Iterable[Worker], *, grace_s: float) -> None:
        """End processes; their exits are expected from now on."""
        keys = tuple(worker.key for worker in workers)
        for key in keys:
            self.worker(key, ending=True)
        if keys:
            self.do(End(keys, grace_s))

    def forward(self, workers: Iterable[Worker], message: ToWorker) -> None:
        """Tell workers."""
        for worker in workers:
            self.do(Forward(worker.key, message))

    def spawn(
        self,
        slot: int,
        *,
        role: Literal["active", "standby"],
        membership: Membership,
        socket_of: int | None,
        background: bool = False,
    ) -> None:
        """Start all processes of one slot."""
        for local_rank, rank in enumerate(membership.layout.ranks_of(slot)):
            serial = self.state.serial
            key = f"g{self.state.generation}-r{rank}-{serial}"
            worker = Worker(key=key, slot=slot, rank=rank, role=role)
            self.set(
                serial=serial + 1, workers=MappingProxyType({**self.state.workers, key: worker})
            )
            self.do(
                Spawn(
                    key=key,
                    generation=self.state.generation,
                    slot=slot,
                    rank=rank,
                    local_rank=local_rank,
                    role=role,
                    membership=membership,
                    socket_of=socket_of,
                    background=background,
                )
            )
