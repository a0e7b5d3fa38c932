"""Is a machine dead? Joins exit reports, broken links and silence; pure.

One witness that cannot lie is enough (the exit code from ``waitpid``); otherwise two have to
agree. Trouble of the bus, or of this process, must never look like the death of a machine.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, ClassVar, Final

from pydantic import Field

from trainmover.detection import CollectiveWindow, DetectorConfig, Evidence, Finding
from trainmover.events.executor import StepBroken, StepProgress, WorkerFinished
from trainmover.events.machine import (
    LinkLost,
    MachineLost,
    MachineQuarantined,
    MachineRegistered,
    MachineReleased,
    WorkerExited,
)
from trainmover.job.topology import Membership

__all__ = ["LivenessConfig", "LivenessDetector"]

_NEVER_HEARD_LEASES: Final = 10


class LivenessConfig(DetectorConfig):
    """Settings of ``liveness``.

    Attributes:
        lease_s: A machine that sends nothing for so long, while others do and no step is
            committed, has failed.
        hush_s: Silence that makes one broken link enough evidence.
        outage_s: When nobody sends anything for so long, it is the bus or this process.
    """

    lease_s: float = Field(default=3.0, gt=0)
    hush_s: float = Field(default=0.6, gt=0)
    outage_s: float = Field(default=1.0, gt=0)


class LivenessDetector:
    """Names machines that failed."""

    api_version: ClassVar[int] = 1
    reads: ClassVar[frozenset[str]] = frozenset({"steps"})
    Config = LivenessConfig

    def __init__(self, config: LivenessConfig = LivenessConfig()) -> None:  # noqa: B008 - frozen
        self._lease_s = config.lease_s
        self._hush_s = config.hush_s
        self._outage_s = config.outage_s
        self._membership: Membership | None = None
        self._held_since_s: dict[tuple[str, int], float] = {}
        self._generations: dict[str, int] = {}
        self._heard_s: dict[str, float] = {}
        self._latest_s: float | None = None
        self._ticked_s: float | None = None
        self._calm_since_s = 0.0
        self._step = -1
        self._stepped_s = 0.0
        self._accused: dict[str, dict[str, LinkLost]] = {}
        self._witnesses: set[str] = set()
        self._finished: set[str] = set()
        self._named: set[str] = set()

    def observe(self, window: CollectiveWindow) -> Iterable[Finding]:
        """A sign of life, with or without records."""
        self._heard(window.machine, window.received_s)
        if len(window.steps):
            self._stepped(window.epoch, int(window.steps["step"].max()), window.received_s)
        return ()

    def notice(self, evidence: Evidence) -> Iterable[Finding]:
        """An exit, a broken link, or something that explains silence."""
        fact, now_s = evidence.fact, evidence.received_s
        match fact:
            case WorkerExited():
                return self._exited(fact)
            case LinkLost():
                return self._link_lost(fact, now_s)
            case StepBroken(machine=machine, epoch=epoch):
                if self._membership is not None and epoch >= self._membership.epoch:
                    self._witnesses.add(machine)
            case StepProgress(epoch=epoch, step=step):  # arrives where telemetry gets lost
                self._stepped(epoch, step, now_s)
            case WorkerFinished(machine=machine):
                self._finished.add(machine)
            case MachineRegistered(machine=registered):
                self._generations[registered.name] = registered.generation
                self._heard_s.pop(registered.name, None)
                self._finished.discard(registered.name)
                if not self._holds_slot(registered.name):
                    self._named.discard(registered.name)
            case (
                MachineLost(machine=machine)
                | MachineQuarantined(machine=machine)
                | MachineReleased(machine=machine)
            ):
                self._heard_s.pop(machine, None)
                self._generations.pop(machine, None)
            case _:
                pass
        return ()

    def membership_changed(self, membership: Membership) -> None:
        """A new epoch: links are new, and so is what they tell."""
        self._membership = membership
        known = {(one.machine, one.generation) for one in membership.members}
        self._held_since_s = {one: at_s for one, at_s in self._held_since_s.items() if one in known}
        self._accused.clear()
        self._witnesses.clear()
        self._named.clear()

    def tick(self, now_s: float) -> Iterable[Finding]:
        """Look for silence."""
        if self._ticked_s is None or now_s - self._ticked_s > self._outage_s:
            self._calm_since_s = now_s  # we ourselves were away: everybody gets a fresh lease
        self._ticked_s = now_s
        # In a large job this is too much for each tick, and only a membership change brings news.
        if self._membership is not None and len(self._held_since_s) < len(self._membership.members):
            for one in self._membership.members:
                self._held_since_s.setdefault((one.machine, one.generation), now_s)
        if self._latest_s is None or now_s - self._latest_s > self._outage_s:
            return ()
        return [*self._judge_links(now_s), *self._judge_silence(now_s)]

    # -- evidence --------------------------------------------------------------------------------

    def _heard(self, machine: str, now_s: float) -> None:
        if self._latest_s is None or now_s - self._latest_s > self._outage_s:
            self._calm_since_s = now_s  # the bus is back: everybody gets a fresh lease
        self._latest_s = max(now_s, self._latest_s or now_s)
        self._heard_s[machine] = now_s

    def _stepped(self, epoch: int, step: int, now_s: float) -> None:
        current = self._membership is not None and epoch == self._membership.epoch
        if current and step > self._step:
            self._step, self._stepped_s = step, now_s

    def _exited(self, fact: WorkerExited) -> Iterable[Finding]:
        slot = self._slot(fact.machine, fact.generation)
        if slot is None:
            return ()
        how = f"signal {fact.signal}" if fact.signal is not None else f"exit code {fact.exit_code}"
        return self._name(
            fact.machine,
            rank=fact.rank,
            confidence=1.0,
            summary=f"{fact.machine}: the process of rank {fact.rank} ended ({how})",
            evidence={
                "witness": "waitpid",
                "exit_code": fact.exit_code,
                "signal": fact.signal,
                "last_words": fact.last_words[-500:],
            },
        )

    def _link_lost(self, fact: LinkLost, now_s: float) -> Iterable[Finding]:
        membership = self._membership
        if membership is None or fact.epoch != membership.epoch:
            return ()
        if not self._holds_slot(fact.peer_machine) or not self._holds_slot(fact.machine):
            return ()
        if fact.peer_machine == fact.machine:
            return ()
        self._witnesses.add(fact.machine)
        self._accused.setdefault(fact.peer_machine, {})[fact.machine] = fact
        return self._judge_links(now_s)

    # -- judgement -------------------------------------------------------------------------------

    def _judge_links(self, now_s: float) -> list[Finding]:
        findings: list[Finding] = []
        membership = self._membership
        if membership is None:
            return findings
        for machine, reports in self._accused.items():
            hushed_s = now_s - max(self._heard_s.get(machine, 0.0), self._calm_since_s)
            hushed = hushed_s > self._hush_s and self._others_talk(machine, now_s)
            # Who says that its own links broke is alive; a cut between two makes both say so.
            if machine in self._witnesses and not hushed:
                continue
            enough = min(2, membership.layout.slots - 1)
            if len(reports) < enough and not hushed:
                continue
            # Nobody answers there: it may only be late. Silence makes it evidence, a second
            # refusal does not.
            if not hushed and any(report.kind == "refused" for report in reports.values()):
                continue
            reporters = sorted(reports)
            findings += self._name(
                machine,
                rank=next(iter(reports.values())).peer_rank,
                confidence=0.95 if len(reports) >= 2 else 0.85,
                summary=f"{machine}: its links to {', '.join(reporters)} {_how(reports.values())}"
                + (f" and it is silent for {hushed_s:.1f} s" if hushed else ""),
                evidence={
                    "witness": "links",
                    "reporters": reporters,
                    "silent_s": round(hushed_s, 3) if hushed else None,
                },
            )
        return findings

    def _judge_silence(self, now_s: float) -> list[Finding]:
        findings: list[Finding] = []
        # Counted from when it got its slot, not from the latest epoch: recoveries that follow each
        # other because it is dead must not keep it from being found so.
        held_since_s = {machine: at_s for (machine, _), at_s in self._held_since_s.items()}
        never = held_since_s.keys() - self._heard_s.keys()
        heard = self._heard_s.items()
        overdue = {machine for machine, at_s in heard if now_s - at_s >= self._lease_s}
        for machine in sorted(never | overdue):
            heard_s = self._heard_s.get(machine)
            since_s = max(heard_s or held_since_s.get(machine, now_s), self._calm_since_s)
            if self._holds_slot(machine):
                # No step is committed without the vote of every member: whose peers get on is
                # alive, and has lost nothing but the bus.
                since_s = max(since_s, self._stepped_s)
            leases = 1 if heard_s is not None else _NEVER_HEARD_LEASES
            silent_s = now_s - since_s
            if silent_s < leases * self._lease_s or not self._others_talk(machine, now_s):
                continue
            findings += self._name(
                machine,
                rank=None,
                confidence=0.9,
                summary=f"{machine}: silent for {silent_s:.1f} s while others talk",
                evidence={"witness": "lease", "silent_s": round(silent_s, 3)},
            )
        return findings

    def _others_talk(self, machine: str, now_s: float) -> bool:
        """Whether somebody else was heard just now: then it is not the bus."""
        return any(
            other != machine and now_s - heard_s <= self._outage_s
            for other, heard_s in self._heard_s.items()
        )

    def _name(
        self,
        machine: str,
        *,
        rank: int | None,
        confidence: float,
        summary: str,
        evidence: Mapping[str, Any],
    ) -> list[Finding]:
        if machine in self._named or machine in self._finished:
            return []
        self._named.add(machine)
        return [
            Finding(
                "machine_failed", machine, rank, confidence, summary, evidence, advice="recover"
            )
        ]

    def _holds_slot(self, machine: str) -> bool:
        return (
            self._membership is not None and self._membership.slot_of_machine(machine) is not None
        )

    def _slot(self, machine: str, generation: int) -> int | None:
        if self._membership is None:
            return None
        slot = self._membership.slot_of_machine(machine)
        if slot is None or self._membership.members[slot].generation != generation:
            return None
        return slot


def _how(reports: Iterable[LinkLost]) -> str:
    kinds = {report.kind for report in reports}
    return "were reset" if "reset" in kinds else "were refused"
