"""Does one rank compute something else than it should? NaN, spikes, silent corruption; pure.

After a reduction a NaN is everywhere; in the step in which it first shows, it is only where it came
from. Replicas hold the same bits, so a checksum that differs names the odd one where three or more
can be compared.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any, ClassVar, Final

import numpy as np
import numpy.typing as npt
from pydantic import Field

from trainmover.detection import CollectiveWindow, DetectorConfig, Evidence, Finding
from trainmover.events.executor import JobLayoutKnown
from trainmover.job.spans import Spans
from trainmover.job.topology import Membership
from trainmover.telemetry.records import Flag
from trainmover_detector.measures.baselines import median_and_sigma
from trainmover_detector.measures.inbox import StepInbox

__all__ = ["NumericConfig", "NumericDetector"]

_KEPT_STEPS: Final = 32
_MOST_SPANS: Final = 64
"""A rank that names more spans of replicas is not believed."""
_LOSS, _CHECKSUM, _REDONE = int(Flag.LOSS), int(Flag.CHECKSUM), int(Flag.REDONE)

Floats = npt.NDArray[np.float64]


class NumericConfig(DetectorConfig):
    """Settings of ``numeric``.

    Attributes:
        spike_sigmas: A rank's loss is a spike when it is so far from the others' median.
        spike_ratio: And so many times as large.
        spike_steps: In so many steps in a row.
        recover_corruption: Treat a machine whose replica's bits are wrong as dead, so that its
            successor takes the state from another replica. Otherwise people decide.
    """

    spike_sigmas: float = Field(default=30.0, gt=0)
    spike_ratio: float = Field(default=3.0, gt=1)
    spike_steps: int = Field(default=3, ge=1)
    recover_corruption: bool = False


@dataclass(slots=True)
class _Step:
    """What ranks say about one step."""

    parts: list[npt.NDArray[np.void]] = field(default_factory=list)
    count: int = 0
    ranks: int = 0
    loss: dict[int, float] = field(default_factory=dict)
    bad: dict[int, int] = field(default_factory=dict)
    sums: dict[int, int] = field(default_factory=dict)

    def sort_out(self) -> None:
        """No more is waited for: look at what matters of it."""
        records = np.concatenate(self.parts)
        _, first = np.unique(records["rank"], return_index=True)  # a batch may come twice
        if len(first) < len(records):
            records = records[first]
        self.ranks = len(records)
        with_loss = records[["rank", "loss"]][(records["flags"] & _LOSS) > 0]
        wild = ~np.isfinite(with_loss["loss"])
        self.bad = dict.fromkeys(with_loss["rank"][wild].tolist(), 1)
        poisoned = records[records["nonfinite"] > 0]
        self.bad |= dict(
            zip(poisoned["rank"].tolist(), poisoned["nonfinite"].tolist(), strict=True)
        )
        losses = with_loss["loss"][~wild]
        # Most steps have no loss that is far from the others': then nobody needs the figures.
        if len(losses) >= 4 and losses.max() > 2 * abs(float(np.median(losses))):
            ranks = with_loss["rank"][~wild].tolist()
            self.loss = dict(zip(ranks, losses.tolist(), strict=True))
        summed = records[["rank", "checksum"]][(records["flags"] & _CHECKSUM) > 0]
        if len(summed) and (summed["checksum"] != summed["checksum"][0]).any():
            self.sums = dict(zip(summed["rank"].tolist(), summed["checksum"].tolist(), strict=True))


class NumericDetector:
    """Names ranks whose numbers are wrong."""

    api_version: ClassVar[int] = 1
    reads: ClassVar[frozenset[str]] = frozenset({"steps"})
    Config = NumericConfig

    def __init__(self, config: NumericConfig = NumericConfig()) -> None:  # noqa: B008 - frozen
        self._config = config
        self._membership: Membership | None = None
        self._replicas: dict[int, Spans] = {}
        self._sets: list[Spans] | None = None
        self._reset()

    def _reset(self) -> None:
        world = 0 if self._membership is None else self._membership.layout.world_size
        self._inbox = StepInbox(world)
        self._steps: dict[int, _Step] = {}
        self._done = -1
        self._poisoned = False
        self._spikes: Counter[int] = Counter()
        self._odd: Counter[int] = Counter()

    def membership_changed(self, membership: Membership) -> None:
        """New processes; which ranks are replicas stays."""
        self._membership = membership
        self._reset()

    def observe(self, window: CollectiveWindow) -> Iterable[Finding]:
        """Take in what steps say about numbers."""
        membership = self._membership
        if membership is None or window.epoch != membership.epoch or not len(window.steps):
            return ()
        self._inbox.put(window.steps)
        return self._look(membership) if self._inbox.at_once else ()

    def _look(self, membership: Membership) -> list[Finding]:
        self._collect(self._inbox.take())
        findings: list[Finding] = []
        for number in sorted(self._steps):
            step = self._steps[number]
            if step.count < membership.layout.world_size:
                continue
            step.sort_out()
            if step.ranks < membership.layout.world_size:
                continue
            findings += self._judge_partial(number, membership)
            del self._steps[number]
            self._done = max(self._done, number)
            findings += self._judge(number, step, membership)
        for old in sorted(self._steps)[:-_KEPT_STEPS]:
            del self._steps[old]
        return findings

    def notice(self, evidence: Evidence) -> Iterable[Finding]:
        """Learn who holds the same state."""
        if isinstance(evidence.fact, JobLayoutKnown):
            self._learn(evidence.fact)
        return ()

    def _learn(self, fact: JobLayoutKnown) -> None:
        membership = self._membership
        if membership is None or not membership.holds(fact.machine, fact.rank):
            return  # nobody speaks for others
        world = membership.layout.world_size
        if not 0 < len(fact.spans) <= _MOST_SPANS or any(span[-1] >= world for span in fact.spans):
            return
        self._replicas[fact.rank] = fact.spans
        self._sets = None

    def tick(self, now_s: float) -> Iterable[Finding]:
        """Look at what waits."""
        del now_s
        return self._look(self._membership) if self._membership and self._inbox else ()

    def _collect(self, records: npt.NDArray[np.void]) -> None:
        numbers = records["step"]
        for number in [int(numbers[0])] if len(records) == 1 else set(numbers.tolist()):
            mine = records[numbers == number]
            if number <= self._done or (mine["flags"] & _REDONE).any():
                continue
            step = self._steps.setdefault(number, _Step())
            step.parts.append(mine)
            step.count += len(mine)

    def _judge_partial(self, before: int, membership: Membership) -> list[Finding]:
        """Steps before a whole one, of which not every rank was heard: a batch was lost.

        Each rank says its steps in order, so the rest of them will not come. A NaN in them counts:
        in the step after, it is everywhere. What they do not say proves nothing.
        """
        findings = []
        for number in sorted(each for each in self._steps if each < before):
            step = self._steps.pop(number)
            step.sort_out()
            if step.bad and not self._poisoned:
                self._poisoned = True
                findings.append(self._not_finite(number, step, membership))
        return findings

    def _judge(self, number: int, step: _Step, membership: Membership) -> list[Finding]:
        findings = []
        if step.bad and not self._poisoned:
            self._poisoned = True  # from now on it is everywhere
            findings.append(self._not_finite(number, step, membership))
        self._poisoned = bool(step.bad)
        if not step.bad:
            findings += self._spiking(number, step, membership)
        findings += self._differing(number, step, membership)
        return findings

    def _not_finite(self, number: int, step: _Step, membership: Membership) -> Finding:
        bad = sorted(step.bad)
        few = len(bad) <= max(1, step.ranks // 4)
        machines = {membership.machine_of(rank) for rank in bad} if few else set()
        machine = next(iter(machines)) if len(machines) == 1 else None
        unheard = membership.layout.world_size - step.ranks
        return Finding(
            kind="numeric",
            machine=machine,
            rank=bad[0] if machine is not None and len(bad) == 1 else None,
            confidence=0.9 if machine is not None else 0.7,
            summary=f"NaN or Inf first shows in step {number} at "
            + (f"rank {', '.join(map(str, bad))} only" if few else f"{len(bad)} ranks at once")
            + (f"; {unheard} ranks were not heard in that step" if unheard else ""),
            evidence={
                "what": "not_finite",
                "step": number,
                "ranks_not_heard": unheard,
                "ranks": bad[:64],
                "samples": {str(rank): count for rank, count in list(step.bad.items())[:16]},
            },
        )

    def _spiking(self, number: int, step: _Step, membership: Membership) -> list[Finding]:
        if len(step.loss) < 4:
            self._spikes.clear()
            return []
        ranks, losses = zip(*sorted(step.loss.items()), strict=True)
        values = np.array(losses)
        middle, sigma = median_and_sigma(values)
        far = values - middle > self._config.spike_sigmas * max(sigma, 1e-3 * abs(middle))
        far &= np.abs(values) > self._config.spike_ratio * abs(middle)
        spiking = {ranks[index] for index in np.flatnonzero(far)}
        for rank in [rank for rank in self._spikes if rank not in spiking]:
            del self._spikes[rank]
        findings = []
        for rank in sorted(spiking):
            self._spikes[rank] += 1
            if self._spikes[rank] == self._config.spike_steps:
                machine = membership.machine_of(rank)
                loss = step.loss[rank]
                findings.append(
                    Finding(
                        "numeric",
                        machine,
                        rank,
                        0.7,
                        f"{machine}: the loss of rank {rank} is {loss:.4g}, of others {middle:.4g}",
                        {"what": "loss_spike", "step": number, "loss": loss, "median": middle},
                    )
                )
        return findings

    def _differing(self, number: int, step: _Step, membership: Membership) -> list[Finding]:
        findings: list[Finding] = []
        if not step.sums:
            return findings
        if self._sets is None:  # they change when the job starts, and then no more
            self._sets = sorted(set(self._replicas.values()), key=lambda spans: spans[0][0])
        for spans in self._sets:
            ranks = (rank for span in spans for rank in span)
            sums = {rank: step.sums[rank] for rank in ranks if rank in step.sums}
            counts = Counter(sums.values()).most_common()
            if len(counts) < 2:
                continue
            majority = counts[0][1] > len(sums) / 2 and len(sums) >= 3
            odd = sorted(rank for rank, value in sums.items() if value != counts[0][0])
            findings += self._corrupt(number, sums, odd if majority else [], membership)
        return findings

    def _corrupt(
        self, number: int, sums: dict[int, int], odd: list[int], membership: Membership
    ) -> list[Finding]:
        evidence: dict[str, Any] = {
            "what": "replicas_differ",
            "step": number,
            "checksums": {str(rank): f"{value:016x}" for rank, value in list(sums.items())[:16]},
            "odd_ranks": odd,
        }
        if not odd:
            words = f"replicas {', '.join(map(str, sums))} differ in step {number}; which is wrong "
            return [Finding("numeric", None, None, 0.8, words + "cannot be told", evidence)]
        advice = "recover" if self._config.recover_corruption else "none"
        return [
            Finding(
                kind="numeric",
                machine=membership.machine_of(rank),
                rank=rank,
                confidence=0.95,
                summary=f"{membership.machine_of(rank)}: the parameters of rank {rank} differ from "
                f"those of its {len(sums) - len(odd)} replicas in step {number}: silent corruption",
                evidence=evidence,
                advice=advice,  # type: ignore[arg-type]
            )
            for rank in odd
        ]
