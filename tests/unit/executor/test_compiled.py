"""Compiled code on its way to a standby: what is offered, what is refused, what arrives."""

from __future__ import annotations

import asyncio
import os
import socket
from pathlib import Path

import pytest

from trainmover.errors import ConfigError, ProtocolError
from trainmover_executor.links.dialling.endpoint import Endpoint
from trainmover_executor.links.dialling.frames import next_frame, send_frame
from trainmover_executor.links.dialling.handshake import COMPILED_GROUP, LinkRequest
from trainmover_executor.links.dialling.secret import LinkSecret
from trainmover_executor.worker.to_standbys import compiled_folder as compiled
from trainmover_executor.worker.to_standbys.compiled import fetch_compiled, serve_compiled
from trainmover_executor.worker.to_standbys.compiled_folder import (
    SETTLED_S,
    SHARE_VARIABLE,
    CompiledFile,
)

FOLDER_VARIABLE = "TORCHINDUCTOR_CACHE_DIR"
NOW = 1_000_000.0
SECRET = LinkSecret(b"s" * 32)


def cache(folder: Path, **contents: bytes) -> Path:
    """A folder with files that have settled; two underscores stand for a slash, one for a dot."""
    for name, data in contents.items():
        path = folder / name.replace("__", "/").replace("_", ".")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)
        os.utime(path, (NOW - SETTLED_S, NOW - SETTLED_S))
    return folder


class TestOffers:
    def test_complete_files_are_offered_with_their_mode(self, tmp_path: Path) -> None:
        cache(tmp_path, ab__kernel_so=b"elf", ab__kernel_cpp=b"int x;")
        (tmp_path / "ab" / "kernel.so").chmod(0o755)
        assert compiled.offers(tmp_path, now=NOW) == (
            CompiledFile("ab/kernel.cpp", 6, executable=False),
            CompiledFile("ab/kernel.so", 3, executable=True),
        )

    def test_what_may_not_be_whole_is_not_offered(self, tmp_path: Path) -> None:
        cache(tmp_path, young_so=b"el", one_lock=b"", two_tmp=b"x")
        os.utime(tmp_path / "young.so", (NOW, NOW - SETTLED_S + 0.5))
        assert compiled.offers(tmp_path, now=NOW) == ()

    def test_links_are_not_followed(self, tmp_path: Path) -> None:
        secret = cache(tmp_path / "elsewhere", key=b"private")
        folder = cache(tmp_path / "cache", a_so=b"elf")
        (folder / "key").symlink_to(secret / "key")
        os.utime(folder / "key", (NOW - 60, NOW - 60), follow_symlinks=False)
        assert [file.name for file in compiled.offers(folder, now=NOW)] == ["a.so"]

    def test_a_folder_that_is_not_there_offers_nothing(self, tmp_path: Path) -> None:
        assert compiled.offers(tmp_path / "none", now=NOW) == ()


class TestLists:
    def test_a_list_survives_the_wire(self) -> None:
        files = (CompiledFile("a/b.so", 7, executable=True), CompiledFile("c", 0, executable=False))
        assert compiled.parse(compiled.pack(files)) == files

    @pytest.mark.parametrize(
        "name", ["", "/etc/passwd", "../x", "a/../../x", "..", "a\0b", "x" * 513, "."]
    )
    def test_names_that_lead_out_are_refused(self, name: str) -> None:
        with pytest.raises(ProtocolError, match="is not the name of a compiled file"):
            compiled.parse(compiled.pack([CompiledFile(name, 1, executable=False)]))

    @pytest.mark.parametrize("size", [-1, 2**40])
    def test_sizes_are_bounded(self, size: int) -> None:
        with pytest.raises(ProtocolError, match="over the limit"):
            compiled.parse(compiled.pack([CompiledFile("a", size, executable=False)]))

    def test_the_whole_is_bounded(self) -> None:
        many = [CompiledFile(str(n), 2**29, executable=False) for n in range(5)]
        with pytest.raises(ProtocolError, match="5 compiled files are over the limit"):
            compiled.parse(compiled.pack(many))

    @pytest.mark.parametrize("data", [b"", b"{}", b"\xff", b'[{"name": 3}]', b"[1]"])
    def test_garbage_is_refused(self, data: bytes) -> None:
        with pytest.raises(ProtocolError, match="does not parse"):
            compiled.parse(data)


class TestArriving:
    def test_a_file_appears_when_it_is_complete(self, tmp_path: Path) -> None:
        file = CompiledFile("ab/k.so", 3, executable=True)
        with compiled.arriving(file, tmp_path) as target:
            target.write(b"elf")
            assert compiled.wanted([file], tmp_path) == (file,)
        assert (tmp_path / "ab" / "k.so").read_bytes() == b"elf"
        assert os.access(tmp_path / "ab" / "k.so", os.X_OK)
        assert compiled.wanted([file], tmp_path) == ()

    def test_a_file_that_is_cut_off_leaves_nothing(self, tmp_path: Path) -> None:
        file = CompiledFile("ab/k.so", 3, executable=True)

        def cut_off() -> None:
            with compiled.arriving(file, tmp_path) as target:
                target.write(b"e")
                raise OSError("gone")

        with pytest.raises(OSError, match="gone"):
            cut_off()
        assert list((tmp_path / "ab").iterdir()) == []

    def test_nothing_is_written_through_a_link(self, tmp_path: Path) -> None:
        (tmp_path / "cache").mkdir()
        (tmp_path / "home").mkdir()
        (tmp_path / "cache" / "ab").symlink_to(tmp_path / "home")
        file = CompiledFile("ab/.profile", 3, executable=False)
        with (
            pytest.raises(ProtocolError, match="outside"),
            compiled.arriving(file, tmp_path / "cache"),
        ):
            pass
        assert list((tmp_path / "home").iterdir()) == []


