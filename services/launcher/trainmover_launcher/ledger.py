"""When is a local job over, and how did it end? Pure: facts and process exits in, ending out.

The bus may die in mid-run and training goes on (INV-NO-BUS-ON-PATH), so what the bus says is
believed when it says something, and the exit codes of the machines decide when it does not.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from trainmover.events.envelope import Envelope
from trainmover.events.machine import MachineLost, MachineRegistered, WorkerExited
from trainmover.events.migration import (
    JobFailed,
    JobFinished,
    JobFormed,
    MigrationAborted,
    MigrationApproved,
    MigrationCommitted,
    MigrationFailed,
)
from trainmover.job.topology import Membership

__all__ = ["Ending", "Ledger"]


@dataclass(frozen=True, slots=True)
class Ending:
    """How the job ended.

    Attributes:
        ok: Whether every slot's program ended normally.
        reason: One sentence for people.
        next_step: What they can do about it; empty when there is nothing to do.
        exhausted: Only machines were missing: the same job may be started again.
    """

    ok: bool
    reason: str
    next_step: str = ""
    exhausted: bool = False


@dataclass(slots=True)
class Ledger:
    """What the supervisor knows about the job.

    Attributes:
        nnodes_min: Slots of the job.
        running: Machines of this launcher whose agent process runs.
        membership: Latest membership heard of, None before the job formed.
    """

    nnodes_min: int
    running: set[str]
    membership: Membership | None = None
    _exit_codes: dict[str, int] = field(default_factory=dict)
    _released: set[str] = field(default_factory=set)
    _guests: set[str] = field(default_factory=set)
    _down: set[str] = field(default_factory=set)
    _open_plans: dict[str, frozenset[str]] = field(default_factory=dict)
    _bad_ranks: dict[int, WorkerExited] = field(default_factory=dict)
    _ending: Ending | None = None

    @property
    def active(self) -> frozenset[str]:
        """Machines that fill a slot, as far as is known."""
        if self.membership is None:
            return frozenset()
        return frozenset(member.machine for member in self.membership.members)

    @property
    def services_down(self) -> frozenset[str]:
        """Services that died and are not back."""
        return frozenset(self._down)

    def service_died(self, name: str) -> None:
        """The detector, the planner or the bus is gone for now."""
        self._down.add(name)

    def service_back(self, name: str) -> None:
        """A service that had died was started again and stayed."""
        self._down.discard(name)

    def agent_exited(self, machine: str, exit_code: int) -> None:
        """A machine's agent process ended."""
        self.running.discard(machine)
        self._exit_codes[machine] = exit_code

    def learn(self, event: Envelope) -> None:
        """Take in one fact from the bus."""
        match event.payload:
            case JobFormed(membership=membership):
                self.membership = membership
            case MigrationApproved(migration=migration, plan=plan):
                self._open_plans[migration] = frozenset(move.leaver for move in plan.moves)
            case MigrationCommitted(migration=migration, leaver=leaver, membership=membership):
                self.membership = membership
                self._open_plans.pop(migration, None)
                self._released.add(leaver)
                self._bad_ranks.clear()
            case MigrationAborted(migration=migration) | MigrationFailed(migration=migration):
                self._open_plans.pop(migration, None)
            case MachineRegistered() | MachineLost() | WorkerExited():
                self._learn_of_machine(event.payload)
            case JobFinished(step=step):
                self._ending = Ending(ok=True, reason=f"finished after {step} steps")
            case JobFailed(reason=reason, next_step=next_step, code=code):
                # A program that raises may look like a lost machine to the planner.
                raised = self._program_error() if code == "failed" else None
                self._ending = raised or Ending(
                    ok=False, reason=reason, next_step=next_step, exhausted=code == "exhausted"
                )
            case _:
                pass

    def _learn_of_machine(self, fact: MachineRegistered | MachineLost | WorkerExited) -> None:
        match fact:
            case MachineRegistered(machine=machine):
                self._released.discard(machine.name)
                if not self._is_ours(machine.name):
                    self._guests.add(machine.name)
            case MachineLost(machine=name):
                self._guests.discard(name)
            case WorkerExited(rank=rank, exit_code=code, machine=name) if code:
                # Nobody says how the program of another machine ended.
                if self.membership is not None and self.membership.holds(name, rank):
                    self._bad_ranks[rank] = fact
            case _:
                pass

    def ending(self) -> Ending | None:
        """How the job ended, or None while it goes on."""
        if self._ending is not None:
            return self._ending
        finished = {name for name, code in self._exit_codes.items() if code == 0}
        awaited = self.active - (self._guests - self._heard_of)
        if awaited and awaited <= finished:
            return Ending(ok=True, reason="finished: every active machine ended normally")
        # A switch that completed after the bus died is not in our membership: then count.
        if self.active and len(finished - self._released) >= len(self.active):
            return Ending(ok=True, reason="finished: every active machine ended normally")
        return self._program_failed() or self._too_few()

    def stranded(self) -> Ending | None:
        """A machine is lost and nobody is left to replace it; None when all is well.

        A recovery that was already under way may still complete, so a caller allows some grace.
        """
        if not self._down:
            return None
        covered = frozenset().union(*self._open_plans.values())
        lost = sorted(name for name in self.active - covered if self._exit_codes.get(name, 0) != 0)
        if not lost:
            return None
        return Ending(
            ok=False,
            reason=f"{', '.join(lost)} was lost while {', '.join(sorted(self._down))} was down: "
            "nobody can choose a standby",
            next_step="Start the job again from its last checkpoint.",
        )

    def _program_failed(self) -> Ending | None:
        if self.membership is None:
            return None
        everywhere = set(self._bad_ranks) == set(range(self.membership.layout.world_size))
        return self._program_error() if everywhere else None

    def _program_error(self) -> Ending | None:
        if not self._bad_ranks:
            return None
        rank = min(self._bad_ranks)
        exited = self._bad_ranks[rank]
        words = exited.last_words.strip().splitlines()
        return Ending(
            ok=False,
            reason=f"the program of rank {rank} ended with exit code {exited.exit_code}"
            + (f": {words[-1]}" if words else ""),
            next_step="Fix the program; its whole output is in the log folder.",
        )

    def _too_few(self) -> Ending | None:
        left = self.running | self._heard_of
        if self.membership is None and len(left) < self.nnodes_min:
            reason = (
                f"the job needs {self.nnodes_min} machines to form, "
                f"{len(left)} are left ({self._exits()})"
            )
        elif not left:
            reason = f"every machine ended ({self._exits()})"
        else:
            return None
        return Ending(ok=False, reason=reason, next_step="Read the machines' logs.")

    @property
    def _heard_of(self) -> set[str]:
        """Machines that others started, while somebody is there to say what becomes of them."""
        return set() if self._down & {"bus", "planner"} else self._guests

    def _is_ours(self, machine: str) -> bool:
        return machine in self.running or machine in self._exit_codes

    def _exits(self) -> str:
        if not self._exit_codes:
            return "none started"
        return ", ".join(f"{name}: {code}" for name, code in sorted(self._exit_codes.items()))
