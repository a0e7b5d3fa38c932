"""Phase 1 of planned moves, beside the training that goes on: links are dialled and parked.

Also what ends it: an abort, or a recovery plan that takes its place.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import Final

from trainmover import failpoints
from trainmover.commands import AbortMigration
from trainmover.errors import TrainMoverError
from trainmover.events.executor import PlanFailed, PlanPrepared
from trainmover.plan import Plan
from trainmover.topology import Frozen
from trainmover_executor.control import WorkerSpec
from trainmover_executor.latch import Latch
from trainmover_executor.links.book import LinkBook
from trainmover_executor.links.endpoint import Endpoint, dial
from trainmover_executor.links.handshake import Hail
from trainmover_executor.mailbox import Mailbox
from trainmover_executor.neighbours import Neighbours

__all__ = ["STATE_GROUP", "PhaseOne"]

STATE_GROUP: Final = "_state"
"""Group name of the links that hand state over."""


class PhaseOne:
    """Carries out what plans ask of this rank before the switch; on the control thread only.

    Args:
        spec: What this process was started as.
        book: Where links are parked.
        latch: Tripped by a recovery plan.
        mailbox: Where plans for the training thread go.
        neighbours: Know whether this rank takes part in training.
        secret: Proves links.
        post: Sends a fact to the agent.
    """

    def __init__(
        self,
        spec: WorkerSpec,
        *,
        book: LinkBook,
        latch: Latch,
        mailbox: Mailbox,
        neighbours: Neighbours,
        secret: bytes,
        post: Callable[[Frozen], None],
    ) -> None:
        self._spec = spec
        self._book = book
        self._latch = latch
        self._mailbox = mailbox
        self._neighbours = neighbours
        self._secret = secret
        self._post = post
        self._preparing: dict[int, asyncio.Task[None]] = {}
        self._tasks: asyncio.TaskGroup
        self._endpoint: Endpoint

    def begin(self, tasks: asyncio.TaskGroup, endpoint: Endpoint) -> None:
        """The loop runs; ``tasks`` lives as long as it does."""
        self._tasks, self._endpoint = tasks, endpoint

    @property
    def _waits_to_join(self) -> bool:
        return self._spec.role == "standby" and not self._neighbours.watching

    def prepare(self, plan: Plan) -> None:
        """Begin phase 1 of ``plan``."""
        if plan.epoch <= self._book.epoch or plan.epoch in self._preparing:
            return
        self._preparing[plan.epoch] = self._tasks.create_task(self._run(plan))

    async def _run(self, plan: Plan) -> None:
        started = time.monotonic()
        about = {
            "migration": plan.id,
            "machine": self._spec.machine,
            "rank": self._spec.rank,
            "epoch": plan.epoch,
        }
        self._reach("prepare.begin")
        try:
            if not await self._is_ready(plan):
                return  # the leaver is prepared once its joiner's state is up to date
            took_s = time.monotonic() - started
            self._post(PlanPrepared.model_validate({**about, "prepare_s": took_s}))
        except* (OSError, TrainMoverError) as errors:
            self._book.drop_parked(plan.epoch)
            reason = "; ".join(str(error) for error in errors.exceptions)
            failed = {**about, "reason": reason, "step_safe": True}
            self._post(PlanFailed.model_validate(failed))

    async def _is_ready(self, plan: Plan) -> bool:
        """This rank's part of phase 1; whether it may vote for the switch now."""
        rank = self._spec.rank
        joins_or_leaves = rank in plan.joining_ranks
        if joins_or_leaves and self._waits_to_join:
            self._mailbox.join(plan)
            await self._endpoint.opened.wait()
            return True
        edges = (
            [(STATE_GROUP, rank)] if joins_or_leaves else self._book.edges_to(plan.joining_ranks)
        )
        async with asyncio.TaskGroup() as dials:
            for group, peer in edges:
                dials.create_task(self._dial_and_park(plan, group, peer))
        if joins_or_leaves:
            self._mailbox.lead(plan)
            return False
        self._reach("prepare.parked")
        self._mailbox.prepared(plan)
        return True

    async def _dial_and_park(self, plan: Plan, group: str, peer: int) -> None:
        hail = Hail(
            job=self._spec.job, epoch=plan.epoch, group=group, source=self._spec.rank, target=peer
        )
        sock = await dial(plan.membership.endpoint_of(peer), hail, secret=self._secret)
        self._book.park(epoch=plan.epoch, group=group, peer=peer, sock=sock)

    def _reach(self, point: str) -> None:
        if failpoints.ARMED:
            spec = self._spec
            failpoints.reach(point, rank=spec.rank, machine=spec.machine, epoch=self._book.epoch)

    def abort(self, command: AbortMigration) -> None:
        """Take phase 1 of a plan back, unless its vote is under way."""
        if (task := self._preparing.pop(command.epoch, None)) is not None:
            task.cancel()
        if self._waits_to_join:
            # A joiner is already at the plan's epoch. Once its leaver has called, the leaver
            # decides: it ends the link, unless the ranks have voted for the switch meanwhile.
            self._mailbox.abort(command.epoch)
            called = self._book.reaches(STATE_GROUP, self._spec.rank)
            if command.epoch == self._book.epoch and not called:
                reason = f"migration {command.migration} was aborted: {command.reason}"
                self._latch.trip(reason, epoch=command.epoch)
        elif command.epoch > self._book.epoch and self._mailbox.abort(command.epoch):
            self._book.drop_parked(command.epoch)

    def recover(self, plan: Plan) -> None:
        """A failure plan takes the place of whatever is under way."""
        owner = plan.membership.machine_of(self._spec.rank)
        if plan.epoch <= self._book.epoch or owner != self._spec.machine:
            return  # stale, or another machine owns our slot now: our agent ends us (INV-ONE-OWNER)
        self._mailbox.recover(plan)
        # The training thread may have taken the plan out already, and be at its epoch.
        epoch = self._book.epoch
        if epoch < plan.epoch:
            reason = f"migration {plan.id} takes the job to epoch {plan.epoch}"
            self._latch.trip(reason, epoch=epoch)
