"""``python -m trainmover_planner``: the planner as a process."""

from __future__ import annotations

import argparse
from typing import get_args

from trainmover.bus.protocol import Bus
from trainmover.errors import TrainMoverError
from trainmover.events.operator import AutomationMode
from trainmover.job.policies import OnWorkerCrash, WhenExhausted
from trainmover.protocol.table import Deadlines
from trainmover.runtime.lease import Lease
from trainmover.runtime.service import ServiceOptions, add_common_options, run_service
from trainmover_planner.service import Planner
from trainmover_planner.state.state import Settings


def main() -> None:
    """Parse the command line and plan until told to stop."""
    defaults, limits = Settings(), Deadlines()
    parser = argparse.ArgumentParser(prog="trainmover planner run", description=__doc__)
    add_common_options(parser)
    group = parser.add_argument_group("policy")
    group.add_argument(
        "--automation",
        choices=get_args(AutomationMode),
        default=defaults.automation,
        help="what policy does about a straggler: move it, propose to and wait for an operator's "
        "approval, or nothing; operators may change it (default %(default)s)",
    )
    group.add_argument(
        "--keep-reserve",
        type=int,
        default=defaults.keep_reserve,
        metavar="N",
        help="standbys that automatic moves leave for crashes (default %(default)s)",
    )
    group.add_argument(
        "--topology",
        default=",".join(defaults.topology),
        metavar="LABELS",
        help="labels that say where a machine is, the nearest level first: a standby near to the "
        "machines beside a slot is preferred (default %(default)s)",
    )
    group.add_argument(
        "--fence-budget",
        type=int,
        default=defaults.fence_budget,
        metavar="N",
        help="machines that are ended within an hour because a detector advises it, where that is "
        "no evidence of death (default %(default)s)",
    )
    group.add_argument(
        "--fence-votes",
        type=int,
        default=defaults.fence_votes,
        metavar="K",
        help="detectors that have to agree on that (default %(default)s)",
    )
    group.add_argument(
        "--when-exhausted",
        choices=get_args(WhenExhausted),
        default=defaults.when_exhausted,
        help="what becomes of a job that no machine is left for: hold it until one comes, or after "
        "--exhausted-after end it, with a checkpoint or without (default %(default)s)",
    )
    group.add_argument(
        "--on-worker-crash",
        choices=get_args(OnWorkerCrash),
        default=defaults.on_worker_crash,
        help="who takes the slot of a machine whose program crashed: a standby, or the machine "
        "itself, started over (default %(default)s)",
    )
    seconds = {
        "exhausted-after": (defaults.exhausted_after_s, "hold an exhausted job for so long"),
        "checkpoint-deadline": (defaults.checkpoint_s, "longest wait for the checkpoint"),
        "restart-within": (defaults.restart_within_s, "longest wait for a machine to start over"),
        "cooldown": (defaults.cooldown_s, "pause between automatic moves of one slot"),
        "form-quiet": (defaults.form_quiet_s, "form the job when nobody registered for so long"),
        "prepare-deadline": (limits.prepare_s, "longest phase 1 of a planned move"),
        "switch-deadline": (limits.switch_s, "longest switch or recovery"),
    }
    for name, (default, text) in seconds.items():
        group.add_argument(
            f"--{name}",
            type=float,
            default=default,
            metavar="SECONDS",
            help=f"{text} (default %(default)g)",
        )
    group.add_argument(
        "--lease",
        type=float,
        default=3.0,
        metavar="SECONDS",
        help="a replica takes over when this one was silent for so long (default %(default)g)",
    )
    arguments = parser.parse_args()
    settings = Settings(
        automation=arguments.automation,
        keep_reserve=arguments.keep_reserve,
        topology=tuple(level.strip() for level in arguments.topology.split(",") if level.strip()),
        fence_budget=arguments.fence_budget,
        fence_votes=arguments.fence_votes,
        cooldown_s=arguments.cooldown,
        form_quiet_s=arguments.form_quiet,
        when_exhausted=arguments.when_exhausted,
        exhausted_after_s=arguments.exhausted_after,
        checkpoint_s=arguments.checkpoint_deadline,
        on_worker_crash=arguments.on_worker_crash,
        restart_within_s=arguments.restart_within,
        deadlines=Deadlines(
            prepare_s=arguments.prepare_deadline, switch_s=arguments.switch_deadline
        ),
    )

    async def plan(bus: Bus, options: ServiceOptions) -> int | None:
        lease = Lease(bus, job=options.job, service="planner", ttl_s=arguments.lease)
        await Planner(bus, job=options.job, settings=settings, lease=lease).run()
        return None

    try:
        options = ServiceOptions.from_args("planner", arguments)
    except TrainMoverError as error:
        parser.exit(2, f"{parser.prog}: {error}\n")
    run_service(options, plan)


if __name__ == "__main__":
    main()
