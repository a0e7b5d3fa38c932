"""The doctor's judgements, each fault injected by itself."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from tests.unit import factories as make

from trainmover import __version__
from trainmover.bus.credentials import BusAddress, Credentials
from trainmover.events import machine, migration
from trainmover.job.topology import Layout, Machine, Member, Membership
from trainmover_console.doctor import Symptom, bus, host, machines, worst
from trainmover_console.doctor.bus import Greeting, Seen
from trainmover_console.doctor.host import Host

WELL = Host(
    python=(3, 12),
    linux=True,
    versions={"trainmover": "0.1", "nats-py": "2.16.0", "torch": "2.13.0+cpu"},
    files=(65536, 65536),
    free_bytes={"/data": 10**12},
    address="10.0.0.5",
    interface="eth0",
    mbit_s=25000,
    bus_is_far=True,
)
INFO = {"version": "2.15.1", "jetstream": True, "max_payload": 8388608, "auth_required": True}
KEY = Credentials(nkey=Path("nkey"), ca=Path("ca.pem"))
SEEN = Seen(
    refused={},
    round_trip_s=0.001,
    ahead_s=0.01,
    stream=True,
    services=(("trainmover-detector", __version__),),
    facts=9,
    planner=True,
)


def bad(findings: Any) -> list[Symptom]:
    return [one for one in findings if one.level != "ok"]


def test_a_well_host_has_no_findings() -> None:
    found = list(host.judge(WELL))
    assert bad(found) == []
    assert worst(found) == "ok"
    assert {one.check for one in found} >= {"python", "versions", "open files", "ports", "disk"}


@pytest.mark.parametrize(
    ("fault", "check", "level", "cure"),
    [
        ({"python": (3, 10)}, "python", "problem", "3.11"),
        ({"versions": {"nats-py": "2.9", "torch": "2.6"}}, "versions", "problem", "nats-py>=2.16"),
        ({"versions": {"nats-py": "2.16"}}, "versions", "warning", "trainmover[train]"),
        ({"server": False}, "versions", "warning", "trainmover[server]"),
        ({"files": (1024, 1024)}, "open files", "problem", "as root"),
        ({"files": (1024, -1)}, "open files", "problem", "ulimit -n 4096"),
        ({"ports": (40000, 40100)}, "ports", "warning", "ip_local_port_range"),
        ({"free_bytes": {"/data": 10**6}}, "disk", "problem", "TRAINMOVER_HOME"),
        ({"interface": "docker0"}, "interface", "warning", "--host"),
        ({"mbit_s": 100}, "interface", "warning", "--host"),
    ],
)  # fmt: skip
def test_what_is_wrong_with_the_host_has_a_cure(
    fault: dict[str, Any], check: str, level: str, cure: str
) -> None:
    (found,) = bad(host.judge(replace(WELL, **fault)))
    assert (found.check, found.level) == (check, level)
    assert cure in found.cure


def test_this_host_can_be_looked_at() -> None:
    found = host.gather(BusAddress.parse("nats://127.0.0.1"))
    assert (found.address, found.interface, found.bus_is_far) == ("127.0.0.1", "lo", False)
    assert found.versions["nats-py"]
    assert found.free_bytes


@pytest.mark.parametrize(
    ("greeting", "credentials", "check", "cure"),
    [
        (Greeting("nats://h:1", error="Connection refused"), KEY, "bus", "trainmover up"),
        (Greeting("nats://h:1"), KEY, "bus", "stop it"),
        (Greeting("h:1", info={**INFO, "version": "2.9.1"}), KEY, "bus", "newer"),
        (Greeting("h:1", info={**INFO, "jetstream": False}), KEY, "jetstream", "-js"),
        (Greeting("h:1", info={**INFO, "max_payload": 1048576}), KEY, "bus", "8MB"),
        (Greeting("h:1", info=INFO), Credentials(), "permissions", "TRAINMOVER_NATS_NKEY"),
        (
            Greeting("h:1", info={**INFO, "tls_required": True}),
            Credentials(nkey=Path("nkey")),
            "permissions",
            "TRAINMOVER_NATS_CA",
        ),
    ],
)
def test_what_is_wrong_with_the_bus_has_a_cure(
    greeting: Greeting, credentials: Credentials, check: str, cure: str
) -> None:
    (found,) = bad(bus.judge_greeting(greeting, credentials))
    assert (found.check, found.level) == (check, "problem")
    assert cure in found.cure


def test_an_open_bus_is_a_warning() -> None:
    greeting = Greeting("h:1", info={**INFO, "auth_required": False})
    (found,) = bad(bus.judge_greeting(greeting, Credentials()))
    assert (found.check, found.level) == ("permissions", "warning")


def test_a_bus_that_works_is_well() -> None:
    assert bad(bus.judge(SEEN, job="j")) == []


@pytest.mark.parametrize(
    ("fault", "check", "cure"),
    [
        ({"refused": {"count the facts": "forbidden"}}, "permissions", "operator's key"),
        ({"stream": False}, "jetstream", "trainmover bus setup"),
        ({"round_trip_s": 0.3}, "bus", "nearer"),
        ({"ahead_s": -4.0}, "clock", "chrony"),
        ({"services": (("trainmover-detector", "0.0.1"),)}, "versions", "same version"),
        ({"services": ()}, "services", "trainmover up"),
        ({"planner": False}, "services", "trainmover up --job j"),
        ({"facts": 0}, "job", "TRAINMOVER_JOB"),
    ],
)
def test_what_a_client_sees_has_a_cure(fault: dict[str, Any], check: str, cure: str) -> None:
    (found,) = bad(bus.judge(replace(SEEN, **fault), job="j"))
    assert found.check == check
    assert cure in found.cure


def offered(name: str, host: str) -> machine.MachineRegistered:
    return machine.MachineRegistered(
        machine=Machine(name=name, generation=0, endpoints=("127.0.0.1:9",)),
        nnodes_min=2,
        nnodes_max=3,
        pid=7,
        host=host,
    )


def warming(name: str, *endpoints: str) -> machine.MachineWarming:
    slots = {slot: (endpoint,) for slot, endpoint in enumerate(endpoints)}
    return machine.MachineWarming(machine=name, generation=0, endpoints=slots)


def formed(**endpoints: str) -> migration.JobFormed:
    members = tuple(
        Member(machine=name, generation=0, endpoints=(each,)) for name, each in endpoints.items()
    )
    whole = Membership(epoch=1, layout=Layout(slots=len(members)), members=members)
    return migration.JobFormed(membership=whole, standbys=())


def test_machines_are_those_in_slots_and_the_standbys() -> None:
    facts = [
        *(offered(name, f"h-{name}") for name in "abcd"),
        formed(a="10.0.0.1:1", b="10.0.0.2:1"),
        warming("c", "10.0.0.3:1", "10.0.0.3:2"),
        warming("d", "10.0.0.4:1"),
        machine.MachineLost(machine="d", reason="gone"),
        machine.MachineQuarantined(machine="b", reason="slow"),
    ]
    there = machines.announced(map(make.said, facts))
    assert [(one.machine, one.host, one.endpoints) for one in there] == [
        ("a", "h-a", ("10.0.0.1:1",)),
        ("c", "h-c", ("10.0.0.3:1", "10.0.0.3:2")),
    ]
    over = migration.JobFinished(epoch=1, step=3)
    assert machines.announced(map(make.said, [*facts, over])) == []


def test_the_wrong_interface_and_closed_ports_are_found() -> None:
    facts = [
        *(offered(name, f"h-{name}") for name in "abc"),
        formed(a="127.0.0.1:1", b="10.0.0.2:1", c="10.0.0.3:1"),
    ]
    there = machines.announced(map(make.said, facts))
    reached = {"127.0.0.1:1": "", "10.0.0.2:1": "no answer in 3 s", "10.0.0.3:1": ""}
    lost, shut = bad(machines.judge(there, reached))
    assert (lost.check, lost.level) == ("interface", "problem")
    assert "a on h-a announces 127.0.0.1:1" in lost.text
    assert (shut.check, shut.level) == ("machines", "warning")
    assert "b on h-b cannot be reached at 10.0.0.2:1" in shut.text
    alone = machines.announced(map(make.said, [offered("a", "h"), formed(a="127.0.0.1:1")]))
    assert bad(machines.judge(alone, {"127.0.0.1:1": ""})) == []
