"""``trainmover policy``: what is declared about moves, and what it makes of an incident."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Group

from trainmover.commands import Refusal
from trainmover.errors import RequestRefusedError
from trainmover.policy import Policy, PolicyError, Problem, declared, read
from trainmover.protocol.replies import parse_as
from trainmover.protocol.requests import Explanation, PolicyRequest, PolicyStatus
from trainmover_console.cli import output
from trainmover_console.cli.connect import (
    JobOption,
    NatsOption,
    OutputOption,
    Target,
    connect,
    execute,
)
from trainmover_console.cli.exits import ExitCode

__all__ = ["policy_app", "read_policy"]

policy_app = typer.Typer(help="What is declared about moves.", no_args_is_help=True)


@policy_app.command("show")
def show(
    *,
    job: JobOption = None,
    nats: NatsOption = None,
    format: OutputOption = output.Format.TABLE,  # noqa: A002
) -> None:
    """Show the policy in force, as a file would say it, and where it is from.

    Exit codes: 0 done, 2 usage, 4 unreachable.
    """

    async def main() -> ExitCode:
        status = await _ask(job, nats, PolicyRequest())
        for problem in status.problems:
            output.warn(f"not in force: {problem}")
        shadow = status.shadow
        data = {
            "source": status.source,
            "policy": declared(status.policy),
            "shadow_source": status.shadow_source,
            "shadow": None if shadow is None else declared(shadow),
            "problems": list(status.problems),
        }
        output.emit(data, format=format, render=lambda: _shown(status))
        return ExitCode.OK

    raise typer.Exit(execute(main))


@policy_app.command("check")
def check(
    file: Annotated[Path, typer.Argument(help="A policy, in YAML.")],
    *,
    format: OutputOption = output.Format.TABLE,  # noqa: A002
) -> None:
    """Say whether a file is a policy, and what it declares; needs no job.

    Exit codes: 0 it is one, 2 it is none: each problem is told with its line and the cure.
    """

    async def main() -> ExitCode:
        policy = read_policy(file)
        count = len(policy.rules)
        words = f"{file} is a policy with {count} rule{'s' * (count != 1)}."
        output.emit(declared(policy), format=format, render=lambda: words)
        return ExitCode.OK

    raise typer.Exit(execute(main))


@policy_app.command("explain")
def explain(
    incident: Annotated[str, typer.Argument(help="An open incident, as status names it.")],
    *,
    job: JobOption = None,
    nats: NatsOption = None,
    format: OutputOption = output.Format.TABLE,  # noqa: A002
) -> None:
    """Say what policy makes of an open incident: which rule decides, and what it waits for.

    Exit codes: 0 done, 2 usage, 3 there is no such open incident, 4 unreachable.
    """

    async def main() -> ExitCode:
        status = await _ask(job, nats, PolicyRequest(incident=incident))
        found = status.explanation
        assert found is not None  # noqa: S101 - it was asked for
        output.emit(found.model_dump(mode="json"), format=format, render=lambda: _explained(found))
        return ExitCode.OK

    raise typer.Exit(execute(main))


def read_policy(file: Path) -> Policy:
    """The policy that a file declares.

    Raises:
        PolicyError: It cannot be read, or is wrong.
    """
    if file.exists() and not file.is_file():
        raise PolicyError([Problem(str(file), "it is no file. Write the policy to one.")])
    try:
        text = file.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or "it is no text in UTF-8"
        raise PolicyError([Problem(str(file), f"it cannot be read: {reason}.")]) from error
    return read(text, name=str(file))


async def _ask(job: str | None, nats: str | None, request: PolicyRequest) -> PolicyStatus:
    target = Target.find(job, nats)
    async with connect(target) as bus:
        reply = parse_as(
            PolicyStatus, await bus.request(target.job, "policy", request, timeout_s=5.0)
        )
    if isinstance(reply, Refusal):
        raise RequestRefusedError(
            f"refused ({reply.code}): {reply.reason}", code=reply.code, next_step=reply.next_step
        )
    return reply


def _shown(status: PolicyStatus) -> str:
    lines = [f"# in force, from {status.source}", output.to_yaml(declared(status.policy))]
    if status.shadow is not None:
        lines += [f"# shadow, from {status.shadow_source}", output.to_yaml(declared(status.shadow))]
    return "\n".join(lines).rstrip("\n")


_DECISIONS = {"act": "it is acted on", "wait": "it waits for an operator", "ignore": "nothing"}


def _explained(found: Explanation) -> Any:
    rule = f"rule {found.rule!r}" if found.rule else "no rule matches"
    held = [one.what for one in found.checks if not one.holds]
    until = f", once {' and '.join(held)} allow{'s' * (len(held) == 1)}" if held else ""
    ends = "" if found.decision == "ignore" else until
    lines = [
        f"{found.incident}: {found.summary}",
        f"{_DECISIONS[found.decision]}{ends} ({rule}; automation is {found.mode})",
    ]
    if found.would is not None:
        rule = f"rule {found.would_rule!r}" if found.would_rule else "no rule matches"
        lines.append(f"the shadow policy: {_DECISIONS[found.would]} ({rule})")
    rules = [(one.rule or "none", "yes" if one.decides else "no", one.why) for one in found.rules]
    checks = [(one.what, "yes" if one.holds else "no", one.words) for one in found.checks]
    return Group(
        *lines,
        "",
        output.table(("rule", "decides", "because"), rules),
        "",
        output.table(("check", "holds", "numbers"), checks),
    )
