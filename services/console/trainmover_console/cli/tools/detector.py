"""``trainmover detector``: what is installed, and how good it is."""

from __future__ import annotations

import json
from importlib.metadata import EntryPoint
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Group
from rich.text import Text

from trainmover.detection.evaluation.recording import read
from trainmover.detection.evaluation.replay import play
from trainmover.detection.evaluation.scoring import Score, score
from trainmover.detection.registry import GROUP, class_of, config_of, find, make, version_of
from trainmover.errors import ConfigError, TrainMoverError
from trainmover_console.cli import output
from trainmover_console.cli.connect import (
    OutputOption,
    execute,
)
from trainmover_console.cli.exits import ExitCode
from trainmover_console.cli.tools.synthesize import synthesize

__all__ = ["detector_app"]

detector_app = typer.Typer(
    help="Detectors: what is installed, its settings, how good it is.", no_args_is_help=True
)
detector_app.command()(synthesize)


@detector_app.command("ls")
def detector_ls(
    *,
    format: OutputOption = output.Format.TABLE,  # noqa: A002
) -> None:
    """List the installed detectors, built-in ones and plugins alike."""

    async def main() -> ExitCode:
        rows = [_brief(name, point) for name, point in find().items()]
        table = [(r["name"], r["from"], r["version"], r["says"]) for r in rows]
        output.emit(
            rows,
            format=format,
            render=lambda: output.table(("detector", "from", "version", "says"), table),
        )
        return ExitCode.OK

    raise typer.Exit(execute(main))


@detector_app.command("describe")
def detector_describe(
    name: Annotated[str, typer.Argument(help="An installed detector, or package.module:Class.")],
    *,
    format: OutputOption = output.Format.TABLE,  # noqa: A002
) -> None:
    """Show what a detector does and the schema of its settings."""

    async def main() -> ExitCode:
        point = _point(name)
        kind = _class(point)
        config = config_of(kind)
        data = {
            **_brief(name, point),
            "class": f"{kind.__module__}:{kind.__qualname__}",
            "schema": None if config is None else config.model_json_schema(),
        }
        output.emit(
            data,
            format=format,
            render=lambda: Group(
                Text(f"{data['class']} ({data['from']} {data['version']})"),
                Text(str(data["says"])),
                Text(json.dumps(data["schema"], indent=2) if config else "It takes no settings."),
            ),
        )
        return ExitCode.OK

    raise typer.Exit(execute(main))


@detector_app.command("replay")
def detector_replay(
    recordings: Annotated[
        list[Path], typer.Argument(metavar="RECORDING...", help="Files of `trainmover job record`.")
    ],
    *,
    detector: Annotated[
        list[str] | None,
        typer.Option("--detector", "-d", help="Name or package.module:Class; all when omitted."),
    ] = None,
    format: OutputOption = output.Format.TABLE,  # noqa: A002
) -> None:
    """Play recordings to detectors: what they would find, and how good that is."""

    async def main() -> ExitCode:
        data = _replayed(recordings, detector or list(find()))
        output.emit(data, format=format, render=lambda: _replay_tables(data))
        return ExitCode.FAILED if data["errors"] else ExitCode.OK

    raise typer.Exit(execute(main))


def _point(name: str) -> EntryPoint:
    """An installed detector by name, or one that is named by its class.

    Raises:
        ConfigError: There is none.
    """
    if ":" in name:
        return EntryPoint(name, name, GROUP)
    points = find()
    if name not in points:
        raise ConfigError(
            f"no detector {name!r} is installed; there are: {', '.join(points) or 'none'}. "
            "Write package.module:Class for one that is not registered."
        )
    return points[name]


def _class(point: EntryPoint) -> type[Any]:
    try:
        return class_of(point)
    except TrainMoverError:
        raise
    except Exception as error:  # a plugin may raise anything when it is imported
        raise ConfigError(f"detector {point.name} cannot be loaded: {error!r}.") from error


def _brief(name: str, point: EntryPoint) -> dict[str, Any]:
    """What a list says about a detector; why it cannot be used, if so."""
    try:
        says = (_class(point).__doc__ or "").strip().split("\n")[0]
    except TrainMoverError as error:
        says = f"unusable: {error}"
    return {
        "name": name,
        "from": point.dist.name if point.dist is not None else "",
        "version": version_of(point),
        "says": says,
    }


def _replayed(recordings: list[Path], names: list[str]) -> dict[str, Any]:
    totals: dict[str, dict[str, Score]] = {name: {} for name in names}
    findings: list[dict[str, Any]] = []
    errors: dict[str, str] = {}
    labelled = 0
    for path in recordings:
        detectors = {name: make(_class(_point(name))) for name in names}
        player, labels = play(read(path), detectors)
        labelled += len(labels)
        errors |= {name: repr(error) for name, error in player.errors.items()}
        for timed in player.findings:
            finding = timed.finding
            findings.append(
                {
                    "recording": str(path),
                    "at_s": round(timed.at_s, 3),
                    "step": timed.step,
                    "detector": timed.detector,
                    "kind": finding.kind,
                    "machine": finding.machine,
                    "link": finding.link,
                    "summary": finding.summary,
                }
            )
        for name in names:
            mine = [timed for timed in player.findings if timed.detector == name]
            kinds = {timed.finding.kind for timed in mine}
            about = labels if len(names) == 1 else [one for one in labels if one.kind in kinds]
            for kind, found in score(about, mine).items():
                totals[name].setdefault(kind, Score()).add(found)
    scores = {
        name: {kind: found.as_data() for kind, found in kinds.items()}
        for name, kinds in totals.items()
    }
    return {"labels": labelled, "findings": findings, "scores": scores, "errors": errors}


def _replay_tables(data: dict[str, Any]) -> Group:
    findings = [
        (f"{one['at_s']:.1f}", one["step"], one["detector"], one["kind"], one["summary"])
        for one in data["findings"]
    ]
    parts: list[Any] = [output.table(("second", "step", "detector", "kind", "finding"), findings)]
    if data["labels"]:
        rows = [
            (
                name,
                kind,
                found["precision"],
                found["recall"],
                found["culprit_accuracy"],
                found["seconds_to_detect_p95"],
            )
            for name, kinds in data["scores"].items()
            for kind, found in kinds.items()
        ]
        columns = ("detector", "kind", "precision", "recall", "culprit right", "seconds (p95)")
        parts += [Text(""), output.table(columns, rows)]
    parts += [Text(f"{name} raised {error}") for name, error in data["errors"].items()]
    return Group(*parts)
