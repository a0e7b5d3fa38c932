"""A simulated job: steps one after the other, and the batches and facts that its machines send."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Final

import numpy as np
import numpy.typing as npt

from trainmover.detection import CollectiveWindow
from trainmover.detection.evaluation.replay import Player
from trainmover.events.executor import JobLayoutKnown, Span
from trainmover.events.machine import MachineNoticed
from trainmover.job.topology import Frozen, Membership
from trainmover.telemetry.records import HEAD, PULSE, RECORD, STEP, Phase, Sections, span_of
from trainmover.telemetry.repeats import FirstWildSteps
from trainmover.testing.simulated_jobs.accounts import facts_of_crash, step_rows
from trainmover.testing.simulated_jobs.injections import Healthy, Injection, Kind, Truth
from trainmover.testing.simulated_jobs.network import Network
from trainmover.testing.simulated_jobs.physics import NEVER, Floats, Load, Timeline, play
from trainmover.testing.simulated_jobs.shape import Shape
from trainmover.testing.simulated_jobs.work import Work

__all__ = ["Frame", "SimulatedJob"]

_STALLED_S: Final = 0.5
_LINKS_EVERY_S: Final = 1.0
_STOPPED: Final = ord("T")
_ENDINGS: Final[frozenset[Kind]] = frozenset(
    {"hang", "frozen", "link_hang", "crash", "silence", "mismatch"}
)


@dataclass(frozen=True, slots=True)
class Frame:
    """What reaches the detector service at one moment.

    Attributes:
        now_s: The moment, in seconds since the job began.
        step: Steps that the job has completed.
        windows: Batches.
        facts: Facts; the membership of a new epoch comes with the frame.
        membership: Set where a new epoch began.
    """

    now_s: float
    step: int
    windows: tuple[CollectiveWindow, ...]
    facts: tuple[Frozen, ...] = ()
    membership: Membership | None = None


@dataclass
class SimulatedJob:
    """A job that trains, with noise and with whatever goes wrong.

    Attributes:
        shape: Who talks to whom.
        step_s: How long an undisturbed step takes, in seconds.
        network: The network's share of it.
        healthy: The noise.
        injections: What goes wrong.
        seed: Of everything random.
        linger_s: How long frames go on after the job came to a stand, in seconds.
        truths: What should be said, filled in as it happens.
    """

    shape: Shape = field(default_factory=Shape)
    step_s: float = 0.3
    network: float = 0.1
    healthy: Healthy = field(default_factory=Healthy)
    injections: Sequence[Injection] = ()
    seed: int = 0
    linger_s: float = 30.0
    truths: list[Truth] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.rng = np.random.default_rng(self.seed)
        world = self.shape.world
        self.membership = self.shape.membership()
        self.period_s = 0.5 if self.step_s < 2 else 1.0
        self._offsets = self.rng.uniform(0, 1e6, world)  # clocks have nothing in common
        self._work = self._make_work()
        self._network = Network(self.shape, rng=self.rng)
        self._now = self._told_s = self._linked_s = 0.0
        self._step = 0
        self._issued = dict.fromkeys(self.shape.ids.values(), 0)
        self._messages: dict[int, int] = {}
        self._pending: list[npt.NDArray[np.void]] = []
        self._steps: list[npt.NDArray[np.void]] = []
        self._facts: list[Frozen] = []
        self._fresh: Membership | None = self.membership
        self._silent: set[str] = set()
        self._frozen: dict[int, float] = {}
        self._replaced: list[str] = []
        slots = range(self.shape.slots)
        self._first_wild = [FirstWildSteps() for _ in slots]  # of each machine's agent

    # -- noise -----------------------------------------------------------------------------------

    def _make_work(self) -> Work:
        return Work(
            self.shape, self.healthy, step_s=self.step_s, network=self.network, rng=self.rng
        )

    def _loss_noise(self) -> Floats:
        """How far the ranks' losses of a step are from what they have in common."""
        return self.rng.normal(0, 0.02, self.shape.world)

    def _arrives(self, machine: str) -> bool:
        """Whether the next batch of a machine does."""
        del machine
        # A machine that sends once a second here sends twice as often in truth.
        lost = self.healthy.lost if self.period_s < 1 else self.healthy.lost**2
        return lost <= 0 or self.rng.random() >= lost

    # -- frames ----------------------------------------------------------------------------------

    def frames(self, *, steps: int) -> Iterator[Frame]:
        """Frames until ``steps`` steps are complete, or the job stood still for ``linger_s``."""
        everyone = tuple(range(self.shape.world))
        if not self.shape.hybrid:
            for rank in everyone:
                machine = self.shape.machine_of(rank)
                self._facts.append(
                    JobLayoutKnown(machine=machine, rank=rank, alike=Span.of(everyone))
                )
        while self._step < steps:
            self._begin_injections()
            if self._step in self.healthy.epochs_at:
                self._replace_somebody()
            load = self._work.of_step(self._step, self.injections)
            timeline = play(self.shape, load, start_s=self._now)
            records, ended = self._records(timeline)
            over = timeline.over_s
            until = over if over < NEVER else self._now + self.linger_s
            while self._told_s + self.period_s <= until:
                self._told_s += self.period_s
                yield self._frame(self._told_s, timeline, load, records, ended)
            if over >= NEVER:
                return
            self._complete(timeline, load, records, ended)

    def tell(self, player: Player, frame: Frame) -> None:
        """Let a frame come to detectors.

        Args:
            player: Plays them.
            frame: The latest of ``frames``.
        """
        player.advance(frame.now_s)
        if frame.membership is not None:
            player.membership_changed(frame.membership)
        for fact in frame.facts:
            player.fact(fact, self.membership, frame.now_s)
        for window in frame.windows:
            player.window(window)

    def _begin_injections(self) -> None:
        for one in self.injections:
            if one.step != self._step:
                continue
            self.truths.append(one.truth(self.shape, now_s=self._now))
            if one.kind in {"crash", "silence"}:
                self._silent.add(self.shape.machine_of(one.ranks[0]))
            if one.kind == "crash":
                self._facts += facts_of_crash(one, self.membership, step=self._step)
            if one.kind == "frozen":
                self._frozen.update(dict.fromkeys(one.ranks, self._now + 0.3 * self.step_s))
            if one.kind == "notice":
                machine = self.shape.machine_of(one.ranks[0])
                self._facts.append(
                    MachineNoticed(machine=machine, kind="maintenance", reason="simulated")
                )

    def _replace_somebody(self) -> None:
        slot = int(self.rng.integers(self.shape.slots))
        self._replaced.append(self.membership.members[slot].machine)
        epoch = self.membership.epoch + 1
        self.membership = self._fresh = self.shape.membership(
            epoch=epoch, replaced=tuple(self._replaced)
        )
        self._issued = dict.fromkeys(self._issued, 0)
        self._messages.clear()
        self._pending.clear()
        self._steps.clear()

    # -- one step --------------------------------------------------------------------------------

    def _records(self, line: Timeline) -> tuple[npt.NDArray[np.void], npt.NDArray[np.float64]]:
        """Records of a step, and when each operation ended in the job's time."""
        records = np.zeros(len(line.rank), RECORD)
        records["rank"], records["step"] = line.rank, self._step
        records["group"], records["peer"] = line.group, line.peer
        records["op"], records["bytes"] = line.op, line.bytes
        base = np.array(
            [
                self._messages.get(group, 0) if peer >= 0 else self._issued[group]
                for group, peer in zip(line.group.tolist(), line.peer.tolist(), strict=True)
            ]
        )
        records["sequence"] = line.number + base
        own = self._offsets[line.rank]
        entered = np.minimum(line.enter_s, 1e9)
        records["enter_ns"] = ((own + entered) * 1e9).astype(np.int64)
        took = np.clip(line.end_s - line.enter_s, 0, 1e9)
        records["duration_ns"] = (took * 1e9).astype(np.int64)
        for one in self.injections:
            if one.kind == "mismatch" and one.strikes(self._step):
                wrong = np.isin(line.rank, one.ranks) & (line.end_s >= NEVER) & (line.peer < 0)
                wrong &= line.enter_s < NEVER
                wrong &= line.number == line.number[wrong].min(initial=1 << 30)
                records["bytes"][wrong] //= 2
        return records, line.end_s

    def _complete(
        self,
        line: Timeline,
        load: Load,
        records: npt.NDArray[np.void],
        ended: npt.NDArray[np.float64],
    ) -> None:
        self._pending.append(records[ended > self._told_s])
        self._steps.append(
            step_rows(
                self.shape,
                line,
                load,
                self.injections,
                step=self._step,
                took_s=line.over_s - self._now,
                seed=self.seed,
                loss_noise=self._loss_noise(),
            )
        )
        self._network.carry(self._step, self.injections, network_s=load.network_s)
        for group in np.unique(line.group).tolist():
            of = line.group == group
            collective = of & (line.peer < 0)
            if collective.any():
                self._issued[group] += int(line.number[collective].max()) + 1
            if (of & (line.peer >= 0)).any():
                last = int(line.number[of & (line.peer >= 0)].max()) + 1
                self._messages[group] = self._messages.get(group, 0) + last
        self._now = line.over_s
        self._step += 1

    # -- what is sent ----------------------------------------------------------------------------

    def _frame(
        self,
        now: float,
        line: Timeline,
        load: Load,
        records: npt.NDArray[np.void],
        ended: npt.NDArray[np.float64],
    ) -> Frame:
        done = (ended <= now) & (ended > now - self.period_s)
        complete = np.concatenate([*self._pending, records[done]])
        running = (line.enter_s <= now) & (ended > now)
        opened = records[running].copy()
        opened["duration_ns"] = ((now - line.enter_s[running]) * 1e9).astype(np.int64)
        empty = np.zeros(0, STEP)
        steps = np.concatenate(self._steps) if self._steps else empty
        still = len(opened) > 0 and float(opened["duration_ns"].max()) > _STALLED_S * 1e9
        heads = self._heads(line, now) if still else np.zeros(0, HEAD)
        pulses = self._pulses(line, load, now)
        links = np.zeros(0, self._network.dtype)
        if still or now - self._linked_s >= _LINKS_EVERY_S - 1e-9:
            links = self._network.rows(self._step, self.injections)
            self._linked_s = now
        whole = Sections(
            records=complete, open=opened, steps=steps, links=links, pulses=pulses, heads=heads
        )
        windows = [window for window in self._split(whole, now) if self._arrives(window.machine)]
        windows += [window for window in windows if self.rng.random() < self.healthy.repeated]
        self._pending.clear()
        self._steps.clear()
        facts, self._facts = tuple(self._facts), []
        fresh, self._fresh = self._fresh, None
        return Frame(now, self._step, tuple(windows), facts, fresh)

    def _split(self, whole: Sections, now: float) -> Iterator[CollectiveWindow]:
        names = ("records", "open", "steps", "links", "pulses", "heads")
        slot = {name: whole.named(name)["rank"] // self.shape.ranks_per_slot for name in names}
        frozen = list(self._frozen)
        groups = {self.shape.ids[n]: span_of(ranks) for n, ranks in self.shape.groups.items()}
        for machine in self._replaced:  # a leaver becomes a standby, which says that it lives
            epoch = self.membership.epoch
            yield CollectiveWindow(machine, epoch, self.membership, whole.records[:0], now)
        for index, member in enumerate(self.membership.members):
            if member.machine in self._silent:
                continue
            parts = {name: whole.named(name)[slot[name] == index] for name in names}
            wild = self._first_wild[index]
            parts["steps"] = wild.apply(parts["steps"], epoch=self.membership.epoch)
            if frozen:
                for name in ("records", "open", "steps", "links", "heads"):
                    mine = parts[name]
                    stale = np.isin(mine["rank"], [r for r in frozen if now >= self._frozen[r]])
                    parts[name] = mine[~stale]
            yield CollectiveWindow(
                machine=member.machine,
                epoch=self.membership.epoch,
                membership=self.membership,
                records=parts["records"],
                received_s=now,
                more=Sections(**parts),
                groups=groups,
            )

    def _heads(self, line: Timeline, now: float) -> npt.NDArray[np.void]:
        rows = []
        for name, ranks in self.shape.groups.items():
            group = self.shape.ids[name]
            entered = (line.group == group) & (line.peer < 0) & (line.enter_s <= now)
            counts = np.bincount(line.rank[entered], minlength=self.shape.world)
            rows += [(rank, group, self._issued[group] + counts[rank]) for rank in ranks]
        return np.array(rows, HEAD)

    def _pulses(self, line: Timeline, load: Load, now: float) -> npt.NDArray[np.void]:
        world = self.shape.world
        pulses = np.zeros(world, PULSE)
        pulses["rank"], pulses["step"] = np.arange(world), self._step
        drawing = line.begin_s - load.loader_s
        began = self._now
        phase = np.where(
            now < drawing, Phase.OUTSIDE, np.where(now < line.begin_s, Phase.LOADER, Phase.BODY)
        )
        since = np.where(now < drawing, began, np.where(now < line.begin_s, drawing, line.begin_s))
        pulses["phase"] = phase
        pulses["phase_ns"] = ((now - since).clip(0) * 1e9).astype(np.int64)
        for rank, at in self._frozen.items():
            if now >= at:
                pulses["age_ns"][rank] = int((now - at) * 1e9)
                pulses["state"][rank] = _STOPPED
        return pulses
