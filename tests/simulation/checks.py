"""What must hold at every moment of every run; each rule has the name that the design gives it."""

from __future__ import annotations

from collections.abc import Iterable

from trainmover.commands import Command, Prepare, Recover, Start
from trainmover.events.executor import StepBroken
from trainmover.events.migration import JobFormed, MigrationCommitted
from trainmover.job.plan import Plan
from trainmover.job.topology import Membership
from trainmover.testing.simulation import StoredFact

__all__ = ["Checks", "ViolationError"]


class ViolationError(AssertionError):
    """An invariant does not hold."""


class Checks:
    """Watches everything that crosses the bus and every vote that passes.

    Attributes:
        step: Steps that passed their vote.
        calm: No member was harmed so far: no step may break and nothing needs a recovery.
    """

    def __init__(self) -> None:
        self.step = 0
        self.voted_epoch = 0
        self.calm = True
        self._memberships: dict[int, Membership] = {}
        self._plans: dict[str, Plan] = {}
        self._planned: set[int] = set()
        self._witnesses: set[tuple[str, int]] = set()
        self._owners: dict[tuple[int, int], tuple[str, int]] = {}

    def vote(
        self,
        *,
        epoch: int,
        voters: Iterable[tuple[int, tuple[str, int], int, int]],
    ) -> None:
        """A vote passed: every rank of the epoch took part.

        Args:
            epoch: The epoch.
            voters: (slot, incarnation, completed steps, digest of the state) of each rank.
        """
        voters = list(voters)
        if len({(committed, digest) for _, _, committed, digest in voters}) != 1:
            self.fail("INV-SAME-BITS", f"ranks voted with different states: {voters}")
        committed = voters[0][2]
        again = committed == self.step - 1 and not self._witnesses & {
            incarnation for _, incarnation, _, _ in voters
        }
        if again and self.voted_epoch < epoch and epoch not in self._planned:
            self.step -= 1  # all who knew that it counted are dead: a failure may cost this step
        if committed != self.step:
            what = "redone" if committed < self.step else "skipped"
            self.fail("INV-NO-LOST-STEP", f"after step {self.step}, step {committed} was {what}")
        if epoch < self.voted_epoch:
            self.fail("INV-EPOCH-MONOTONE", f"a vote passed at {epoch} after {self.voted_epoch}")
        for slot, incarnation, _, _ in voters:
            owner = self._owners.setdefault((slot, epoch), incarnation)
            if owner != incarnation:
                self.fail("INV-ONE-OWNER", f"slot {slot} at {epoch}: {owner} and {incarnation}")
        self.voted_epoch = epoch
        self.step += 1
        self._witnesses = set()

    def witness(self, incarnation: tuple[str, int]) -> None:
        """A rank of this incarnation knows that the latest vote passed."""
        self._witnesses.add(incarnation)

    def command(self, machine: str, command: Command) -> None:
        """The planner sent this."""
        del machine
        match command:
            case Prepare(plan=plan) | Recover(plan=plan):
                self._plan(plan)
                if self.calm and plan.kind == "failure":
                    self.fail("INV-LEAVER-WHOLE", f"{plan.id} recovers a job that is well")
            case Start(membership=membership):
                self._check_epoch(membership)
            case _:
                pass

    def fact(self, fact: StoredFact) -> None:
        """The bus stored this."""
        match fact.payload:
            case JobFormed(membership=membership) | MigrationCommitted(membership=membership):
                self._check_epoch(membership)
            case StepBroken(machine=machine, epoch=epoch) if self.calm:
                self.fail("INV-LEAVER-WHOLE", f"a step of {machine} broke at {epoch}: why?")
            case _:
                pass

    def _plan(self, plan: Plan) -> None:
        if plan.kind == "planned":
            self._planned.add(plan.epoch)
        known = self._plans.setdefault(plan.id, plan)
        if known is not plan and known != plan:
            self.fail("INV-EPOCH-MONOTONE", f"{plan.id} means two plans")
        self._check_choice(plan)
        self._check_epoch(plan.membership)

    def _check_choice(self, plan: Plan) -> None:
        """Who was chosen joins, once, and nobody who rests was cheaper for the slot."""
        chosen = {one.slot: one for one in plan.candidates if one.chosen}
        taken = [one.machine for one in chosen.values()]
        if len(set(taken)) != len(taken):
            self.fail("INV-CHOICE", f"{plan.id} gives two slots to one of {taken}")
        for one in plan.candidates:
            mine = chosen.get(one.slot)
            if mine is None or plan.membership.members[one.slot].machine != mine.machine:
                self.fail(
                    "INV-CHOICE", f"{plan.id} chose {mine} for slot {one.slot}: another joins"
                )
            elif one.machine not in taken and one.cost < mine.cost:
                self.fail("INV-CHOICE", f"{plan.id} takes {mine}, and {one} costs less")
        joining = {move.slot for move in plan.moves if plan.kind == "planned"}
        if joining - chosen.keys():
            self.fail("INV-CHOICE", f"{plan.id} does not say who else could take {joining}")

    def _check_epoch(self, membership: Membership) -> None:
        known = self._memberships.setdefault(membership.epoch, membership)
        if known is not membership and known != membership:
            self.fail("INV-EPOCH-MONOTONE", f"epoch {membership.epoch} means two memberships")

    @staticmethod
    def fail(name: str, what: str) -> None:
        """Stop the run.

        Raises:
            ViolationError: Always.
        """
        raise ViolationError(f"{name}: {what}")