class TestSharing:
    def test_nothing_is_shared_unless_it_is_asked_for(self, monkeypatch: pytest.MonkeyPatch):
        monkeypatch.delenv(SHARE_VARIABLE, raising=False)
        assert compiled.shared(authenticated=True) is False
        monkeypatch.setenv(SHARE_VARIABLE, "share")
        assert compiled.shared(authenticated=True) is True

    def test_links_that_anybody_may_use_share_no_code(self, monkeypatch: pytest.MonkeyPatch):
        monkeypatch.setenv(SHARE_VARIABLE, "share")
        with pytest.raises(ConfigError, match="TRAINMOVER_LINK_SECRET_FILE"):
            compiled.shared(authenticated=False)

    def test_another_word_is_an_error(self, monkeypatch: pytest.MonkeyPatch):
        monkeypatch.setenv(SHARE_VARIABLE, "yes")
        with pytest.raises(ConfigError, match="use 'share'"):
            compiled.shared(authenticated=True)


class ActiveRank:
    """The endpoint of rank 3 of job ``j``, which serves what ``folder`` has."""

    def __init__(self, *, ready: bool = True) -> None:
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.address = f"127.0.0.1:{self._listener.getsockname()[1]}"
        self._ready = ready
        self.serving: list[asyncio.Task[None]] = []

    async def run(self) -> None:
        async with asyncio.TaskGroup() as tasks:

            def accepted(link_request: LinkRequest, sock: socket.socket) -> None:
                assert link_request.group == COMPILED_GROUP
                self.serving.append(tasks.create_task(serve_compiled(sock, ready=self._ready)))

            endpoint = Endpoint(
                self._listener,
                job="j",
                rank=3,
                secret=SECRET,
                is_stale=lambda _: False,
                accept=accepted,
            )
            endpoint.open()
            try:
                await endpoint.serve()
            finally:
                self._listener.close()


async def fetched(rank: ActiveRank) -> None:
    """Fetch, as a standby of rank 3 does, from ``rank``."""
    async with asyncio.TaskGroup() as tasks:
        serving = tasks.create_task(rank.run())
        await fetch_compiled(job="j", rank=3, endpoint=rank.address, secret=SECRET)
        await asyncio.gather(*rank.serving)
        serving.cancel()


class TestTheWay:
    """One process plays both: the folder is that of the active rank while it lists its files."""

    @pytest.fixture
    def folders(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[Path, Path]:
        here, there = tmp_path / "here", tmp_path / "there"
        monkeypatch.setattr(compiled, "folder_in_use", lambda: here)
        monkeypatch.setattr(compiled, "folder_to_use", lambda: there)
        return here, there

    async def test_a_standby_gets_what_it_lacks(self, folders: tuple[Path, Path]) -> None:
        here, there = folders
        large = os.urandom(3_000_000)
        cache(here, ab__large_so=large, ab__empty=b"", cd__known=b"of here")
        cache(there, cd__known=b"of there")
        await fetched(ActiveRank())
        assert (there / "ab" / "large.so").read_bytes() == large
        assert (there / "ab" / "empty").read_bytes() == b""
        assert (there / "cd" / "known").read_bytes() == b"of there"

    async def test_before_the_first_step_there_is_nothing(self, folders: tuple[Path, Path]) -> None:
        here, there = folders
        cache(here, ab__k_so=b"elf")
        await fetched(ActiveRank(ready=False))
        assert not there.exists()

    async def test_files_that_were_not_offered_are_not_sent(
        self, folders: tuple[Path, Path], tmp_path: Path
    ) -> None:
        cache(folders[0], ab__k_so=b"elf")
        ours, theirs = socket.socketpair()
        ours.setblocking(False)
        theirs.setblocking(False)
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(serve_compiled(theirs, ready=True))
            assert await next_frame(ours, limit_bytes=1000)
            asked = CompiledFile("ab/other", 3, executable=False)
            await send_frame(ours, compiled.pack([asked]))
            assert await asyncio.get_running_loop().sock_recv(ours, 1) == b""
        ours.close()

    async def test_a_file_that_shrinks_is_not_kept(
        self, folders: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        here, there = folders
        cache(here, ab__k_so=b"elf" * 100)
        pack = compiled.pack

        def pack_and_shrink(files: object) -> bytes:
            (here / "ab" / "k.so").write_bytes(b"e")
            return pack(files)  # type: ignore[arg-type]

        monkeypatch.setattr(compiled, "pack", pack_and_shrink)
        await fetched(ActiveRank())
        assert list((there / "ab").iterdir()) == []

    async def test_a_rank_that_is_dead_costs_nothing_but_the_code(
        self, folders: tuple[Path, Path]
    ) -> None:
        closed = socket.create_server(("127.0.0.1", 0))
        address = f"127.0.0.1:{closed.getsockname()[1]}"
        closed.close()
        await fetch_compiled(job="j", rank=3, endpoint=address, secret=SECRET)
        assert not folders[1].exists()
