"""What holds on a machine with one NVIDIA GPU, and what it takes there.

    python -m benchmarks.gpu --json                            # everything: about 8 minutes
    python -m benchmarks.gpu --json --parts pauses --millions 100

``pauses``: a GPT in bfloat16 with Adam on two ranks that share the GPU; one machine is moved by
plan, then one is killed. ``bits_equal``: all losses and the final states are those of a run without
either. ``floor_s``: what a copy of the state takes in the GPU's memory, read and written once.
``steps``: what a session adds to a step, in alternating blocks. ``nccl``: how long a pair of ranks
takes to build, what it takes of the GPU's memory, and how long an abort takes whose peer was
killed; several ranks of one GPU need NCCL 2.30 or later (``LD_PRELOAD`` it where torch has an older
one).
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from benchmarks.cluster import Cluster
from benchmarks.common import run_program, spread
from benchmarks.pause import options_of, phases_of

SHAPES = {  # millions of parameters: width, layers, steps of the run
    1: (144, 4, 600),
    100: (1024, 8, 200),
    1000: (2048, 20, 40),
}
PARTS = ("nccl", "pauses", "steps")
RANKS = 2


def program_of(millions: int, device: str, steps: int) -> list[str]:
    width, layers, _ = SHAPES[millions]
    program = ["-m", "trainmover_executor.programs.gpt", "--device", device, "--dtype", "bfloat16"]
    return [*program, "--steps", str(steps), *options_of((width, layers, 2, 64))]


async def disturbed(
    program: list[str], metrics: Path, environment: dict[str, str]
) -> list[dict[str, Any]]:
    """Run ``program`` to its end with a planned move and a crash; what they took."""
    options = ("--metrics", str(metrics), "--warm-limit", "1")
    rows = []
    async with Cluster(
        nnodes=f"{RANKS}:{RANKS + 1}", program=program, options=options, environment=environment
    ) as cluster:
        for what in ("planned", "crash"):
            slot = (await cluster.all_warm(standbys=1))[0]
            await cluster.steps(4)
            began = time.time()
            act = cluster.migrate if what == "planned" else cluster.crash
            move = await act(slot)
            phases = phases_of(move, began=began) if what == "crash" else move.phases_s
            rows.append({"what": what, "pause_s": move.pause_s, "phases_s": phases})
            print(rows[-1], file=sys.stderr, flush=True)
        assert await cluster.finished() == 0, "the job failed"
    return rows


def left_in(metrics: Path) -> tuple[list[Any], list[Any]]:
    """Losses and final records of all ranks."""
    finals = [json.loads(path.read_text()) for path in sorted(metrics.glob("rank-*.final.json"))]
    losses = []
    for path in sorted(metrics.glob("rank-*.jsonl")):
        records = [json.loads(line) for line in path.read_text().splitlines()]
        losses.append({record["step"]: record["loss_hex"] for record in records})
    return losses, finals


def pauses(millions: int, device: str, steps: int | None) -> list[dict[str, Any]]:
    """A planned move and a crash of a model of that size."""
    program = program_of(millions, device, steps or SHAPES[millions][2])
    environment = {"CUBLAS_WORKSPACE_CONFIG": ":4096:8"}
    with tempfile.TemporaryDirectory() as folder:
        moved, calm = Path(folder) / "moved", Path(folder) / "calm"
        rows = asyncio.run(disturbed(program, moved, environment))
        command = [sys.executable, "-m", "trainmover_console.cli", "run", "--nnodes", "1"]
        command += ["--nproc-per-node", str(RANKS), "--metrics", str(calm), *program]
        subprocess.run(
            command, check=True, stdout=sys.stderr, env={**os.environ, **environment}, timeout=300
        )
        equal = left_in(moved) == left_in(calm) and len(left_in(calm)[1]) == RANKS
    floor_s = copy_s(millions * 1_000_000 * 6) if device == "cuda" else None
    about = {"params": millions * 1_000_000, "ranks": RANKS, "bits_equal": equal}
    return [{**row, **about, "floor_s": floor_s} for row in rows]


def copy_s(nbytes: int) -> float:
    """Seconds for a copy within the GPU's memory."""
    some = min(nbytes, 1 << 30)
    source = torch.ones(some, dtype=torch.uint8, device="cuda")
    target = torch.empty_like(source)
    took = []
    for _ in range(6):
        torch.cuda.synchronize()
        began = time.perf_counter()
        target.copy_(source)
        torch.cuda.synchronize()
        took.append(time.perf_counter() - began)
    del source, target
    torch.cuda.empty_cache()
    return round(min(took) * nbytes / some, 6)


