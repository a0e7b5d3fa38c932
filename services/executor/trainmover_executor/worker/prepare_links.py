"""Phase 1 of planned moves, beside the training that goes on: links are dialled and parked."""

from __future__ import annotations

import asyncio
import time
from typing import Final

from trainmover.errors import TrainMoverError
from trainmover.job.plan import Plan
from trainmover.runtime import failpoints
from trainmover_executor.decisions.effects import NotParked, Parked
from trainmover_executor.decisions.shell import RankDecisions
from trainmover_executor.links.dialling.endpoint import Endpoint, dial
from trainmover_executor.links.dialling.handshake import LinkRequest
from trainmover_executor.links.dialling.secret import LinkSecret
from trainmover_executor.links.table import LinkTable
from trainmover_executor.messages.worker import WorkerSpec

__all__ = ["STATE_GROUP", "PhaseOne"]

STATE_GROUP: Final = "_state"
"""Group name of the links that hand state over."""


class PhaseOne:
    """Dials what a plan replaces; on the control thread only.

    Args:
        spec: What this process was started as.
        table: Where links are parked.
        decisions: Told how it went.
        secret: Proves links.
    """

    def __init__(
        self, spec: WorkerSpec, *, table: LinkTable, decisions: RankDecisions, secret: LinkSecret
    ) -> None:
        self._spec = spec
        self._table = table
        self._decisions = decisions
        self._secret = secret
        self._running: dict[int, asyncio.Task[None]] = {}
        self._tasks: asyncio.TaskGroup
        self._endpoint: Endpoint

    def begin(self, tasks: asyncio.TaskGroup, endpoint: Endpoint) -> None:
        """The loop runs; ``tasks`` lives as long as it does."""
        self._tasks, self._endpoint = tasks, endpoint

    def park(self, plan: Plan) -> None:
        """Dial and park the links that ``plan`` replaces; a leaver only the one to its joiner."""
        self._run(plan, answers=False)

    def answer_calls(self, plan: Plan) -> None:
        """At a joiner: be prepared for ``plan`` once it is warm, and answers calls."""
        self._run(plan, answers=True)

    def cancel(self, epoch: int) -> None:
        """The plan for ``epoch`` was called off."""
        if (task := self._running.pop(epoch, None)) is not None:
            task.cancel()

    def _run(self, plan: Plan, *, answers: bool) -> None:
        task = self._tasks.create_task(self._prepare(plan, answers=answers))
        self._running[plan.epoch] = task
        task.add_done_callback(lambda done: self._ended(plan.epoch, done))

    def _ended(self, epoch: int, task: asyncio.Task[None]) -> None:
        if self._running.get(epoch) is task:
            del self._running[epoch]

    async def _prepare(self, plan: Plan, *, answers: bool) -> None:
        started = time.monotonic()
        self._reach("prepare.begin")
        obstacle = ""
        if answers:
            await self._endpoint.opened.wait()
        else:
            try:
                await self._dial_all(plan)
            except* (OSError, TrainMoverError) as errors:
                obstacle = "; ".join(str(error) for error in errors.exceptions)
        took_s = time.monotonic() - started
        self._decisions.take(NotParked(plan, obstacle) if obstacle else Parked(plan, took_s))

    async def _dial_all(self, plan: Plan) -> None:
        leaves = self._spec.rank in plan.joining_ranks
        edges = (
            [(STATE_GROUP, self._spec.rank)] if leaves else self._table.edges_to(plan.joining_ranks)
        )
        async with asyncio.TaskGroup() as dials:
            for group, peer in edges:
                dials.create_task(self._dial_and_park(plan, group, peer))
        if not leaves:
            self._reach("prepare.parked")

    async def _dial_and_park(self, plan: Plan, group: str, peer: int) -> None:
        link_request = LinkRequest(
            job=self._spec.job, epoch=plan.epoch, group=group, source=self._spec.rank, target=peer
        )
        sock = await dial(plan.membership.endpoint_of(peer), link_request, secret=self._secret)
        self._table.park(epoch=plan.epoch, group=group, peer=peer, sock=sock)

    def _reach(self, point: str) -> None:
        if failpoints.ARMED:
            spec = self._spec
            failpoints.reach(point, rank=spec.rank, machine=spec.machine, epoch=self._table.epoch)
