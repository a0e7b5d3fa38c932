"""When each rank enters and leaves each operation of a step, from how long it computes; pure."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt

from trainmover.telemetry.records import OPS
from trainmover.testing.simulated_jobs.shape import Shape

__all__ = ["NEVER", "Floats", "Load", "Timeline", "play"]

Floats = npt.NDArray[np.float64]

_ALLREDUCE: Final = OPS.index("allreduce")
_SEND: Final = OPS.index("send")
_RECV: Final = OPS.index("recv")
_VOTE: Final = OPS.index("vote")
_BUCKETS: Final = 4
_BUCKET_BYTES: Final = 8 * 1024 * 1024
_ACTIVATION_BYTES: Final = 1024 * 1024
_MICROBATCHES: Final = 2
_VOTE_S: Final = 0.001
NEVER: Final = 1e18


@dataclass(frozen=True, slots=True)
class Load:
    """What a step asks of the ranks; all in seconds.

    Attributes:
        outside_s: In the program between steps, by rank.
        loader_s: Drawing the batch, by rank.
        compute_s: Forward and backward, by rank; ``NEVER`` for one that does not come back.
        network_s: The network's share of the step's collectives.
        stuck_at: Index of the bucket from which on the network moves nothing; -1: it works.
    """

    outside_s: Floats
    loader_s: Floats
    compute_s: Floats
    network_s: float
    stuck_at: int = -1


@dataclass(frozen=True, slots=True)
class Timeline:
    """Operations of one step: parallel arrays, one element for each operation at each rank."""

    rank: npt.NDArray[np.int64]
    group: npt.NDArray[np.int64]
    peer: npt.NDArray[np.int64]
    op: npt.NDArray[np.int64]
    bytes: npt.NDArray[np.int64]
    number: npt.NDArray[np.int64]
    """How many collectives of the group, or messages to that peer, the step had before."""
    enter_s: Floats
    end_s: Floats
    wait_s: Floats
    """By rank: time inside operations, overlaps counted once."""
    begin_s: Floats
    """By rank: when the body of the step began."""
    over_s: float
    """When everybody had voted; ``NEVER`` for a step that hangs."""


def play(shape: Shape, load: Load, *, start_s: float) -> Timeline:
    """One step that everybody starts at ``start_s``."""
    return _hybrid(shape, load, start_s) if shape.hybrid else _replicas(shape, load, start_s)


def _replicas(shape: Shape, load: Load, start_s: float) -> Timeline:
    """Data parallel: buckets are reduced while the backward pass goes on."""
    world = shape.world
    begin = start_s + load.outside_s + load.loader_s
    enters, ends = [], []
    done = np.full(world, start_s)
    for bucket in range(_BUCKETS):
        part = 0.4 + 0.6 * (bucket + 1) / _BUCKETS
        enter = np.where(load.compute_s >= NEVER, NEVER, begin + part * load.compute_s)
        stuck = 0 <= load.stuck_at <= bucket
        end = NEVER if stuck else max(done.max(), enter.max()) + load.network_s / _BUCKETS
        done = np.full(world, min(end, NEVER))
        enters.append(enter)
        ends.append(done)
    enters.append(done)
    ends.append(np.full(world, min(done.max() + _VOTE_S, NEVER)))
    enter_s, end_s = np.array(enters), np.array(ends)
    before = np.vstack([enter_s[:1], np.maximum.accumulate(end_s, axis=0)[:-1]])
    wait = np.maximum(end_s - np.maximum(enter_s, before), 0).sum(axis=0)
    ranks = np.tile(np.arange(world), _BUCKETS + 1)
    ids = shape.ids
    vote = np.arange(_BUCKETS + 1).repeat(world) == _BUCKETS
    return Timeline(
        rank=ranks,
        group=np.where(vote, ids["_control"], ids.get("dp0", 0)),
        peer=np.full(len(ranks), -1),
        op=np.where(vote, _VOTE, _ALLREDUCE),
        bytes=np.where(vote, 16, _BUCKET_BYTES),
        number=np.where(vote, 0, np.arange(_BUCKETS + 1).repeat(world)),
        enter_s=enter_s.reshape(-1),
        end_s=end_s.reshape(-1),
        wait_s=wait,
        begin_s=begin,
        over_s=float(end_s[-1].max()),
    )


@dataclass(slots=True)
class _Op:
    """One thing a rank does, after computing for a while."""

    compute_s: float
    op: int
    group: str
    peer: int
    nbytes: int
    number: int


def _program(shape: Shape, load: Load, rank: int) -> list[_Op]:
    """A GPipe step: all forward passes, all backward passes, then the reduction of gradients."""
    stage, last = shape.stage_of(rank), shape.pp - 1
    tp = f"tp{rank - rank % shape.tp}"
    first = rank - rank % (shape.tp * shape.pp)
    pp = f"pp{first + rank % shape.tp}"
    piece = load.compute_s[rank] / (3 * _MICROBATCHES)
    program: list[_Op] = []
    numbers: dict[tuple[str, int, int], int] = {}

    def add(compute_s: float, op: int, group: str, nbytes: int, peer: int = -1) -> None:
        key = (group, op if peer >= 0 else -1, peer)
        number = numbers[key] = numbers.get(key, -1) + 1
        program.append(_Op(compute_s, op, group, peer, nbytes, number))

    for forward, away in ((True, -shape.tp), (False, shape.tp)):
        for _ in range(_MICROBATCHES):
            if stage != (0 if forward else last):
                add(0.0, _RECV, pp, _ACTIVATION_BYTES, rank + away)
            compute = piece if forward else 2 * piece
            if shape.tp > 1:
                add(compute, _ALLREDUCE, tp, _ACTIVATION_BYTES)
                compute = 0.0
            if stage != (last if forward else 0):
                add(compute, _SEND, pp, _ACTIVATION_BYTES, rank - away)
                compute = 0.0
            if compute:  # the next operation comes after it
                program.append(_Op(compute, -1, "", -1, 0, 0))
    if shape.replicas > 1:
        add(0.0, _ALLREDUCE, f"dp{rank % (shape.tp * shape.pp)}", _BUCKET_BYTES)
    add(0.0, _VOTE, "_control", 16)
    return program


class _Players:
    """Every rank with its program: each goes on until it has to wait."""

    def __init__(self, shape: Shape, load: Load, start_s: float) -> None:
        world = shape.world
        self._shape = shape
        self._stuck = load.stuck_at >= 0
        self.begin_s = start_s + load.outside_s + load.loader_s
        self.clock = self.begin_s.copy()
        self.programs = [_program(shape, load, rank) for rank in range(world)]
        self.at = [0] * world
        self.rows: list[tuple[int, str, int, int, int, int, float, float]] = []
        self._entered: dict[tuple[int, int], float] = {}
        self._arrived: dict[tuple[str, int], dict[int, float]] = {}
        self._sent: dict[tuple[int, int, int], float] = {}
        self._share = load.network_s / (_BUCKETS + 2 * _MICROBATCHES)

    def run(self) -> bool:
        """Until nobody can go on; whether everybody came to the end."""
        everyone = range(len(self.at))
        while sum(self._advance(rank) for rank in everyone):
            pass
        for rank in everyone:
            if self.at[rank] < len(self.programs[rank]):
                one = self.programs[rank][self.at[rank]]
                enter = self._entered.get((rank, self.at[rank]), NEVER)
                if one.op >= 0 and enter < NEVER:
                    self._note(rank, one, enter, NEVER)
        return all(self.at[rank] == len(self.programs[rank]) for rank in everyone)

    def _advance(self, rank: int) -> bool:
        """Let one rank go on; whether it did."""
        moved = False
        while self.at[rank] < len(self.programs[rank]):
            one = self.programs[rank][self.at[rank]]
            key = (rank, self.at[rank])
            enter = self._entered.setdefault(key, min(self.clock[rank] + one.compute_s, NEVER))
            if enter >= NEVER:
                break
            end = self._end_of(one, rank, enter)
            if end is None or (self._stuck and one.group.startswith("dp")):
                break
            if one.op >= 0:
                self._note(rank, one, enter, end)
            self.clock[rank] = end
            self.at[rank] += 1
            moved = True
        return moved

    def _note(self, rank: int, one: _Op, enter: float, end: float) -> None:
        self.rows.append((rank, one.group, one.peer, one.op, one.nbytes, one.number, enter, end))

    def _end_of(self, one: _Op, rank: int, enter: float) -> float | None:
        """When an operation ends; None while somebody has not come."""
        if one.op == -1:
            return enter
        if one.op == _SEND:
            self._sent[rank, one.peer, one.number] = enter
            return enter + 1e-5
        if one.op == _RECV:
            begun = self._sent.get((one.peer, rank, one.number))
            return None if begun is None else max(enter, begun + self._share / 4) + 1e-5
        members = self._arrived.setdefault((one.group, one.number), {})
        members[rank] = enter
        if len(members) < len(self._shape.groups[one.group]):
            return None
        return max(members.values()) + (_VOTE_S if one.op == _VOTE else self._share)


def _hybrid(shape: Shape, load: Load, start_s: float) -> Timeline:
    players = _Players(shape, load, start_s)
    ended = players.run()
    ranks, groups, peers, ops, sizes, numbers, enters, ends = zip(*players.rows, strict=True)
    wait = np.zeros(shape.world)
    enter_s, end_s = np.array(enters, float), np.array(ends, float)
    np.add.at(wait, np.array(ranks), end_s - enter_s)
    return Timeline(
        rank=np.array(ranks),
        group=np.array([shape.ids[name] for name in groups]),
        peer=np.array(peers),
        op=np.array(ops),
        bytes=np.array(sizes),
        number=np.array(numbers),
        enter_s=enter_s,
        end_s=end_s,
        wait_s=wait,
        begin_s=players.begin_s,
        over_s=float(players.clock.max()) if ended else NEVER,
    )