def steps(device: str) -> dict[str, Any]:
    """What a session adds to a step of some tens of milliseconds."""
    sizes = ["--blocks=6"]
    if device == "cpu":
        sizes += ["--width=64", "--layers=2", "--batch=2", "--context=32"]
    found = {}
    for ranks in (1, RANKS):
        times = run_program("device_step", f"--device={device}", *sizes, ranks=ranks)
        ratios = [a / b for a, b in zip(times["trainmover"], times["plain"], strict=True)]
        found[f"{ranks}_ranks"] = {
            "plain_step_s": spread(times["plain"]),
            "step_ratio": spread(ratios),
        }
    return found


def nccl(ranks: int, limit_s: float) -> dict[str, Any]:
    """Pairs of ranks on one GPU; what was found until ``limit_s``."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        environment = {**os.environ, "NCCL_MULTI_RANK_GPU_ENABLE": "1"}
        command = [sys.executable, "-m", "benchmarks.programs.nccl", "--ranks", str(ranks)]
        started = [
            subprocess.Popen(
                [*command, "--rank", str(rank), "--folder", name],
                env=environment,
                stdout=sys.stderr,
            )
            for rank in range(ranks)
        ]
        deadline = time.monotonic() + limit_s
        for process in started:
            try:
                process.wait(max(0.1, deadline - time.monotonic()))
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
        files = [folder / f"nccl-{rank}.json" for rank in range(ranks)]
        found = [json.loads(path.read_text()) for path in files if path.exists()]
    if len(found) < ranks:
        return {"ranks_on_one_gpu": 1, "tried": ranks}
    first = found[0]
    return {
        "version": first["version"],
        "ranks_on_one_gpu": ranks,
        "whole_s": round(max(one["whole_s"] for one in found), 4),
        "pair_s": spread([took for one in found[:2] for took in one["pairs_s"]]),
        "pair_bytes": max(one["pair_bytes"] for one in found[:2]),
        "abort_s": first.get("abort_s"),
        **{name: value for name, value in first.items() if "message" in name or "eager" in name},
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--parts", nargs="+", default=PARTS, choices=PARTS)
    parser.add_argument("--millions", type=int, nargs="+", default=[100, 1000], choices=SHAPES)
    parser.add_argument("--device", default="cuda", help="cpu: to try this script without a GPU")
    parser.add_argument("--steps", type=int, help="of the runs of ``pauses``")
    parser.add_argument("--json", action="store_true", help="one line instead of a readable form")
    options = parser.parse_args()
    if options.device == "cuda" and not torch.cuda.is_available():
        parser.error("torch sees no GPU: install a CUDA build of it, or try this with --device cpu")
    device = torch.cuda.get_device_name(0) if options.device == "cuda" else "cpu"
    result: dict[str, Any] = {"device": device, "torch": torch.__version__}
    result |= {"rows": [], "failed": {}}

    def part(name: str, measure: Callable[..., Any], *arguments: Any) -> Any:
        try:
            return measure(*arguments)
        except Exception as error:  # noqa: BLE001 - the others are wanted all the same
            print(name, "failed:", repr(error), file=sys.stderr, flush=True)
            result["failed"][name] = repr(error)[:400]
            return None

    if "nccl" in options.parts and options.device != "cpu":
        result["nccl"] = part("nccl", nccl, 4, 90)
    for size in options.millions if "pauses" in options.parts else ():
        rows = part(f"pauses {size}", pauses, size, options.device, options.steps)
        result["rows"] += rows or []
    if "steps" in options.parts:
        result["steps"] = part("steps", steps, options.device)
    print(json.dumps(result, indent=None if options.json else 2))


if __name__ == "__main__":
    main()
