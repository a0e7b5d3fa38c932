"""What phase 2 of a planned move costs at the stayers, against building the whole group anew.

    python -m benchmarks.rebuild --json

Ranks are threads of one process with real TCP links and handshakes; each time is that of the
slowest rank, from a common start to the end of the first small collective. ``phase2_ms`` and
``full_rebuild_ms`` are medians over the repetitions; all figures with their spread are beside them:

* ``phase2``: the stayers adopt the links that phase 1 parked, then all agree on two numbers.
* ``swap``: the adoption alone, at the slowest stayer.
* ``collective``: the same small collective over warm links, for comparison. The ranks share two
  cores and one interpreter, so with many ranks this is most of every figure but ``swap``.
* ``full_rebuild``: every rank drops all its links and dials those that training used anew.
* ``pairs``: the same move with ``hierarchical-gloo``: the native connections of two ranks that the
  leaver was in are built anew. ``pairs_collective`` is its small collective, once around the ring.
* ``gloo_rebuild``: a new ProcessGroupGloo over a store that is connected already.
"""

from __future__ import annotations

import argparse
import concurrent.futures
import json
import resource
import sys
import threading
import time
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import torch
from torch._C import _distributed_c10d as c10d

from benchmarks.common import spread
from benchmarks.fabric import Fabric, RankProcess

_TIMEOUT = timedelta(seconds=60)


def phase_two(fabric: Fabric) -> tuple[float, float]:
    """Move the middle rank once; seconds in all, and of the swap alone."""
    leaver, _ = fabric.prepare(len(fabric.processes) // 2)
    swaps: list[float] = []

    def switch(process: RankProcess) -> None:
        if process.rank != leaver.rank:
            began = time.perf_counter()
            process.table.switch(fabric.membership)
            process.rewind()
            swaps.append(time.perf_counter() - began)
        process.agree()

    total, _ = fabric.everywhere(switch)
    for process in fabric.processes:
        process.table.retire()
    leaver.leave()
    fabric.everywhere(Fabric.use)  # the joiner's links to ranks it did not need for the vote
    return total, max(swaps)


def full_rebuild(fabric: Fabric) -> float:
    """All ranks go to the next epoch with no link left; seconds."""
    ranks = range(len(fabric.processes))
    edges = {process.rank: process.table.edges_to(ranks) for process in fabric.processes}
    fabric.membership = fabric.membership.replace({})

    def rebuild(process: RankProcess) -> None:
        process.table.reset(fabric.membership)
        process.rewind()
        for group, peer in edges[process.rank]:
            process.table.link(group, peer, timeout_s=60.0)
        process.agree()

    return fabric.everywhere(rebuild)[0]


def gloo_rebuild(world: int, repetitions: int, *, limit_s: float) -> list[float]:
    """Seconds to build a Gloo group of ``world`` ranks, until the limit is reached."""
    server = c10d.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    port = server.port
    stores = [c10d.TCPStore("127.0.0.1", port, is_master=False) for _ in range(world)]
    times: list[float] = []
    ends = time.perf_counter() + limit_s
    with concurrent.futures.ThreadPoolExecutor(world) as pool:
        while len(times) < repetitions and time.perf_counter() < ends:
            times.append(_gloo_once(pool, stores, name=str(len(times))))
    return times


def _gloo_once(
    pool: concurrent.futures.ThreadPoolExecutor, stores: list[Any], *, name: str
) -> float:
    gate = threading.Barrier(len(stores) + 1)

    def one(rank: int) -> object:
        options = c10d.ProcessGroupGloo._Options()
        options._devices = [c10d.ProcessGroupGloo.create_device(hostname="127.0.0.1")]
        options._timeout = _TIMEOUT
        gate.wait()
        store = c10d.PrefixStore(name, stores[rank])
        group = c10d.ProcessGroupGloo(store, rank, len(stores), options)
        group.allreduce([torch.ones(2, dtype=torch.int64)]).wait()
        return group

    futures = [pool.submit(one, rank) for rank in range(len(stores))]
    gate.wait()
    began = time.perf_counter()
    concurrent.futures.wait(futures)
    took = time.perf_counter() - began
    groups = [future.result() for future in futures]
    del groups, futures
    return took


def measure(world: int, repetitions: int, *, gloo_s: float) -> dict[str, Any]:
    """One row."""
    fabric = Fabric(world)
    try:
        moves, agrees = _moves(fabric, repetitions)
        full_rebuild(fabric)
        rebuilds = [full_rebuild(fabric) for _ in range(repetitions)]
        links = sum(len(process.table.edges_to(range(world))) for process in fabric.processes)
    finally:
        fabric.close()
    pairs = Fabric(world, communicator="hierarchical-gloo")
    try:
        pair_moves, pair_agrees = _moves(pairs, repetitions)
    finally:
        pairs.close()
    gloo = gloo_rebuild(world, repetitions, limit_s=gloo_s) if gloo_s > 0 else []
    times = {
        "phase2": _ms([total for total, _ in moves]),
        "swap": _ms([swap for _, swap in moves]),
        "collective": _ms(agrees),
        "full_rebuild": _ms(rebuilds),
        "pairs": _ms([total for total, _ in pair_moves]),
        "pairs_collective": _ms(pair_agrees),
    }
    return {
        "ranks": world,
        "phase2_ms": times["phase2"]["median"],
        "full_rebuild_ms": times["full_rebuild"]["median"],
        "links": links // 2,
        "repetitions": repetitions,
        "spread_ms": times | ({"gloo_rebuild": _ms(gloo)} if gloo else {}),
        "gloo_repetitions": len(gloo),
    }


def _moves(fabric: Fabric, repetitions: int) -> tuple[list[tuple[float, float]], list[float]]:
    """Moves, and small collectives without one."""
    phase_two(fabric)  # the first warms allocator and threads up
    moves = [phase_two(fabric) for _ in range(repetitions)]
    return moves, [fabric.everywhere(RankProcess.agree)[0] for _ in range(repetitions)]


def _ms(seconds: list[float]) -> dict[str, float]:
    return spread([1000 * value for value in seconds], digits=3)


def _say(row: dict[str, Any]) -> None:
    figures = ", ".join(
        f"{name} {f['median']:.2f} [{f['min']:.2f}-{f['max']:.2f}] ms"
        for name, f in row["spread_ms"].items()
    )
    print(f"{row['ranks']:>3} ranks, {row['links']} links: {figures}", file=sys.stderr, flush=True)


def _each(counts: list[int], one: Callable[[int], dict[str, Any]]) -> list[dict[str, Any]]:
    rows = []
    for count in counts:
        rows.append(one(count))
        _say(rows[-1])
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--ranks", type=int, nargs="+", default=[4, 8, 16, 32, 64])
    parser.add_argument("--repetitions", type=int, default=15)
    parser.add_argument(
        "--gloo-s", type=float, default=60.0, help="most seconds for Gloo at each size; 0: without"
    )
    parser.add_argument("--json", action="store_true", help="one line instead of a readable form")
    options = parser.parse_args()
    torch.set_num_threads(1)
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))  # Gloo meshes all pairs
    rows = _each(
        options.ranks,
        lambda count: measure(count, options.repetitions, gloo_s=options.gloo_s),
    )
    print(json.dumps({"rows": rows}, indent=None if options.json else 2))


if __name__ == "__main__":
    main()
