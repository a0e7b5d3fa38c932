"""Does the job stand still, and because of whom? Hangs of processes, of links, of programs; pure.

A job is looked at closely only when it made no step for longer than its own steps explain. Then the
operations that have not ended tell: ranks that never entered what the others are in (a hang outside
communication), links on which what was sent does not arrive (a hang of communication), or ranks
that are in different operations (a mismatch).
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import ClassVar, Final

import numpy as np
import numpy.typing as npt
from pydantic import Field

from trainmover.detection import CollectiveWindow, DetectorConfig, Evidence, Finding
from trainmover.events.executor import StepBroken, WorkerFinished
from trainmover.events.machine import LinkLost, WorkerExited
from trainmover.job.topology import Membership
from trainmover.telemetry.records import HEAD, LINK, PULSE, RECORD, STEP, Phase
from trainmover_detector.detectors.hang.findings import STOPPED, Stay, hang_of, link_hangs, phase_of
from trainmover_detector.measures.inbox import FEW_RANKS, join_records
from trainmover_detector.measures.mismatch import find_mismatch
from trainmover_detector.measures.steps import StepTimes
from trainmover_detector.measures.waits import Standstill, find_waits

__all__ = ["HangConfig", "HangDetector"]

_ELSEWHERE: Final = frozenset({Phase.OUTSIDE, Phase.LOADER})
_LEAST_STEPS: Final = 3
_BATCHES_S: Final = 0.5
"""Between two batches of a machine: news is so old at most."""
_REPEAT_S: Final = 1.0
_LOOK_RANKS: Final = 12_288
"""Jobs up to so many ranks may be looked at closely with each tick."""
_CHAINS: Final = 4
"""The way to so many of them is told; each is a walk through the whole job."""
_MOST_NAMED: Final = 64
"""Machines that are named at once: if it is more of them, it is none of them."""

Records = npt.NDArray[np.void]


class HangConfig(DetectorConfig):
    """Settings of ``hang``.

    Attributes:
        least_s: A job that makes steps is never called hung before this, in seconds.
        steps: Nor before so many of its own steps (their 90th percentile) have passed.
        longest: Nor before so many times its longest step in the last 2,000 or so.
        longest_alive: The same where the process that is waited for lives and may be busy.
        young_steps: A job, or an epoch, with fewer steps than that behind it ...
        young: ... has this many times the patience.
        silent_s: A process that says nothing for so long while its machine does is frozen.
        machine_silent_s: A machine that says nothing for so long is another detector's business.
        outside_s: A rank that is in the program between two steps (a checkpoint, an evaluation)
            is given this long; three times its longest stay so far if that is more.
        loader_s: The same for drawing a batch.
        recover_frozen_s: After this long, treat the machine of a frozen process as dead.
        recover_alive_s: The same where the process still lives; 0: leave that to people.
    """

    least_s: float = Field(default=1.2, gt=0)
    steps: float = Field(default=2.2, gt=1)
    longest: float = Field(default=1.4, ge=1)
    longest_alive: float = Field(default=1.5, ge=1)
    young_steps: int = Field(default=24, ge=0)
    young: float = Field(default=3.0, ge=1)
    silent_s: float = Field(default=1.0, gt=0)
    machine_silent_s: float = Field(default=1.2, gt=0)
    outside_s: float = Field(default=120.0, gt=0)
    loader_s: float = Field(default=10.0, gt=0)
    recover_frozen_s: float = Field(default=6.0, gt=0)
    recover_alive_s: float = Field(default=0.0, ge=0)


class HangDetector:
    """Names who makes a job stand still."""

    api_version: ClassVar[int] = 1
    # Of operations it asks only which ranks ended any, and that is counted on either side.
    reads: ClassVar[frozenset[str]] = frozenset(
        {"activity", "heads", "links", "open", "pulses", "steps"}
    )
    Config = HangConfig

    def __init__(self, config: HangConfig = HangConfig()) -> None:  # noqa: B008 - frozen
        self._config = config
        self._membership: Membership | None = None
        self._reset()

    def _reset(self) -> None:
        self._latest: dict[str, CollectiveWindow] = {}
        self._groups: dict[int, tuple[range, ...]] = {}
        self._times = StepTimes(warm_up=_LEAST_STEPS, young=self._config.young_steps)
        world = 0 if self._membership is None else self._membership.layout.world_size
        self._at_once = world <= FEW_RANKS
        self._unread: list[CollectiveWindow] = []
        self._acted_s = np.zeros(world)
        self._step = -1
        self._steps_seen = 0
        self._moved_s: float | None = None
        self._began_s = 0.0
        self._explained = False
        self._findings: dict[tuple[str, str | None, tuple[int, int] | None], Finding] = {}
        self._said_s = 0.0
        self._judged_s = -math.inf
        # A close look at a large job takes a good part of a second.
        self._pause_s = world / _LOOK_RANKS if world > _LOOK_RANKS else 0.0

    def membership_changed(self, membership: Membership) -> None:
        """A new epoch: everybody's operations are numbered anew."""
        self._membership = membership
        self._reset()

    def observe(self, window: CollectiveWindow) -> Iterable[Finding]:
        """Take in where a machine's ranks are; a step that completes ends every hang."""
        if self._membership is None or window.epoch != self._membership.epoch:
            return ()
        if not len(window.pulses) and not len(window.steps) and not len(window.open):
            return ()
        self._latest[window.machine] = window
        if window.groups:
            self._groups.update(window.groups)
        self._unread.append(window)
        return self._read() if self._at_once else ()

    def _read(self) -> list[Finding]:
        """Look at the windows since the last time together."""
        windows, self._unread = self._unread, []
        now_s = windows[-1].received_s
        acted = [w.records["rank"] for w in windows if len(w.records)]
        acted += [w.activity["rank"] for w in windows if len(w.activity)]
        running = join_records([w.pulses for w in windows], PULSE)
        if acted:
            self._note_acted(np.concatenate(acted), running, now_s)
        newest = -1
        steps = [w.steps for w in windows if len(w.steps)]
        if steps:
            newest = max(int(each["step"][-1]) for each in steps) + 1
            self._times.learn(join_records(steps, STEP), now_s)
        if len(running):
            newest = max(newest, int(running["step"].max()))
        if newest > self._step:
            self._steps_seen += self._step >= 0
            self._step, self._moved_s, self._explained = newest, now_s, False
            began_s = _in_phase_s(running[running["step"] == newest]).max(initial=0.0)
            self._began_s = now_s - float(began_s)
            return self._over()
        return []

    def _note_acted(self, ranks: npt.NDArray[np.int64], running: Records, now_s: float) -> None:
        """Ranks ended operations; where a phase is younger than that, perhaps those before it."""
        world = len(self._acted_s)
        since_s = np.zeros(world)
        there = running[(running["rank"] >= 0) & (running["rank"] < world)]
        in_phase_s = _in_phase_s(there)
        since_s[there["rank"]] = np.where(in_phase_s < _BATCHES_S, in_phase_s, 0.0)
        ranks = ranks[(ranks >= 0) & (ranks < world)]
        self._acted_s[ranks] = now_s - since_s[ranks]

    def notice(self, evidence: Evidence) -> Iterable[Finding]:
        """A break that has an explanation, or the end of the job, is no hang."""
        if isinstance(evidence.fact, StepBroken | WorkerExited | LinkLost | WorkerFinished):
            self._explained = True
        return ()

    def tick(self, now_s: float) -> Iterable[Finding]:
        """Look whether the job still moves."""
        if self._unread:
            return [*self._read(), *self._stands_still(now_s)]
        return self._stands_still(now_s)

    def _stands_still(self, now_s: float) -> Iterable[Finding]:
        membership, moved_s = self._membership, self._moved_s
        if membership is None or moved_s is None or self._explained:
            return ()
        still_s = now_s - self._began_s
        if self._steps_seen < _LEAST_STEPS or still_s < self._config.least_s:
            return ()
        if still_s < self.patience_s():
            return ()  # not even a frozen process would be due
        said_s = self._said_s if self._findings else -math.inf
        if now_s - said_s < _REPEAT_S or now_s - self._judged_s < self._pause_s:
            return ()
        now = self._gather(membership, moved_s, now_s)
        if now is None:
            return ()
        self._judged_s = now_s
        return self._say(self._judge(now, membership, still_s, now_s), now_s)

    def patience_s(self, *, alive: bool = False) -> float:
        """How long the job may stand still; longer when the one it waits for lives."""
        config, pace = self._config, self._times.pace
        if not pace:
            return config.least_s * config.young
        usual_s, longest_s = pace.usual_s(0.9), pace.longest_s
        times = config.longest_alive if alive else config.longest
        patience_s = max(config.least_s, config.steps * usual_s, times * longest_s)
        return patience_s * (config.young if pace.is_young else 1.0)

    # -- what is known ---------------------------------------------------------------------------

    def _gather(self, membership: Membership, moved_s: float, now_s: float) -> Standstill | None:
        windows = list(self._latest.values())
        names = {member.machine for member in membership.members}
        # Machines of large jobs speak half as often.
        silent_s = self._config.machine_silent_s * (1 if self._at_once else 2)
        heard = {w.machine for w in windows if now_s - w.received_s < silent_s}
        if not names <= heard:
            return None  # a whole machine is silent: its processes cannot be judged
        if any(window.received_s < moved_s for window in windows):
            return None  # not everybody has been heard since
        pulses = np.concatenate([w.pulses for w in windows] or [np.zeros(0, PULSE)])
        phases = set(pulses["phase"].tolist())
        if phases & {Phase.MOVING, Phase.STARTING, Phase.DONE}:
            return None
        age_s, stopped = pulses["age_ns"] * 1e-9, np.isin(pulses["state"], list(STOPPED))
        silent_s = self._config.silent_s
        # A process may hold its interpreter's lock for a while; one that is stopped does not.
        stale = pulses["rank"][age_s > np.where(stopped, silent_s, 1.5 * silent_s)]
        heads = np.concatenate([w.heads for w in windows] or [np.zeros(0, HEAD)])
        places = zip(heads["group"].tolist(), heads["rank"].tolist(), strict=True)
        issued = dict(zip(places, heads["issued"].tolist(), strict=True))
        return Standstill(
            open=np.concatenate([w.open for w in windows] or [np.zeros(0, RECORD)]),
            pulses=pulses,
            links=np.concatenate([w.links for w in windows] or [np.zeros(0, LINK)]),
            issued=issued,
            groups=self._groups,
            stale=frozenset(stale.tolist()),
        )

    # -- judgement -------------------------------------------------------------------------------

    def _judge(
        self, now: Standstill, membership: Membership, still_s: float, now_s: float
    ) -> list[Finding]:
        if (found := find_mismatch(now, membership)) is not None:
            return [found]
        waits = find_waits(now)
        stay = Stay(step=self._step, still_s=still_s, patience_s=self.patience_s())
        # Whoever is in an operation that all have entered communicates; it does not hold them up.
        inside = set(now.open["rank"].tolist()) - now.stale
        outside = [rank for rank in waits.roots if rank not in inside]
        roots = self._due(outside, now, membership, now_s)
        if roots and len(roots) * 3 > max(6, len(now.pulses)) and still_s < 3 * stay.patience_s:
            return []  # so many at once are rather news that has not come yet
        if roots:
            if not now.stale.isdisjoint(roots):
                self._times.frozen_step = self._step
            by_machine: dict[str, list[int]] = {}
            for rank in roots:
                by_machine.setdefault(membership.machine_of(rank), []).append(rank)
            named = [*by_machine.items()][:_MOST_NAMED]
            return [
                hang_of(
                    ranks,
                    now,
                    waits,
                    stay,
                    machine=machine,
                    limit_s=self._recover_s(frozen=ranks[0] in now.stale),
                    told=number < _CHAINS,
                )
                for number, (machine, ranks) in enumerate(named)
            ]
        if outside or not self._all_stuck(now):
            return []
        return link_hangs(now, waits, membership, stay)

    def _recover_s(self, *, frozen: bool) -> float:
        """How long a job stands still before the machine that holds it up is taken for dead."""
        config = self._config
        return config.recover_frozen_s if frozen else config.recover_alive_s or math.inf

    def _due(
        self, outside: list[int], now: Standstill, membership: Membership, now_s: float
    ) -> list[int]:
        """Those of the ranks that wait for nobody that have been where they are for too long."""
        there = now.pulses[np.isin(now.pulses["rank"], outside)]
        pulses = {int(pulse["rank"]): pulse for pulse in there}
        heard_s = {w.machine: w.received_s for w in self._latest.values()}
        due, elsewhere = [], False
        for rank in outside:
            pulse = pulses.get(rank)
            at_s = heard_s.get(membership.machine_of(rank), now_s)
            if self._is_due(rank, pulse, now, now_s, heard_s=at_s):
                due.append(rank)
            elif pulse is not None:
                elsewhere |= phase_of(pulse) in _ELSEWHERE
        # Who is between two steps, and has time yet, explains it all but a process that is frozen.
        return [rank for rank in due if rank in now.stale] if elsewhere else due

    def _is_due(
        self,
        rank: int,
        pulse: np.void | None,
        now: Standstill,
        now_s: float,
        *,
        heard_s: float,
    ) -> bool:
        """Whether a rank has been where it is for too long; one between two steps has more time.

        Args:
            rank: Whom the others wait for.
            pulse: Its latest sign of life.
            now: All that is known.
            now_s: The time.
            heard_s: When the sign of life came.
        """
        if pulse is None:
            return True
        phase = phase_of(pulse)
        there_s = (float(pulse["phase_ns"]) + float(pulse["age_ns"])) * 1e-9 + now_s - heard_s
        # It may have waited for somebody until a moment ago.
        there_s = min(there_s, now_s - float(self._acted_s[rank]))
        if rank in now.stale:
            return True
        if phase is None or phase not in _ELSEWHERE:
            return there_s >= self.patience_s(alive=True)
        config = self._config
        floor_s = config.outside_s if phase is Phase.OUTSIDE else config.loader_s
        return there_s >= max(floor_s, 3 * self._times.longest_s[phase])

    def _all_stuck(self, now: Standstill) -> bool:
        """Whether even the latest to enter what runs now has been in it for too long."""
        if not len(now.open):
            return False
        entered: dict[int, int] = {}
        for rank, age in zip(
            now.open["rank"].tolist(), now.open["duration_ns"].tolist(), strict=True
        ):
            entered[rank] = max(age, entered.get(rank, 0))
        usual_s = self._times.pace.usual_s(0.5) if self._times.pace else 0.0
        return min(entered.values()) * 1e-9 >= max(0.8 * self._config.least_s, usual_s)

    # -- findings --------------------------------------------------------------------------------

    def _say(self, findings: list[Finding], now_s: float) -> list[Finding]:
        if findings:
            self._said_s = now_s
        self._findings |= {(v.kind, v.machine, v.link): v for v in findings}
        return findings

    def _over(self) -> list[Finding]:
        former, self._findings = self._findings, {}
        return [
            Finding(v.kind, v.machine, None, 0.9, "the job moves again", closed=True, link=v.link)
            for v in former.values()
        ]


def _in_phase_s(pulses: Records) -> npt.NDArray[np.float64]:
    """For how long each rank has been where it is, at most the time between two batches."""
    there_s = (pulses["phase_ns"].astype(np.float64) + pulses["age_ns"]) * 1e-9
    bounded: npt.NDArray[np.float64] = np.clip(there_s, 0.0, _BATCHES_S)
    return bounded
