"""``trainmover detector synthesize``: recordings of jobs in which it is known what is wrong."""

from __future__ import annotations

from dataclasses import asdict
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any, Final

import typer

from trainmover.errors import ConfigError
from trainmover.testing.rough_jobs import healthy_rough_job, troubled_rough_job
from trainmover.testing.simulated_jobs import CLASSES, healthy_job, record_job, troubled_job
from trainmover_console.cli import output
from trainmover_console.cli.connect import OutputOption, execute
from trainmover_console.cli.exits import ExitCode

__all__ = ["synthesize"]

_NOTHING: Final = "nothing"
_HEALTHY_S: Final = 120.0


class Noise(StrEnum):
    """What is only noise in a simulated job."""

    PLAIN = "plain"
    ROUGH = "rough"


_MAKERS: Final = {
    Noise.PLAIN: (troubled_job, healthy_job),
    Noise.ROUGH: (troubled_rough_job, healthy_rough_job),
}


def synthesize(
    file: Annotated[Path, typer.Argument(help="Where to write the recording (.tmrec.gz).")],
    *,
    trouble: Annotated[
        str, typer.Option(help=f"What goes wrong: {', '.join(CLASSES)}; or {_NOTHING}.")
    ] = "compute_20",
    seed: Annotated[int, typer.Option(help="The same one makes the same job.", min=0)] = 0,
    noise: Annotated[
        Noise,
        typer.Option(
            help="plain; or rough: heavy tails, drift, checkpoints, evaluations, batches lost."
        ),
    ] = Noise.PLAIN,
    format: OutputOption = output.Format.TABLE,  # noqa: A002
) -> None:
    """Make a recording of a simulated job with a known trouble, for `trainmover detector replay`.

    Its shape, step time, noise and culprit are random by the seed.

    Exit codes: 0 written, 2 no such trouble, or the file cannot be written.
    """

    async def main() -> ExitCode:
        data = _synthesized(file, trouble, seed, noise)
        output.emit(data, format=format, render=lambda: _words(data))
        output.note(f"judge detectors by it: trainmover detector replay {file}")
        return ExitCode.OK

    raise typer.Exit(execute(main))


def _synthesized(file: Path, trouble: str, seed: int, noise: Noise) -> dict[str, Any]:
    troubled, healthy = _MAKERS[noise]
    if trouble == _NOTHING:
        job = healthy(seed)
        steps = max(20, int(_HEALTHY_S / job.step_s))
    elif trouble in CLASSES:
        job, steps = troubled(trouble, seed)
    else:
        raise ConfigError(f"there is no trouble {trouble!r}; there are {', '.join(CLASSES)}.")
    output.note(
        f"{job.shape.slots} machines of {job.shape.ranks_per_slot} ranks, "
        f"{steps} steps of {job.step_s:.2f} s"
    )
    try:
        truths = record_job(job, file, steps=steps)
    except OSError as error:
        raise ConfigError(f"recording {file} cannot be written: {error}.") from error
    return {
        "recording": str(file),
        "trouble": trouble,
        "noise": noise.value,
        "seed": seed,
        "machines": job.shape.slots,
        "ranks": job.shape.world,
        "step_s": job.step_s,
        "truths": [asdict(truth) for truth in truths],
    }


def _words(data: dict[str, Any]) -> str:
    if not data["truths"]:
        return "nothing is wrong in it: every finding would be false"
    rows = []
    for truth in data["truths"]:
        where = f"link {truth['link'][0]} -> {truth['link'][1]}" if truth["link"] else "nobody"
        rows.append(
            f"{truth['kind']} of {truth['machine'] or where} from step {truth['since_step']}"
        )
    return "\n".join(rows)
