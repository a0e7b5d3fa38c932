"""What holds on a machine with one NVIDIA GPU, and what it takes there.

    python -m benchmarks.gpu --json                            # everything: about 6 minutes
    python -m benchmarks.gpu --json --parts pauses --millions 100

Stopped before its end (Ctrl-C, SIGTERM), it prints what it has found.

``pauses``: a GPT in bfloat16 with Adam on two ranks that share the GPU; one machine is moved by
plan, then one is killed. ``bits_equal``: all losses and the final states are those of a run without
either, which comes last, when nothing is timed any more; null where that was not reached.
``floor_s``: what a copy of the state takes in the GPU's memory, read and written once.
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
import signal
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
    100: (1024, 8, 160),
    1000: (2048, 20, 36),
}
PARTS = ("nccl", "pauses", "steps")
RANKS = 2
ENVIRONMENT = {"CUBLAS_WORKSPACE_CONFIG": ":4096:8"}
"""Without the workspace, products of matrices may add in another order each time."""


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


def same(moved: tuple[list[Any], list[Any]], calm: tuple[list[Any], list[Any]]) -> bool:
    """Whether two runs are equal but for one loss: a rank can be killed before it writes that."""
    losses, finals = moved
    missing = sum(len(calm_one) for calm_one in calm[0]) - sum(len(one) for one in losses)
    found = [one.items() <= calm_one.items() for one, calm_one in zip(losses, calm[0], strict=True)]
    return finals == calm[1] and len(finals) == RANKS and all(found) and missing <= 1


class Pauses:
    """A planned move and a crash of a model of each size, and runs without either."""

    def __init__(self, folder: Path, *, device: str, steps: int | None) -> None:
        self.rows: list[dict[str, Any]] = []
        self._folder = folder
        self._device = device
        self._steps = steps

    def disturb(self, millions: int) -> None:
        """Run a model of that size to its end, with a planned move and a crash."""
        rows = asyncio.run(
            disturbed(self._program(millions), self._folder / f"{millions}-moved", ENVIRONMENT)
        )
        floor_s = copy_s(millions * 1_000_000 * 6) if self._device == "cuda" else None
        about = {"params": millions * 1_000_000, "ranks": RANKS, "floor_s": floor_s}
        self.rows += [{**row, **about, "bits_equal": None} for row in rows]

    def compare(self) -> None:
        """Run the same programs undisturbed, beside each other, and say what is equal."""
        sizes = {row["params"] // 1_000_000 for row in self.rows}
        started = {millions: self._start(millions) for millions in sizes}
        try:
            for millions, process in started.items():
                assert process.wait(300) == 0, f"the undisturbed run of {millions} M failed"
                moved = left_in(self._folder / f"{millions}-moved")
                calm = left_in(self._folder / f"{millions}-calm")
                for row in self.rows:
                    if row["params"] == millions * 1_000_000:
                        row["bits_equal"] = same(moved, calm)
        finally:
            for process in started.values():
                process.terminate()
                process.wait()

    def _program(self, millions: int) -> list[str]:
        return program_of(millions, self._device, self._steps or SHAPES[millions][2])

    def _start(self, millions: int) -> subprocess.Popen[bytes]:
        command = [sys.executable, "-m", "trainmover_console.cli", "run", "--nnodes", "1"]
        command += ["--nproc-per-node", str(RANKS), "--job", f"calm-{millions}"]
        command += ["--metrics", str(self._folder / f"{millions}-calm"), *self._program(millions)]
        return subprocess.Popen(command, stdout=sys.stderr, env={**os.environ, **ENVIRONMENT})


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
        times = run_program(
            "device_step",
            *(f"--device={device}", *sizes),
            ranks=ranks,
            redundancy="checkpoint",
            environment=ENVIRONMENT,
        )
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
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    with tempfile.TemporaryDirectory() as folder:
        measure(options, Path(folder))


def measure(options: argparse.Namespace, folder: Path) -> None:
    """Measure the parts that are wanted, and print what was found."""
    device = torch.cuda.get_device_name(0) if options.device == "cuda" else "cpu"
    pauses = Pauses(folder, device=options.device, steps=options.steps)
    result: dict[str, Any] = {"device": device, "torch": torch.__version__}
    result |= {"rows": pauses.rows, "failed": {}}

    def part(name: str, run: Callable[..., Any], *arguments: Any) -> Any:
        began = time.monotonic()
        try:
            return run(*arguments)
        except Exception as error:  # noqa: BLE001 - the others are wanted all the same
            print(name, "failed:", repr(error), file=sys.stderr, flush=True)
            result["failed"][name] = repr(error)[:400]
            return None
        except KeyboardInterrupt:
            result["stopped_in"] = name
            raise
        finally:
            print(f"{name}: {time.monotonic() - began:.0f} s", file=sys.stderr, flush=True)

    try:
        if "nccl" in options.parts and options.device != "cpu":
            result["nccl"] = part("nccl", nccl, 4, 90)
        for size in options.millions if "pauses" in options.parts else ():
            part(f"pauses {size}", pauses.disturb, size)
        if "steps" in options.parts:
            result["steps"] = part("steps", steps, options.device)
        if pauses.rows:
            part("bits", pauses.compare)
    except KeyboardInterrupt:
        print("stopped: what was found until then follows", file=sys.stderr, flush=True)
    print(json.dumps(result, indent=None if options.json else 2))


if __name__ == "__main__":
    main()
