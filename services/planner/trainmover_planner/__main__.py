"""``python -m trainmover_planner``: the planner as a process."""

from __future__ import annotations

import argparse

from trainmover.bus.protocol import Bus
from trainmover.errors import TrainMoverError
from trainmover.protocol.table import Deadlines
from trainmover.service import ServiceOptions, add_common_options, run_service
from trainmover_planner.service import Planner
from trainmover_planner.state import Settings


def main() -> None:
    """Parse the command line and plan until told to stop."""
    defaults, limits = Settings(), Deadlines()
    parser = argparse.ArgumentParser(prog="trainmover-planner", description=__doc__)
    add_common_options(parser)
    group = parser.add_argument_group("policy")
    group.add_argument(
        "--no-automation", action="store_true", help="move no straggler without being asked"
    )
    group.add_argument(
        "--approve-moves",
        action="store_true",
        help="propose to move a straggler, and wait for an operator to approve it",
    )
    group.add_argument(
        "--keep-reserve",
        type=int,
        default=defaults.keep_reserve,
        metavar="N",
        help="standbys that automatic moves leave for crashes (default %(default)s)",
    )
    seconds = {
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
    arguments = parser.parse_args()
    settings = Settings(
        automation=not arguments.no_automation,
        approval=arguments.approve_moves,
        keep_reserve=arguments.keep_reserve,
        cooldown_s=arguments.cooldown,
        form_quiet_s=arguments.form_quiet,
        deadlines=Deadlines(
            prepare_s=arguments.prepare_deadline, switch_s=arguments.switch_deadline
        ),
    )

    async def plan(bus: Bus, options: ServiceOptions) -> int | None:
        await Planner(bus, job=options.job, settings=settings).run()
        return None

    try:
        options = ServiceOptions.from_args("planner", arguments)
    except TrainMoverError as error:
        parser.exit(2, f"{parser.prog}: {error}\n")
    run_service(options, plan)


if __name__ == "__main__":
    main()
