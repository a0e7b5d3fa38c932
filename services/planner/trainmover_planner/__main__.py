"""``python -m trainmover_planner``: the planner as a process."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any, Final, get_args

from trainmover.bus.protocol import Bus
from trainmover.errors import TrainMoverError
from trainmover.job.policies import AutomationMode, OnWorkerCrash, WhenExhausted
from trainmover.policy import Policy
from trainmover.runtime.lease import Lease
from trainmover.runtime.service import ServiceOptions, add_common_options, run_service
from trainmover_planner.policy_file import PolicyFiles
from trainmover_planner.service import Planner

_DEFAULTS: Final = Policy()

_CHOICES: Final = {
    "automation": (
        AutomationMode,
        "what policy does about a straggler: move it, propose to and wait for an operator's "
        "approval, or nothing; operators may change it",
    ),
    "when_exhausted": (
        WhenExhausted,
        "what becomes of a job that no machine is left for: hold it until one comes, or after "
        "--exhausted-after end it, with a checkpoint or without",
    ),
    "on_worker_crash": (
        OnWorkerCrash,
        "who takes the slot of a machine whose program crashed: a standby, or the machine "
        "itself, started over",
    ),
}
_COUNTS: Final = {
    "keep_reserve": "standbys that automatic moves leave for crashes",
    "moves_per_hour": "machines that policy may move by itself within an hour",
    "fence_budget": "machines that are ended within an hour because a detector advises it, where "
    "that is no evidence of death",
    "fence_votes": "detectors that have to agree on that",
}
_SECONDS: Final = {
    "exhausted_after_s": "hold an exhausted job for so long",
    "checkpoint_deadline_s": "longest wait for the checkpoint",
    "restart_within_s": "longest wait for a machine to start over",
    "cooldown_s": "pause between automatic moves of one slot",
    "horizon_s": "a straggler is moved where it would cost more than its move within so long",
    "form_quiet_s": "form the job when nobody registered for so long",
    "prepare_deadline_s": "longest phase 1 of a planned move",
    "switch_deadline_s": "longest switch or recovery, without what ranks do in their programs",
}


def main() -> None:
    """Parse the command line and plan until told to stop."""
    parser = argparse.ArgumentParser(prog="trainmover planner run", description=__doc__)
    add_common_options(parser)
    _add_policy(parser)
    parser.add_argument_group("replicas").add_argument(
        "--lease",
        type=float,
        default=3.0,
        metavar="SECONDS",
        help="a replica takes over when this one was silent for so long (default %(default)g)",
    )
    arguments = parser.parse_args()
    given = {
        name: value
        for name in Policy.model_fields
        if (value := getattr(arguments, name, None)) is not None
    }
    policy = PolicyFiles(arguments.policy, shadow=arguments.shadow_policy, options=given)

    async def plan(bus: Bus, options: ServiceOptions) -> int | None:
        lease = Lease(bus, job=options.job, service="planner", ttl_s=arguments.lease)
        await Planner(bus, job=options.job, policy=policy, lease=lease).run()
        return None

    try:
        PolicyFiles(options=given).load()
        options = ServiceOptions.from_args("planner", arguments)
    except TrainMoverError as error:
        parser.exit(2, f"{parser.prog}: {error}\n")
    run_service(options, plan)


def _add_policy(parser: argparse.ArgumentParser) -> None:
    """What can be declared; what is not said here, the file says, or the defaults."""
    group = parser.add_argument_group("policy")
    group.add_argument(
        "--policy",
        type=Path,
        metavar="FILE",
        help="YAML with all that can be declared, read again when it changes; what is said here "
        "comes before it (see docs/concepts/policy.md)",
    )
    group.add_argument(
        "--shadow-policy",
        type=Path,
        metavar="FILE",
        help="a policy that only says what it would do",
    )
    group.add_argument(
        "--topology",
        metavar="LABELS",
        help="labels that say where a machine is, the nearest level first: a job's ring goes place "
        "by place, and a standby near to the machines beside a slot is preferred "
        f"(default {','.join(_DEFAULTS.topology)})",
    )
    group.add_argument(
        "--rebalance",
        metavar="EVERY",
        help="exchange the slowest machine for a better standby so often, for instance 10m, where "
        "that pays; off: never (default off)",
    )
    for name, (choices, text) in _CHOICES.items():
        _add(group, name, text, choices=get_args(choices))
    for name, text in _COUNTS.items():
        _add(group, name, text, type=int, metavar="N")
    for name, text in _SECONDS.items():
        _add(group, name, text, type=float, metavar="SECONDS")


def _add(group: argparse._ArgumentGroup, name: str, text: str, **how: Any) -> None:
    default = getattr(_DEFAULTS, name)
    shown = "no limit" if default is None else f"{default:g}" if "type" in how else default
    option = "--" + name.removesuffix("_s").replace("_", "-")
    group.add_argument(option, dest=name, help=f"{text} (default {shown})", **how)


if __name__ == "__main__":
    main()
