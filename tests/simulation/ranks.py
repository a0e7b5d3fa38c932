"""A rank as the protocol describes it: steps, votes, switches, recoveries; no tensors.

Its state is the number of completed steps and a digest that every step changes. The model follows
``trainmover_executor``: ``control_thread`` (commands, neighbours), ``session`` (steps, the vote),
``handover``, ``leaver`` and ``joiner``. What runs in two threads there is one here.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from tests.simulation.fabric import Fabric

from trainmover.capsules import holder_of
from trainmover.commands import AbortMigration, BreakStep, Prepare, Recover
from trainmover.events import executor
from trainmover.events.machine import LinkLost
from trainmover.plan import Plan
from trainmover.testing.simulation import SimProcess, Simulation
from trainmover.topology import Frozen, Member, Membership

__all__ = ["SimRank"]

SHADOW_ITERATIONS: Final = 3


class SimRank(SimProcess):
    """One worker process.

    Args:
        sim: The world.
        fabric: Its links.
        member: The life it belongs to.
        rank: Its rank.
        membership: What it was started in.
        standby: Whether it waits in the sandbox.
        step_s: How long a step computes, seconds.
        max_steps: Length of the program, in steps.
        report: Takes facts for the agent.
        warmed: Called after the shadow iterations.
        ended: Called with (exit code, signal) when the process ends.

    Attributes:
        where: What the training thread is doing.
        turn: Grows with each change of ``where``: whatever was to follow the one before is void.
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
        self.machine, self.life = member.machine, (member.machine, member.generation)
        self.rank = rank
        self.slot = membership.layout.slot_of(rank)
        self.membership, self.epoch = membership, membership.epoch
        self.standby = standby
        self.name = f"{self.machine}/r{rank}"
        self.committed = 0
        self.digest = 0
        self.where = "starting"
        self.turn = 0
        self.sequence = 0
        self.meeting: tuple[int, int] | None = None
        self.linked = not standby
        self._step_s, self._max_steps = step_s, max_steps
        self._report, self._warmed, self._finished = report, warmed, finished
        self._on_end = ended
        self._latch = ""
        self._attempts = 0
        self._undecided = False
        self._opened = not standby
        self._seen_plans: set[int] = set()
        self._prepared: Plan | None = None
        self._leading: Plan | None = None
        self._led: Plan | None = None
        self._voting: Plan | None = None
        self._in_vote = False
        self._abort_pending = False
        self._joining: Plan | None = None
        self._recover: Plan | None = None
        self._switching: Plan | None = None
        self._recovering: Plan | None = None
        self._unconfirmed: Plan | None = None
        self._under: Plan | None = None
        self._said_step = -1
        fabric.ranks.append(self)
        if standby:
            self._next(sim.between(0.2, 1.5), self._is_warm)
        else:
            self._next(sim.between(0.05, 0.4), self._begin)
        self.after(1.0, self._progress)

    # -- the thread ------------------------------------------------------------------------------

    def _go(self, where: str) -> int:
        self.where = where
        self.turn += 1
        return self.turn

    def _next(self, delay_s: float, method: Callable[[], None]) -> None:
        turn = self.turn
        self.after(delay_s, self._if_still, turn, method)

    def _if_still(self, turn: int, method: Callable[[], None]) -> None:
        if self.turn == turn:
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
        if reset and self._leading is not None:
            self._hang_up(self._leading)
        self.fabric.ended(self, reset=reset and code != 0)
        self._on_end(code, signal)

    def _progress(self) -> None:
        if self.committed != self._said_step and not self.standby:
            self._said_step = self.committed
            self._report(
                executor.StepProgress(
                    machine=self.machine,
                    rank=self.rank,
                    epoch=self.epoch,
                    step=self.committed,
                    step_s=self._step_s,
                )
            )
        self.after(1.0, self._progress)

    def _begin(self) -> None:
        world = self.membership.layout.world_size
        self._report(
            executor.JobLayoutKnown(
                machine=self.machine, rank=self.rank, replicas=tuple(range(world))
            )
        )
        self._settle()

    def _is_warm(self) -> None:
        self._attempts = SHADOW_ITERATIONS
        self._opened = True
        self._go("idle")
        self._warmed()
        for plan in (self._joining,):
            if plan is not None:
                self._say_prepared(plan)
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
        if self._leading is not None and self._led != self._leading:
            self._led = self._leading
            self.after(self.sim.between(0.05, 1.5), self._lead, self._leading)
        self._next(self._step_s * self.sim.between(0.9, 1.1), self._computed)

    def _computed(self) -> None:
        self._go("grads")
        self.fabric.enter(self, "grads", None, self._has_gradients)

    def _has_gradients(self, _: list[Any]) -> None:
        last = self.committed + 1 >= self._max_steps
        may_switch = self._attempts + 1 >= SHADOW_ITERATIONS and not last
        self._voting = self._prepared if may_switch else None
        self._in_vote = True
        prepared = self._voting.epoch if self._voting is not None else self.epoch
        self._go("vote")
        self.fabric.enter(self, "vote", (self.committed, self.digest, prepared), self._voted)

    def _voted(self, votes: list[Any]) -> None:
        plan, epochs = self._voting, {prepared for _, _, prepared in votes}
        switching = plan is not None and epochs == {plan.epoch}
        self._thaw(switching=switching)
        self._commit_step()
        self._attempts += 1
        if self._unconfirmed is not None:
            self._confirm(self._unconfirmed)
            self._unconfirmed = None
        self._switching = plan if switching else None
        self._settle()

    def _commit_step(self) -> None:
        self.committed += 1
        self.digest = hash((self.digest, self.committed))

    def _confirm(self, plan: Plan) -> None:
        about: dict[str, Any] = {
            "migration": plan.id,
            "machine": self.machine,
            "rank": self.rank,
            "epoch": self.epoch,
            "step": self.committed,
        }
        self._note("committed epoch %d with step %d", self.epoch, self.committed)
        self._report(executor.PlanCommitted(**about))
        self._report(executor.StepResumed(**about, pause_s=0.1, step_s=0.1, steps_redone=1))

    def _thaw(self, *, switching: bool) -> None:
        self._in_vote = False
        aborted, self._abort_pending = self._abort_pending, False
        if switching:
            self._prepared = None
        elif aborted:
            self._prepared = None
            self._end_lead()

    # -- breaking --------------------------------------------------------------------------------

    def trip(self, reason: str) -> None:
        """Latch: the running step is broken."""
        if self._latch:
            return
        self._latch = reason
        self._note("latched at epoch %d in %s: %s", self.epoch, self.where, reason)
        self.fabric.break_off(self)
        self.fabric.tell_neighbours(self, self.epoch, reason)
        soon_s = self.sim.between(0.0, 0.05)
        match self.where:
            case "compute" | "grads":
                self._go("void")
                self._next(soon_s, self._void)
            case "vote":
                self._thaw(switching=False)
                self._undecided = True
                self._go("void")
                self._next(soon_s, self._void)
            case "agree":
                self._go("void")
                self._next(soon_s, self._broken)
            case "handing":
                self._go("void")
                self._next(soon_s, self._settle)
            case "joining" | "inheriting":
                self._go("void")
                self._next(soon_s, self._could_not_join)
            case _:
                pass

    def links_broke(self, turn: int, reason: str) -> None:
        """An operation of the training thread met a closed link."""
        if self.turn == turn:
            self.trip(reason)

    def heard_abort(self, epoch: int, reason: str) -> None:
        """A neighbour says that the step is broken."""
        if epoch == self.epoch:
            self.trip(reason)

    def lost(self, dead: SimRank) -> None:
        """A watch link ended without a goodbye."""
        seat = self.membership.members[dead.slot]
        if (seat.machine, seat.generation) != dead.life or self.where == "done":
            return
        self._blame(dead.rank, "reset")
        self.trip(f"rank {dead.rank} is gone")

    def _blame(self, peer: int, kind: str) -> None:
        self._report(
            LinkLost.model_validate(
                {
                    "machine": self.machine,
                    "rank": self.rank,
                    "peer_rank": peer,
                    "peer_machine": self.membership.machine_of(peer),
                    "epoch": self.epoch,
                    "step": self.committed,
                    "kind": kind,
                }
            )
        )

    def _void(self) -> None:
        self._attempts += 1
        self._settle()

    def _settle(self) -> None:
        if self._latch:
            self._broken()
        elif self._recovering is not None:
            self._hand_out(self._recovering)
        elif self._switching is not None:
            self._switch(self._switching)
        else:
            self._attempt()

    # -- recovery --------------------------------------------------------------------------------

    def _broken(self) -> None:
        self._report(
            executor.StepBroken(
                machine=self.machine,
                rank=self.rank,
                epoch=self.epoch,
                committed_step=self.committed,
                reason=self._latch,
            )
        )
        self._go("broken")
        self._await_plan()

    def _await_plan(self) -> None:
        plan = self._recover
        if plan is None or plan.epoch <= self.epoch:
            return
        self._reset(plan)
        self._switching = None
        self._under = plan
        if self._latch:
            self._broken()
            return
        self._go("agree")
        self.fabric.enter(self, "agree", self.committed, self._agreed)

    def _reset(self, plan: Plan, *, watch: bool = True) -> None:
        self.membership, self.epoch = plan.membership, plan.epoch
        self._latch = ""
        self.sequence = 0
        self.linked = watch
        self.fabric.reset(self)
        self._note("is at epoch %d", self.epoch)
        if self._recover is not None and self._recover.epoch > self.epoch:
            self.trip("a newer plan is waiting")
        elif watch:
            self._rewatch()

    def _rewatch(self) -> None:
        self.linked = True
        self.after(self.sim.between(0.001, 0.01), self._dial_following, self.epoch)

    def _dial_following(self, epoch: int) -> None:
        if epoch != self.epoch:
            return
        peer = (self.rank + 1) % self.membership.layout.world_size
        seat = self.membership.members[self.membership.layout.slot_of(peer)]
        gone = self.fabric.at(seat.machine, seat.generation, peer) is None
        if gone and not self.unreachable(seat.machine):
            self._blame(peer, "refused")
            self.trip(f"rank {peer} cannot be reached")

    def unreachable(self, machine: str) -> bool:
        """Whether nothing answers there, not even a refusal; the machine overrides it."""
        del machine
        return False

    def _agreed(self, votes: list[Any]) -> None:
        plan, agreed = self._under, max(votes)
        assert plan is not None
        undecided, self._undecided = self._undecided, False
        self._recovering = self._unconfirmed = plan
        if agreed - self.committed > int(undecided):
            self._refuse(plan, f"completed {self.committed} steps, the others {agreed}")
            return
        if agreed == self.committed + 1:
            self._commit_step()
        self._settle()

    def _refuse(self, plan: Plan, reason: str) -> None:
        self._note("refuses %s: %s", plan.id, reason)
        self._failed(plan, reason)
        self.end(code=1)

    def _failed(self, plan: Plan, reason: str, *, links_broke: bool = False) -> None:
        self._report(
            executor.PlanFailed(
                migration=plan.id,
                machine=self.machine,
                rank=self.rank,
                epoch=plan.epoch,
                reason=reason,
                step_safe=True,
                links_broke=links_broke,
            )
        )

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
                self.fabric.deposit(plan.epoch, "capsule", joiner, self.committed)
        self._next(self.sim.between(0.001, 0.1), self._handed_out)

    def _handed_out(self) -> None:
        plan = self._recovering
        assert plan is not None
        self._switched(plan)
        self._recovering = None
        self._settle()

    def _switched(self, plan: Plan) -> None:
        self._report(
            executor.PlanSwitched(
                migration=plan.id,
                machine=self.machine,
                rank=self.rank,
                epoch=plan.epoch,
                step=self.committed,
                phases_s={},
            )
        )

    # -- a planned move --------------------------------------------------------------------------

    def _switch(self, plan: Plan) -> None:
        self._switching = None
        if self.rank not in plan.joining_ranks:
            self.membership, self.epoch, self.sequence = plan.membership, plan.epoch, 0
            self._unconfirmed = plan
            self._note("switched to epoch %d after step %d", plan.epoch, self.committed)
            self._switched(plan)
            self._rewatch()
            self._settle()
            return
        seat = plan.membership.members[self.slot]
        joiner = self.fabric.at(seat.machine, seat.generation, self.rank)
        if joiner is None or joiner.epoch != plan.epoch:
            self.trip("the joiner was lost when the switch was decided")
            self._settle()
            return
        self.fabric.deposit(plan.epoch, "rest", self.rank, (self.committed, self.digest))
        self._note("handed over after step %d", self.committed)
        self._switched(plan)
        self._go("left")
        self.linked = False
        self._given_back()

    def _given_back(self) -> None:
        if self._recover is not None and self._recover.epoch > self.epoch:
            self._latch = ""
            self.linked = True
            self._go("void")
            self.trip("the slot was given back")
            self._next(0.0, self._settle)

    def _lead(self, plan: Plan) -> None:
        if self._leading != plan:
            return
        seat = plan.membership.members[self.slot]
        joiner = self.fabric.at(seat.machine, seat.generation, self.rank)
        if joiner is None:
            self._failed(plan, "the joiner is gone")
        elif joiner.where == "joining" and joiner.epoch == plan.epoch:
            self._prepared = plan
            self._say_prepared(plan)
        else:
            self.after(0.1, self._lead, plan)

    def _end_lead(self) -> None:
        plan, self._leading = self._leading, None
        if plan is not None:
            self._hang_up(plan)

    def _hang_up(self, plan: Plan) -> None:
        seat = plan.membership.members[self.slot]
        joiner = self.fabric.at(seat.machine, seat.generation, self.rank)
        if joiner is not None and joiner.where == "joining" and joiner.epoch == plan.epoch:
            joiner.after(0.002, joiner.links_broke, joiner.turn, "the leaver ended the link")

    def leads(self, plan: Plan) -> bool:
        """Whether this leaver has called the joiner, and not hung up."""
        return self.alive and (self._leading == plan or self.where == "left")

    def _leaver_called(self) -> bool:
        plan = self._under
        return plan is not None and any(
            one.rank == self.rank and one is not self and one.leads(plan)
            for one in self.fabric.ranks
        )

    # -- the joiner ------------------------------------------------------------------------------

    def _wanted(self) -> Plan | None:
        for plan in (self._recover, self._joining):
            if plan is not None and plan.epoch > self.epoch:
                return plan
        return None

    def _idle(self) -> None:
        plan = self._wanted()
        if self.where != "idle" or plan is None:
            return
        self._under = plan
        self._reset(plan, watch=plan.kind == "failure")
        if self._latch:
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
        capsule = self.fabric.collect(plan.epoch, "capsule", self.rank)
        if kind == "state" and committed and capsule is None:
            return
        self.committed, self.digest = committed, digest
        self._unconfirmed = plan
        self._note("joined at epoch %d after step %d", plan.epoch, committed)
        self._switched(plan)
        self.standby, self._joining = False, None
        if plan.kind == "planned":
            self._rewatch()
        self._begin()

    def _could_not_join(self) -> None:
        plan = self._under
        assert plan is not None
        newer = self._recover is not None and self._recover.epoch > plan.epoch
        if not newer and plan in (self._joining, self._recover):
            self._failed(plan, self._latch, links_broke=True)
        self._go("idle")
        self._idle()

    # -- commands --------------------------------------------------------------------------------

    def obey(self, command: Frozen) -> None:
        """What the agent passes on."""
        match command:
            case Prepare(plan=plan):
                self._on_prepare(plan)
            case Recover(plan=plan):
                self._on_recover(plan)
            case AbortMigration():
                self._on_abort(command)
            case BreakStep(epoch=epoch, reason=reason) if epoch == self.epoch:
                self.trip(reason)
            case _:
                pass

    def _on_prepare(self, plan: Plan) -> None:
        if plan.epoch <= self.epoch or plan.epoch in self._seen_plans:
            return
        self._seen_plans.add(plan.epoch)
        if self.standby and self.rank in plan.joining_ranks:
            self._joining = plan
            if self._opened:
                self._say_prepared(plan)
            self._idle()
        elif self.rank in plan.joining_ranks:
            self.after(self.sim.between(0.005, 0.05), self._dialled, plan)
        else:
            self.after(self.sim.between(0.001, 0.2), self._parked, plan)

    def _joiner_of(self, plan: Plan, slot: int) -> SimRank | None:
        seat = plan.membership.members[slot]
        rank = plan.membership.layout.ranks_of(slot)[0]
        return self.fabric.at(seat.machine, seat.generation, rank)

    def _dialled(self, plan: Plan) -> None:
        if plan.epoch not in self._seen_plans or plan.epoch <= self.epoch:
            return
        if self._joiner_of(plan, self.slot) is None:
            self._failed(plan, "nobody listens at the joiner")
        else:
            self._end_lead()
            self._leading = plan

    def _parked(self, plan: Plan) -> None:
        if plan.epoch not in self._seen_plans or plan.epoch <= self.epoch:
            return
        joiners = [self._joiner_of(plan, move.slot) for move in plan.moves]
        if any(joiner is None for joiner in joiners):
            self._failed(plan, "nobody listens at the joiner")
        elif all(joiner is not None and joiner._opened for joiner in joiners):
            if self._recover is None or self._recover.epoch < plan.epoch:
                self._prepared = plan
            self._say_prepared(plan)
        else:
            self.after(0.1, self._parked, plan)

    def _say_prepared(self, plan: Plan) -> None:
        self._report(
            executor.PlanPrepared(
                migration=plan.id,
                machine=self.machine,
                rank=self.rank,
                epoch=plan.epoch,
                prepare_s=0.1,
            )
        )

    def _on_recover(self, plan: Plan) -> None:
        if plan.epoch <= self.epoch or plan.membership.machine_of(self.rank) != self.machine:
            return
        if self._recover is None or plan.epoch > self._recover.epoch:
            self._recover = plan
            self._prepared = self._joining = None
            self._end_lead()
        if self.where == "left":
            self._given_back()
        elif self.where == "idle":
            self._idle()
        elif self.where == "broken":
            self._await_plan()
        else:
            self.trip(f"migration {plan.id} takes the job to epoch {plan.epoch}")

    def _on_abort(self, command: AbortMigration) -> None:
        epoch = command.epoch
        if self.standby and not self.linked:
            if self._joining is not None and self._joining.epoch == epoch:
                self._joining = None
            if epoch == self.epoch and not self._leaver_called():
                self.trip(f"{command.migration} was aborted")
            return
        if epoch <= self.epoch or self.where == "left":
            return
        self._seen_plans.discard(epoch)
        if self._in_vote and self._prepared is not None and self._prepared.epoch == epoch:
            self._abort_pending = True
            return
        if self._leading is not None and self._leading.epoch == epoch:
            self._end_lead()
        if self._prepared is not None and self._prepared.epoch == epoch:
            self._prepared = None
