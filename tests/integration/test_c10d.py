"""The calls of ``tests/jobs/c10d_calls.py`` give what they give over Gloo, or an error."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any, Final

import pytest
import torch
from tests.support.ranks import Nursery, RanksJob

pytestmark = pytest.mark.job

CALLS = str(Path(__file__).parents[1] / "jobs" / "c10d_calls.py")
WORLD = 3

REFUSED: Final = {
    "recv_from_any_source": "whose message comes first is chance, and a redone step would differ",
}
"""What works over Gloo and is refused, and why."""

MENDED: Final = {
    "all_to_all_single_in_place": "Gloo overwrites what is still to be sent",
}
"""What comes out wrong over Gloo, and why."""


def bits(value: Any) -> Any:
    """Something that is equal where every bit is."""
    if isinstance(value, torch.Tensor):
        plain = value.detach().contiguous()
        data = plain.view(-1).view(torch.uint8) if plain.numel() else torch.empty(0)
        if plain.dtype is torch.bool:  # which Gloo adds like bytes: 2 is true, too
            data = data != 0
        return str(plain.dtype), tuple(plain.shape), data.tolist()
    if isinstance(value, (list, tuple)):
        return [bits(each) for each in value]
    return value


def wrong(name: str, ours: tuple[str, Any, Any], gloo: tuple[str, Any, Any]) -> str | None:
    """What is wrong with one case at one rank."""
    kind, out, expected = ours
    if kind == "raised":
        if gloo[0] == "raised" or name in REFUSED:
            return None
        return f"raises {out}: {expected}"
    if gloo[0] == "value" and name not in MENDED and bits(gloo[1]) != bits(out):
        return f"{out}, and over Gloo {gloo[1]}"
    if expected is not None and bits(expected) != bits(out):
        return f"{out}, and should be {expected}"
    return None


@pytest.mark.timeout(400)
def test_every_call_gives_what_it_gives_over_gloo_or_an_error(
    nursery: Nursery, tmp_path: Path
) -> None:
    gloo, ours = tmp_path / "gloo", tmp_path / "ours"
    gloo.mkdir()
    ours.mkdir()
    subprocess.run(
        [sys.executable, "-W", "ignore", CALLS, str(gloo), "gloo"],
        check=True,
        timeout=180,
        cwd=tmp_path,
    )
    with RanksJob(nursery, [CALLS, str(ours), "trainmover"], slots=WORLD, folder=ours) as job:
        for rank in job.ranks:
            assert rank.process.wait(timeout_s=180).exit_code == 0

    found = []
    for rank in range(WORLD):
        by_gloo = torch.load(gloo / f"{rank}.pt", weights_only=False)
        by_ours = torch.load(ours / f"{rank}.pt", weights_only=False)
        assert by_ours.keys() == by_gloo.keys()
        assert len(by_ours) > 500
        for name, result in by_ours.items():
            if (what := wrong(name, result, by_gloo[name])) is not None:
                found.append(f"rank {rank}, {name}: {what}")
    assert not found, "\n".join(found)
