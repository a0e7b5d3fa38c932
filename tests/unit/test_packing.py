"""Long commands travel compressed, and nobody's memory is filled by a short one."""

from __future__ import annotations

import zlib

import pytest

from trainmover.bus.nats import packing
from trainmover.bus.nats.packing import ENCODING, ZLIB, Packer, unpack
from trainmover.commands import Command, Start, Stop, parse_command
from trainmover.errors import MalformedEventError
from trainmover.job.topology import Layout, Member, Membership


def start(slots: int) -> Start:
    members = tuple(
        Member(
            machine=f"node-{slot}",
            generation=3,
            endpoints=tuple(f"10.0.{slot // 250}.{slot % 250}:{9000 + r}" for r in range(8)),
        )
        for slot in range(slots)
    )
    membership = Membership(epoch=1, layout=Layout(slots=slots, ranks_per_slot=8), members=members)
    return Start(generation=3, slot=1, membership=membership)


@pytest.mark.parametrize(
    "command", [Stop(reason="over"), start(1), start(1024)], ids=["stop", "one", "many"]
)
def test_what_is_unpacked_is_what_was_packed(command: Command) -> None:
    headers, body = Packer().pack(command)
    assert parse_command(unpack(headers.get(ENCODING), body)) == command


def test_a_short_command_stays_readable() -> None:
    headers, body = Packer().pack(Stop(reason="over"))
    assert not headers
    assert body.startswith(b"{")


def test_a_large_jobs_membership_shrinks_to_a_fifth() -> None:
    command = start(1024)
    headers, body = Packer().pack(command)
    assert headers == {ENCODING: ZLIB}
    assert len(body) < len(command.model_dump_json()) / 5


def test_one_command_for_all_machines_is_made_once() -> None:
    packer, command = Packer(), start(64)
    assert packer.pack(command)[1] is packer.pack(command)[1]
    assert packer.pack(start(65))[1] != packer.pack(command)[1]


@pytest.mark.parametrize(
    ("encoding", "data", "why"),
    [
        ("gzip", b"x", "only zlib"),
        (ZLIB, b"no such thing", "cannot be decompressed"),
        (ZLIB, zlib.compress(b"{}" * 99)[:-5], "too early"),
        (ZLIB, zlib.compress(b" " * 2000), "is over 1000 bytes"),
    ],
)
def test_what_cannot_be_unpacked_is_malformed(
    encoding: str, data: bytes, why: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(packing, "_LARGEST", 1000)
    with pytest.raises(MalformedEventError, match=why):
        unpack(encoding, data)
