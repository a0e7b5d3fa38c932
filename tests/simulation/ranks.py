"""A rank: the real core of the worker role, and a modelled training thread; no tensors.

Its state is the number of completed steps and a digest that every step changes. What the core
decides is done here as ``trainmover_executor`` does it: ``control_thread`` (commands, neighbours),
``loop`` (steps), ``vote``, ``handover``, ``leaver`` and ``joiner``. What runs in two
threads there is one here.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from tests.simulation.fabric import Fabric
from tests.simulation.phase_one import PhaseOne
from tests.simulation.voice import Voice

from trainmover.commands import AbortMigration, BreakStep, Prepare, Recover, SaveCheckpoint
from trainmover.job.plan import Plan
from trainmover.job.topology import Frozen, Member, Membership
from trainmover.protocol.private_state import holder_of
from trainmover.testing.simulation import SimProcess, Simulation
from trainmover_executor.decisions import core, effects
from trainmover_executor.decisions.state import WorkerState
from trainmover_executor.decisions.transition import failure_of

__all__ = ["SimRank"]

SHADOW_ITERATIONS: Final = 3


class SimRank(SimProcess):
    """One worker process.

    Args:
        sim: The world.
        fabric: Its links.
        member: The incarnation it belongs to.
        rank: Its rank.
        membership: What it was started in.
        standby: Whether it waits in the sandbox.
        step_s: How long a step computes, seconds.
        max_steps: Length of the program, in steps.
        report: Takes facts for the agent.
        warmed: Called after the shadow iterations.
        ended: Called with (exit code, signal) when the process ends.

    Attributes:
        role: What it knows and decides by.
        where: What the training thread is doing.
        changes: Grows with each change of ``where``: whatever was to follow the one before is void.
    """

    def __init__(
        self,
        sim: Simulation,
        fabric: Fabric,
        *,
        member: Member,
        rank: int,
        membership: Membership,
        standby: bool,
        step_s: float,
        max_steps: int,
        report: Callable[[Frozen], None],
        warmed: Callable[[], None],
        finished: Callable[[int], None],
        ended: Callable[[int | None, int | None], None],
    ) -> None:
        super().__init__(sim)
        self.fabric = fabric
        self.machine, self.incarnation = member.machine, (member.machine, member.generation)
        self.rank = rank
        self.slot = membership.layout.slot_of(rank)
        self.membership = membership
        self.role = WorkerState.first(
            machine=self.machine, rank=rank, epoch=membership.epoch, standby=standby
        )
        self.name = f"{self.machine}/r{rank}"
        self.digest = 0
        self.where = "starting"
        self.changes = 0
        self.sequence = 0
        self.collective: tuple[int, int] | None = None
        self.linked = not standby
        self._step_s, self._max_steps = step_s, max_steps
        self._report, self._warmed, self._finished = report, warmed, finished
        self._voice = Voice(report, lambda: self.role)
        self._on_end = ended
        self._attempts = 0
        self.phase_one = PhaseOne(self, self._take, opened=not standby)
        self._led: Plan | None = None
        self._under: Plan | None = None
        fabric.ranks.append(self)
        if standby:
            self._next(sim.between(0.2, 1.5), self._is_warm)
        else:
            self._next(sim.between(0.05, 0.4), self._begin)
        self.after(1.0, self._progress)

    @property
    def epoch(self) -> int:
        """The epoch it is at."""
        return self.role.epoch

    @property
    def committed(self) -> int:
        """Steps completed by the job, as far as it knows."""
        return self.role.committed

    # -- the core --------------------------------------------------------------------------------

    def _take(self, event: effects.Event) -> None:
        before = self.role
        self.role, actions = core.step(before, event)
        if self.role.committed == before.committed + 1 and not before.standby:
            self.digest = hash((self.digest, self.role.committed))
        if before.leading is not None and self.role.leading != before.leading:
            self._hang_up(before.leading)
        for action in actions:
            self._perform(action)

    def _perform(self, action: effects.Action) -> None:
        match action:
            case effects.Break(epoch=epoch, reason=reason):
                self._broken_off(epoch, reason)
            case effects.Publish(fact=fact):
                self._report(fact)
            case effects.Park(plan=plan):
                self.phase_one.park(plan)
            case effects.AnswerCalls(plan=plan):
                self.phase_one.answer(plan)
            case effects.CancelPhaseOne(epoch=epoch):
                self.phase_one.cancel(epoch)
            case effects.DropParked():
                pass  # links that are parked are not modelled

    # -- the thread ------------------------------------------------------------------------------

    def _go(self, where: str) -> int:
        self.where = where
        self.changes += 1
        return self.changes

    def _next(self, delay_s: float, method: Callable[[], None]) -> None:
        changes = self.changes
        self.after(delay_s, self._if_still, changes, method)

    def _if_still(self, changes: int, method: Callable[[], None]) -> None:
        if self.changes == changes:
            method()

    def _note(self, text: str, *args: object) -> None:
        self.sim.note(self.name, text, *args)

    def end(
        self, *, code: int | None = None, signal: int | None = None, reset: bool = True
    ) -> None:
        """The process ends."""
        if not self.alive:
            return
        self.die()
        if reset and self.role.leading is not None:
            self._hang_up(self.role.leading)
        if reset and self.where == "joining":
            self._let_leaver_know()
        self.fabric.ended(self, reset=reset and code != 0)
        self._on_end(code, signal)

    def _progress(self) -> None:
        self._voice.progress(step_s=self._step_s)
        self.after(1.0, self._progress)

    def _begin(self) -> None:
        self._voice.layout(world=self.membership.layout.world_size)
        self._settle()

    def _is_warm(self) -> None:
        self._attempts = SHADOW_ITERATIONS
        self._go("idle")
        self._warmed()
        self._take(effects.Warm())
        self.phase_one.open()
        self._idle()

    # -- steps -----------------------------------------------------------------------------------

    def _attempt(self) -> None:
        if self.committed >= self._max_steps:
            self._go("done")
            self._note("is done after step %d", self.committed)
            self._finished(self.committed)
            self._next(0.01, lambda: self.end(code=0))
            return
        self._go("compute")
        leading = self.role.leading
        if leading is not None and self._led != leading:
            self._led = leading
            self.after(self.sim.between(0.05, 1.5), self._lead, leading)
        self._next(self._step_s * self.sim.between(0.9, 1.1), self._computed)

    def _computed(self) -> None:
        self._go("grads")
        self.fabric.enter(self, "grads", None, self._has_gradients)

    def _has_gradients(self, _: list[Any]) -> None:
        last = self.committed + 1 >= self._max_steps
        may_switch = self._attempts + 1 >= SHADOW_ITERATIONS and not last
        self._take(effects.VoteBegun(may_switch))
        voted_on = self.role.voted_on
        prepared = self.epoch if voted_on is None else voted_on.epoch
        self._go("vote")
        self.fabric.enter(self, "vote", (self.committed, self.digest, prepared), self._voted)

    def _voted(self, votes: list[Any]) -> None:
        epochs = [prepared for _, _, prepared in votes]
        self._take(effects.VotePassed(lowest=min(epochs), highest=max(epochs)))
        self._attempts += 1
        if self.role.confirmed is not None:
            self._note("committed epoch %d with step %d", self.epoch, self.committed)
            self._voice.confirmed(self.role.confirmed)
            self._take(effects.Noted())
        self._settle()

    # -- breaking --------------------------------------------------------------------------------

    def trip(self, reason: str) -> None:
        """The running step is broken."""
        self._take(effects.Broke(reason))

    def _broken_off(self, epoch: int, reason: str) -> None:
        """The links of an epoch were ended: whatever waits for one of them fails soon."""
        self._note("breaks epoch %d in %s: %s", epoch, self.where, reason)
        self.fabric.break_off(self)
        self.fabric.tell_neighbours(self, epoch, reason)
        follows = {
            "compute": self._void,
            "grads": self._void,
            "vote": self._vote_broke,
            "agree": self._settle,
            "handing": self._settle,
            "joining": self._could_not_join,
            "inheriting": self._could_not_join,
        }.get(self.where)
        if follows is not None:
            self._go("void")
            self._next(self.sim.between(0.0, 0.05), follows)

    def links_broke(self, changes: int, reason: str) -> None:
        """An operation of the training thread met a closed link."""
        if self.changes == changes:
            self.trip(reason)

    def heard_abort(self, epoch: int, reason: str) -> None:
        """A neighbour says that the step is broken."""
        if epoch == self.epoch:
            self._take(effects.Broke(reason, epoch))

    def lost(self, dead: SimRank) -> None:
        """A watch link ended without a goodbye."""
        member = self.membership.members[dead.slot]
        if (member.machine, member.generation) != dead.incarnation or self.where == "done":
            return
        self._blame(dead.rank, "reset")
        self.trip(f"rank {dead.rank} is gone")

    def _blame(self, peer: int, kind: str) -> None:
        self._voice.blamed(peer, machine=self.membership.machine_of(peer), kind=kind)

    def _void(self) -> None:
        self._attempts += 1
        self._settle()

    def _vote_broke(self) -> None:
        self._take(effects.VoteBroke("links broke", cast=True))
        self._void()

    def _settle(self) -> None:
        self._go("boundary")
        if self.role.broken is not None:
            self._stop()
        elif self.role.recovering is not None:
            self._hand_out(self.role.recovering)
        elif self.role.switching is not None:
            self._switch(self.role.switching)
        else:
            self._attempt()

    # -- recovery --------------------------------------------------------------------------------

    def _stop(self) -> None:
        self._take(effects.Stopped())
        self._go("broken")
        self._await_plan()

    def _await_plan(self) -> None:
        plan = self.role.next_recovery
        if plan is None:
            return
        self._reset(effects.Recovers(plan), watch=True)
        self._under = plan
        if self.role.broken is not None:
            self._stop()
            return
        self._go("agree")
        self.fabric.enter(self, "agree", self.committed, self._agreed)

    def _reset(self, event: effects.Recovers | effects.Joins, *, watch: bool) -> None:
        self.membership = event.plan.membership
        self.sequence = 0
        self.linked = watch
        self._take(event)
        self.fabric.reset(self)
        self._note("is at epoch %d", self.epoch)
        if watch:
            self._rewatch()

    def _rewatch(self) -> None:
        self.linked = True
        self.after(self.sim.between(0.001, 0.01), self._dial_following, self.epoch)

    def _dial_following(self, epoch: int) -> None:
        if epoch != self.epoch:
            return
        peer = (self.rank + 1) % self.membership.layout.world_size
        member = self.membership.members[self.membership.layout.slot_of(peer)]
        gone = self.fabric.at(member.machine, member.generation, peer) is None
        if gone and not self.unreachable(member.machine):
            self._blame(peer, "refused")
            self.trip(f"rank {peer} cannot be reached")

    def unreachable(self, machine: str) -> bool:
        """Whether nothing answers there, not even a refusal; the machine overrides it."""
        del machine
        return False

    def _agreed(self, votes: list[Any]) -> None:
        assert self._under is not None
        self._take(effects.Agreed(self._under, max(votes), 0))
        if self.role.refusal:
            self._note("refuses %s: %s", self._under.id, self.role.refusal)
            self._report(failure_of(self.role, self._under, self.role.refusal))
            self.end(code=1)
        else:
            self._settle()

    def _holder(self, plan: Plan, joiner: int) -> int | None:
        if not self.committed or plan.sources[joiner] == joiner:
            return None
        return holder_of(joiner, plan.membership.layout, joining=plan.joining_ranks)

    def _hand_out(self, plan: Plan) -> None:
        self._go("handing")
        for joiner, source in sorted(plan.sources.items()):
            if source == self.rank and joiner != self.rank:
                self.fabric.deposit(plan.epoch, "state", joiner, (self.committed, self.digest))
            if self._holder(plan, joiner) == self.rank:
                self.fabric.deposit(plan.epoch, "private_state", joiner, self.committed)
        self._next(self.sim.between(0.001, 0.1), self._handed_out)

    def _handed_out(self) -> None:
        plan = self.role.recovering
        assert plan is not None
        self._voice.switched(plan)
        self._take(effects.HandedOut(plan))
        self._settle()

    # -- a planned move --------------------------------------------------------------------------

    def _switch(self, plan: Plan) -> None:
        if self.rank not in plan.joining_ranks:
            self.membership, self.sequence = plan.membership, 0
            self._take(effects.Switched(plan))
            self._note("switched to epoch %d after step %d", plan.epoch, self.committed)
            self._voice.switched(plan)
            self._rewatch()
            self._settle()
            return
        member = plan.membership.members[self.slot]
        joiner = self.fabric.at(member.machine, member.generation, self.rank)
        if joiner is None or joiner.epoch != plan.epoch:
            self.trip("the joiner was lost when the switch was decided")
            self._settle()
            return
        self.fabric.deposit(plan.epoch, "rest", self.rank, (self.committed, self.digest))
        self._note("handed over after step %d", self.committed)
        self._voice.switched(plan)
        self._take(effects.Left(plan))
        self._go("left")
        self.linked = False
        self._given_back()

    def _given_back(self) -> None:
        if self.role.next_recovery is not None:
            self.linked = True
            self._go("void")
            self.trip("the slot was given back")
            self._next(0.0, self._settle)

    def _lead(self, plan: Plan) -> None:
        if self.role.leading != plan:
            return
        member = plan.membership.members[self.slot]
        joiner = self.fabric.at(member.machine, member.generation, self.rank)
        if joiner is None:
            self._take(effects.LeadFailed(plan, "the joiner is gone"))
        elif joiner.where == "joining" and joiner.epoch == plan.epoch:
            self._take(effects.Led(plan, 0.1))
        else:
            self.after(0.1, self._lead, plan)

    def _joiner_lost(self, plan: Plan) -> None:
        if self.where != "left":
            self._take(effects.LeadFailed(plan, "the joiner ended the link"))

    def _hang_up(self, plan: Plan) -> None:
        member = plan.membership.members[self.slot]
        joiner = self.fabric.at(member.machine, member.generation, self.rank)
        if joiner is not None and joiner.where == "joining" and joiner.epoch == plan.epoch:
            joiner.after(0.002, joiner.links_broke, joiner.changes, "the leaver ended the link")

    def leads(self, plan: Plan) -> bool:
        """Whether this leaver has called the joiner, and not hung up."""
        return self.alive and (self.role.leading == plan or self.where == "left")

    def _leaver(self) -> SimRank | None:
        if (plan := self._under) is None:
            return None
        ours = (one for one in self.fabric.ranks if one.rank == self.rank and one is not self)
        return next((one for one in ours if one.leads(plan)), None)

    def _let_leaver_know(self) -> None:
        leaver, plan = self._leaver(), self._under
        if leaver is not None and plan is not None:
            leaver.after(0.002, leaver._joiner_lost, plan)

    # -- the joiner ------------------------------------------------------------------------------

    def _idle(self) -> None:
        plan = self.role.wanted
        if self.where != "idle" or plan is None:
            return
        self._under = plan
        self._reset(effects.Joins(plan), watch=plan.kind == "failure")
        if self.role.broken is not None:
            self._could_not_join()
        elif plan.kind == "failure":
            self._go("joining")
            self.fabric.enter(self, "agree", -1, lambda _: self._inherit())
        else:
            self._go("joining")
            self.look()

    def _inherit(self) -> None:
        self._go("inheriting")
        self.look()

    def look(self) -> None:
        """Something was deposited."""
        plan = self._under
        if plan is None or self.where not in ("joining", "inheriting"):
            return
        kind = "rest" if plan.kind == "planned" else "state"
        if (kind == "state") != (self.where == "inheriting"):
            return
        found = self.fabric.collect(plan.epoch, kind, self.rank)
        if found is None:
            return
        committed, digest = found
        private_state = self.fabric.collect(plan.epoch, "private_state", self.rank)
        if kind == "state" and committed and private_state is None:
            return
        self.digest = digest
        self._note("joined at epoch %d after step %d", plan.epoch, committed)
        self._take(effects.Joined(plan, committed=committed, between=0))
        self._voice.switched(plan)
        if plan.kind == "planned":
            self._rewatch()
        self._begin()

    def _could_not_join(self) -> None:
        plan = self._under
        assert plan is not None
        reason = self.role.broken or "links broke"
        self._let_leaver_know()
        self._take(effects.CouldNotJoin(plan, reason, links_broke=True))
        self._go("idle")
        self._idle()

    # -- commands --------------------------------------------------------------------------------

    def obey(self, command: Frozen) -> None:
        """What the agent passes on."""
        match command:
            case Prepare() | Recover() | BreakStep() | SaveCheckpoint():
                self._take(effects.Heard(command))
            case AbortMigration():
                self._take(effects.Abort(command, called=self._leaver() is not None))
            case _:
                return
        match self.where:
            case "idle":
                self._idle()
            case "broken":
                self._await_plan()
            case "left":
                self._given_back()
            case _:
                pass
