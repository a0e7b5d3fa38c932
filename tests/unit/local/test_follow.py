"""Rank 0's output is shown once, in order, without shadow iterations."""

from __future__ import annotations

from pathlib import Path

from tests.unit.factories import membership_of as membership

from trainmover_launcher.follow import OutputFollower


def test_follows_rank_0_from_machine_to_machine_without_shadow_output(tmp_path: Path) -> None:
    (tmp_path / "rank0-node-0-old.log").write_text("an earlier job\n")
    shown = bytearray()
    follower = OutputFollower(tmp_path, write=shown.extend)
    active = tmp_path / "rank0-node-0-a.log"
    standby = tmp_path / "rank0-node-2-s.log"
    active.write_text("one\n")
    standby.write_text("shadow\n")
    follower.copy()
    assert shown == b""
    follower.follow_members(membership("node-0", "node-1"))
    follower.copy()
    with active.open("a") as stream:
        stream.write("two\n")
    follower.follow_members(membership("node-2", "node-1", epoch=2))
    with standby.open("a") as stream:
        stream.write("three\n")
    follower.copy()
    follower.copy()
    assert shown == b"one\ntwo\nthree\n"


def test_nothing_is_skipped_when_another_slot_moves(tmp_path: Path) -> None:
    shown = bytearray()
    follower = OutputFollower(tmp_path, write=shown.extend)
    follower.follow_members(membership("node-0", "node-1"))
    (tmp_path / "rank0-node-0-a.log").write_text("one\n")
    follower.follow_members(membership("node-0", "node-2", epoch=2))
    follower.copy()
    assert shown == b"one\n"
