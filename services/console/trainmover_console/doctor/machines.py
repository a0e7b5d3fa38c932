"""The machines of a job: whether the addresses that they announce can be reached from here."""

from __future__ import annotations

import asyncio
import contextlib
import ipaddress
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime

from trainmover.events.envelope import Envelope
from trainmover.events.machine import (
    MachineLost,
    MachineQuarantined,
    MachineRegistered,
    MachineReleased,
    MachineWarming,
)
from trainmover.events.migration import JobFailed, JobFinished, JobFormed, MigrationCommitted
from trainmover_console.doctor.symptom import Symptom, good, problem, reason, warning
from trainmover_console.view import JobView

__all__ = ["Announced", "announced", "dial", "judge", "judge_standbys"]

_DIAL_S = 3.0


@dataclass(frozen=True, slots=True)
class Announced:
    """What a machine said of itself: its host's name and where its ranks listen."""

    machine: str
    host: str
    endpoints: tuple[str, ...]


def announced(facts: Iterable[Envelope]) -> list[Announced]:
    """The machines in slots and the standbys, and where their ranks listen now. Pure."""
    hosts: dict[str, str] = {}
    waiting: dict[str, tuple[str, ...]] = {}
    active: dict[str, tuple[str, ...]] = {}
    for event in facts:
        match event.payload:
            case MachineRegistered(machine=offered, host=host):
                hosts[offered.name] = host
                waiting.pop(offered.name, None)
            case MachineWarming(machine=name, endpoints=endpoints):
                waiting[name] = tuple(each for slot in endpoints.values() for each in slot)
            case (
                MachineLost(machine=name)
                | MachineQuarantined(machine=name)
                | MachineReleased(machine=name)
            ):
                waiting.pop(name, None)
                active.pop(name, None)
            case JobFormed(membership=members) | MigrationCommitted(membership=members):
                active = {one.machine: one.endpoints for one in members.members}
            case JobFinished() | JobFailed():
                return []
            case _:
                pass
    there = {**waiting, **active}
    return [Announced(name, hosts.get(name, "?"), there[name]) for name in sorted(there)]


async def dial(machines: Iterable[Announced]) -> dict[str, str]:
    """Why an endpoint could not be reached, by endpoint; empty for one that could."""
    results: dict[str, str] = {}

    async def one(endpoint: str) -> None:
        host, _, port = endpoint.rpartition(":")
        try:
            async with asyncio.timeout(_DIAL_S):
                _, writer = await asyncio.open_connection(host.strip("[]"), int(port))
        except TimeoutError:
            results[endpoint] = f"no answer in {_DIAL_S:g} s"
        except (OSError, ValueError) as error:
            results[endpoint] = reason(error)
        else:
            results[endpoint] = ""
            writer.close()
            with contextlib.suppress(OSError):
                await writer.wait_closed()

    async with asyncio.TaskGroup() as group:
        for endpoint in {each for machine in machines for each in machine.endpoints}:
            group.create_task(one(endpoint))
    return results


def judge(machines: list[Announced], reached: Mapping[str, str]) -> Iterator[Symptom]:
    """What that means. Pure."""
    several = len({machine.host for machine in machines}) > 1
    for machine in machines:
        if several and any(map(_is_loopback, machine.endpoints)):
            yield problem(
                "interface",
                f"{machine.machine} on {machine.host} announces {machine.endpoints[0]}, which "
                "leads every other host to itself",
                f"Start its agent with --host and an address of {machine.host} that others reach.",
            )
            continue
        broken = [(each, reached[each]) for each in machine.endpoints if reached.get(each)]
        if broken:
            endpoint, why = broken[0]
            yield warning(
                "machines",
                f"{machine.machine} on {machine.host} cannot be reached at {endpoint}: {why}",
                "Let the firewall between the hosts pass its ports, or name another interface: "
                "trainmover agent --host ADDRESS. (From here: this host may be outside.)",
            )
    if machines and not any(reached.values()):
        yield good("machines", f"{len(machines)} machines can be reached where they say they are")


def judge_standbys(view: JobView, *, now: datetime) -> Iterator[Symptom]:
    """Slots that a standby cannot get warm for. Pure."""
    for standby in () if view.over else view.standbys:
        for one in standby.not_ready:
            yield problem(
                "standbys",
                f"{standby.name} is not ready for {one.slot_words}: {one.words(now)}",
                f"Read the output of rank {one.rank} on {standby.name}: the program failed in its "
                "shadow iterations. What cannot run there belongs behind 'if not "
                "session.is_shadow'.",
            )
        if standby.data_differs:
            yield warning(
                "standbys",
                f"{standby.name} would be given {standby.data_differs}",
                "Once a machine is replaced, results are others than those of an undisturbed run: "
                "see 'A standby would be given other data' in docs/howto/troubleshooting.md.",
            )


def _is_loopback(endpoint: str) -> bool:
    with contextlib.suppress(ValueError):
        return ipaddress.ip_address(endpoint.rpartition(":")[0].strip("[]")).is_loopback
    return endpoint.startswith("localhost:")
