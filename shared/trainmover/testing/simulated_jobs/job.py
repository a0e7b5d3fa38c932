"""A simulated job: steps one after the other, and the batches and facts that its machines send."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Final

import numpy as np
import numpy.typing as npt

from trainmover.detection import CollectiveWindow
from trainmover.events.executor import JobLayoutKnown, StepBroken
from trainmover.events.machine import LinkLost, MachineNoticed, WorkerExited
from trainmover.telemetry import HEAD, PULSE, RECORD, STEP, Flag, Phase, Sections, span_of
from trainmover.testing.simulated_jobs.injections import Healthy, Injection, Kind, Truth
from trainmover.testing.simulated_jobs.network import Network
from trainmover.testing.simulated_jobs.physics import NEVER, Load, Timeline, play
from trainmover.testing.simulated_jobs.shape import Shape
from trainmover.topology import Frozen, Membership

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
        spread = self.rng.uniform(-1, 1, world)
        self._bias = 1 + self.healthy.imbalance * spread
        self._stages = 1 + 0.15 * np.array(
            [self.shape.stage_of(rank) / max(1, self.shape.pp - 1) for rank in range(world)]
        )
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

    # -- frames ----------------------------------------------------------------------------------

    def frames(self, *, steps: int) -> Iterator[Frame]:
        """Frames until ``steps`` steps are complete, or the job stood still for ``linger_s``."""
        everyone = tuple(range(self.shape.world))
        if not self.shape.hybrid:
            for rank in everyone:
                machine = self.shape.machine_of(rank)
                self._facts.append(JobLayoutKnown(machine=machine, rank=rank, replicas=everyone))
        while self._step < steps:
            self._begin_injections()
            if self._step in self.healthy.epochs_at:
                self._replace_somebody()
            load = self._load()
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

    def _begin_injections(self) -> None:
        for one in self.injections:
            if one.step != self._step:
                continue
            self.truths.append(one.truth(self.shape, now_s=self._now))
            if one.kind in {"crash", "silence"}:
                self._silent.add(self.shape.machine_of(one.ranks[0]))
            if one.kind == "crash":
                self._facts += self._crash(one)
            if one.kind == "frozen":
                self._frozen.update(dict.fromkeys(one.ranks, self._now + 0.3 * self.step_s))
            if one.kind == "notice":
                machine = self.shape.machine_of(one.ranks[0])
                self._facts.append(
                    MachineNoticed(machine=machine, kind="maintenance", reason="simulated")
                )

    def _crash(self, one: Injection) -> list[Frozen]:
        rank, world, epoch = one.ranks[0], self.shape.world, self.membership.epoch
        machine = self.membership.machine_of(rank)
        exited = WorkerExited(
            machine=machine, generation=0, rank=rank, epoch=epoch, exit_code=None, signal=9
        )
        facts: list[Frozen] = [exited] if one.factor < 3 else []
        for near in {(rank - 1) % world, (rank + 1) % world}:
            reporter = self.membership.machine_of(near)
            if reporter != machine:
                about = {"machine": reporter, "rank": near, "epoch": epoch}
                facts.append(
                    LinkLost.model_validate(
                        {
                            **about,
                            "peer_rank": rank,
                            "peer_machine": machine,
                            "step": self._step,
                            "kind": "reset",
                        }
                    )
                )
                facts.append(
                    StepBroken.model_validate(
                        {**about, "committed_step": self._step, "reason": "a peer is gone"}
                    )
                )
        return facts

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

    def _load(self) -> Load:
        load = self._noise()
        for one in self.injections:
            if one.strikes(self._step):
                load = self._struck(load, one)
        return load

    def _noise(self) -> Load:
        """What a healthy step asks of the ranks."""
        world, healthy, rng, step = self.shape.world, self.healthy, self.rng, self._step
        own = self.step_s * (1 - self.network)
        compute = 0.95 * own * np.maximum(0.3, 1 + healthy.jitter * rng.standard_normal(world))
        compute *= self._bias * (1 + healthy.drift * step)
        compute *= 1 + healthy.batch_variation * rng.uniform(-1, 1)
        if self.shape.pp > 1:
            compute *= self._stages  # later stages have more to do, by design
        compute = np.where(rng.random(world) < healthy.spikes, compute * rng.uniform(2, 4), compute)
        outside = np.full(world, 0.02 * own)
        if _due(step + 1, healthy.pauses_every):
            compute[rng.integers(world)] += healthy.pause_steps * self.step_s
        if _due(step, healthy.checkpoint_every):
            outside[0] += healthy.checkpoint_s
        if _due(step, healthy.evaluate_every):
            outside += healthy.evaluate_s
        if step in {at + more for at in healthy.epochs_at for more in range(3)}:
            compute *= rng.uniform(1, 1.5, world)  # a joiner warms up, everybody a little
        return Load(outside, np.full(world, 0.03 * own), compute, self.step_s * self.network)

    def _struck(self, load: Load, one: Injection) -> Load:  # noqa: PLR0911 - one case each
        """The load of a step that an injection strikes."""
        ranks = np.zeros(self.shape.world, bool)
        ranks[list(one.ranks)] = True
        if one.kind in {"crash", "silence"}:
            gone = self.shape.machine_of(one.ranks[0])
            everyone = range(self.shape.world)
            ranks = np.array([self.shape.machine_of(rank) == gone for rank in everyone])
        own = self.step_s * (1 - self.network)
        match one.kind:
            case "compute" | "host":
                return replace(load, compute_s=load.compute_s * np.where(ranks, one.factor, 1))
            case "loader":
                return replace(load, loader_s=load.loader_s + ranks * (one.factor - 1) * own)
            case "all_slow":
                return replace(
                    load,
                    compute_s=load.compute_s * one.factor,
                    loader_s=load.loader_s * one.factor,
                )
            case "slow_network" | "slow_link" | "slow_sender" | "slow_receiver":
                # A ring is as fast as its slowest link.
                return replace(load, network_s=load.network_s * one.factor)
            case "hang" | "frozen" | "crash" | "silence":
                return replace(load, compute_s=np.where(ranks, NEVER, load.compute_s))
            case "link_hang" | "mismatch":
                return replace(load, stuck_at=1)
            case _:
                return load

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
        self._steps.append(self._step_rows(line, load))
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

    def _step_rows(self, line: Timeline, load: Load) -> npt.NDArray[np.void]:
        world, step = self.shape.world, self._step
        rows = np.zeros(world, STEP)
        rows["rank"], rows["step"] = np.arange(world), step
        rows["duration_ns"] = int((line.over_s - self._now) * 1e9)
        rows["wait_ns"] = (line.wait_s * 1e9).astype(np.int64)
        rows["loader_ns"] = (load.loader_s * 1e9).astype(np.int64)
        rows["outside_ns"] = (load.outside_s * 1e9).astype(np.int64)
        worked = load.compute_s.copy()
        flags = Flag.LOSS | Flag.CHECKSUM
        if self.shape.pp > 1:
            flags |= Flag.MESSAGES
        rows["flags"] = flags
        rows["ops"] = np.bincount(line.rank, minlength=world)
        rows["signature"] = [1 + self.shape.stage_of(rank) for rank in range(world)]
        rows["loss"] = 4.0 / (1 + 0.01 * step) + self.rng.normal(0, 0.02, world)
        rows["checksum"] = hash((self.seed, step)) & 0xFFFF_FFFF
        for one in self.injections:
            if not one.strikes(step):
                continue
            ranks = list(one.ranks)
            if one.kind == "host":
                worked[ranks] /= one.factor  # time passed, work did not
            elif one.kind == "nan":
                rows["loss"] = np.where(
                    np.isin(rows["rank"], ranks) | (step > one.step), np.nan, rows["loss"]
                )
                rows["nonfinite"] = np.where(np.isnan(rows["loss"]), 64, 0)
            elif one.kind == "corruption" and (step - one.step) % 4 == 0:
                rows["checksum"][ranks] += np.uint64(1)
        rows["cpu_ns"] = (worked * 1.02 * 1e9).astype(np.int64)
        return rows

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
        windows = [window for window in self._split(whole, now) if self._arrives()]
        windows += [window for window in windows if self.rng.random() < self.healthy.repeated]
        self._pending.clear()
        self._steps.clear()
        facts, self._facts = tuple(self._facts), []
        fresh, self._fresh = self._fresh, None
        return Frame(now, self._step, tuple(windows), facts, fresh)

    def _arrives(self) -> bool:
        # A machine that sends once a second here sends twice as often in truth.
        lost = self.healthy.lost if self.period_s < 1 else self.healthy.lost**2
        return lost <= 0 or self.rng.random() >= lost

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


def _due(step: int, every: int) -> bool:
    return every > 0 and step > 0 and step % every == 0
