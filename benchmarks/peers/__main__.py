"""TrainMover beside torchrun, torchft and NVIDIA Resiliency Extension, on one job.

    make bench-peers                                   # installs the peers under out/peers
    python -m benchmarks.peers --venv out/peers/venv --nightly out/peers/nightly --json
    python -m benchmarks.peers ... --systems TrainMover torchft --rounds 1 --world 4

The job is a small GPT (``programs/workload.py``) under data parallelism; each rank stands for a
machine. A machine dies, or is exchanged by plan, and the pause is measured until the whole world
steps again, with as many ranks as before. Rounds are interleaved: what else the host does is
shared. Peers are set up as their documentation says is quickest.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from pathlib import Path

from benchmarks.peers.report import draw, rows_of, table
from benchmarks.peers.scenes import SCENES, Measured, Peers, Scene


def options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--venv", type=Path, required=True, help="has the peers installed")
    parser.add_argument("--nightly", type=Path, required=True, help="folder of torchft's nightly")
    systems = sorted({scene.system for scene in SCENES})
    parser.add_argument("--systems", nargs="+", choices=systems, default=systems)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--world", type=int, default=4, help="ranks")
    parser.add_argument("--width", type=int, default=256, help="of the model: 256 has 6 M weights")
    parser.add_argument("--layers", type=int, default=6)
    parser.add_argument("--plot", type=Path, help="write a picture here: .png or .svg")
    parser.add_argument("--json", action="store_true", help="one JSON object, not tables")
    return parser.parse_args()


def main() -> int:
    chosen = options()
    shape = {"PEERS_WIDTH": str(chosen.width), "PEERS_LAYERS": str(chosen.layers)}
    peers = Peers(venv=chosen.venv.resolve(), nightly=chosen.nightly.resolve(), environment=shape)
    measured: dict[Scene, list[Measured]] = {
        scene: [] for scene in SCENES if scene.system in chosen.systems
    }
    failed = dict.fromkeys(measured, 0)
    for number in range(1, chosen.rounds + 1):
        for scene, runs in measured.items():
            named = f"round {number}: {scene.system}, {scene.kind}, {scene.setting}"
            try:
                runs.append(scene.run(peers, chosen.world))
                print(f"{named}: {runs[-1]}", file=sys.stderr)
            except (OSError, TimeoutError, StopIteration, AssertionError) as error:
                failed[scene] += 1
                print(f"{named} FAILED: {error!r}", file=sys.stderr)
    rows = rows_of(measured, failed)
    if chosen.plot is not None:
        draw(rows, chosen.plot)
    head = {
        "date": time.strftime("%Y-%m-%d"),
        "cores": os.cpu_count(),
        "world": chosen.world,
        "width": chosen.width,
        "layers": chosen.layers,
    }
    print(json.dumps({**head, "rows": rows}) if chosen.json else f"{head}\n\n{table(rows)}")
    return 1 if any(failed.values()) else 0


if __name__ == "__main__":
    sys.exit(main())
