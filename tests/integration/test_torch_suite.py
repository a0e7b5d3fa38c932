"""PyTorch's own c10d tests pass; what does not has its reason in ``docs/limits.md``."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Final

import pytest
from tests.support.ranks import Nursery, RanksJob

pytestmark = pytest.mark.job

TESTS = Path(__file__).parents[1]
SUITE = TESTS / "jobs" / "torch_suite.py"
NAMES: Final = (TESTS / "jobs" / "torch_suite.txt").read_text().split()
"""What passes with Gloo at three ranks."""

CHANCE = "whose message comes first is chance, and a step that is redone would differ: refused"
GLOO_ONLY = "torch offers it for a backend named gloo only"
TIMEOUT = "a timeout of a group says that communication broke, which ends a job outside of steps"

REASONS: Final = {
    "test_get_backend": "the backend is named trainmover",
    "test_barrier_timeout_full_group": TIMEOUT,
    "test_barrier_timeout_global": "it makes a group of backend gloo, which is refused",
    "test_monitored_barrier_gloo": GLOO_ONLY,
    "test_monitored_barrier_gloo_rank_0_timeout": GLOO_ONLY,
    "test_monitored_barrier_gloo_subgroup": GLOO_ONLY,
    "test_send_recv_any_source": CHANCE,
    "test_send_recv_any_source_autograd_profiler": CHANCE,
    "test_send_recv_any_source_torch_profiler": CHANCE,
}
"""What does not pass, and why."""


@pytest.mark.timeout(400)
def test_what_passes_with_gloo_passes(nursery: Nursery, tmp_path: Path) -> None:
    names = [name for name in NAMES if name not in REASONS]
    assert len(names) + len(REASONS) == len(NAMES) == 91
    listed = tmp_path / "names"
    listed.write_text("\n".join(names))
    with RanksJob(
        nursery, [str(SUITE), str(listed), str(tmp_path)], slots=3, folder=tmp_path
    ) as job:
        ended = [rank.process.wait(timeout_s=360).exit_code for rank in job.ranks]
    results = [json.loads((tmp_path / f"{rank}.json").read_text()) for rank in range(3)]
    failed = [
        f"rank {rank}, {name}: {result}"
        for rank, of_rank in enumerate(results)
        for name, result in of_rank.items()
        if result != "passed"
    ]
    assert not failed, "\n".join(failed)
    assert ended == [0, 0, 0]
    assert all(list(of_rank) == names for of_rank in results)


def test_the_reasons_are_documented() -> None:
    limits = (TESTS.parent / "docs" / "limits.md").read_text()
    for name, reason in REASONS.items():
        assert f"| `{name}` | {reason} |" in limits, name
