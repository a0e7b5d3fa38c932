"""The folder in which Inductor keeps what it compiled: what of it may be sent, and what is wanted.

Compiling is most of a cold start, and its results are the same at every machine of a role. A
standby that gets them from the active rank of its slot finds them in its own folder and compiles
nothing (docs/adr/0017-compiled-code-is-shared-on-request.md).
"""

from __future__ import annotations

import contextlib
import os
import stat
import tempfile
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import BinaryIO, Final

from pydantic import TypeAdapter, ValidationError

from trainmover.errors import ConfigError, ProtocolError

__all__ = [
    "OFFER_LIMIT_BYTES",
    "SETTLED_S",
    "SHARE_VARIABLE",
    "CompiledFile",
    "arriving",
    "folder_in_use",
    "folder_to_use",
    "offers",
    "pack",
    "parse",
    "shared",
    "wanted",
]

SHARE_VARIABLE: Final = "TRAINMOVER_COMPILED"
"""``share``: active ranks send what they compiled to standbys, and standbys take it."""

OFFER_LIMIT_BYTES: Final = 8 * 1024 * 1024
"""Most that a list of files may take on the wire."""

SETTLED_S: Final = 5.0
"""A linker writes its output in place: what is younger may not be whole."""

_FOLDER_VARIABLE: Final = "TORCHINDUCTOR_CACHE_DIR"
_FILE_LIMIT_BYTES: Final = 512 * 1024 * 1024
_TOTAL_LIMIT_BYTES: Final = 2 * 1024 * 1024 * 1024
_COUNT_LIMIT: Final = 20_000
_NAME_LIMIT: Final = 512


@dataclass(frozen=True, slots=True)
class CompiledFile:
    """One file of the folder.

    Attributes:
        name: Path below the folder, with slashes.
        size: In bytes.
        executable: Whether its owner may run it.
    """

    name: str
    size: int
    executable: bool


_FILES: Final = TypeAdapter(tuple[CompiledFile, ...])


def shared(*, authenticated: bool) -> bool:
    """Whether this process sends and takes compiled code.

    Args:
        authenticated: Whether links prove a secret.

    Raises:
        ConfigError: The variable says something else, or anybody could send code.
    """
    choice = os.environ.get(SHARE_VARIABLE, "")
    if choice not in {"", "share"}:
        raise ConfigError(f"{SHARE_VARIABLE}={choice!r} is not a choice; use 'share' or unset it.")
    if choice and not authenticated:
        raise ConfigError(
            f"{SHARE_VARIABLE}=share has standbys run code that other machines send, and links "
            "without a secret take it from anybody: set TRAINMOVER_LINK_SECRET_FILE."
        )
    return bool(choice)


def folder_in_use() -> Path | None:
    """Where Inductor keeps its results in this process; None where it has compiled nothing.

    Inductor sets the variable when it first compiles.
    """
    name = os.environ.get(_FOLDER_VARIABLE)
    return Path(name) if name else None


def folder_to_use() -> Path:
    """Where Inductor will keep its results in this process; asking torch takes seconds."""
    if (known := folder_in_use()) is not None:
        return known
    from torch._inductor.runtime.cache_dir_utils import default_cache_dir  # noqa: PLC0415

    return Path(default_cache_dir())


def offers(folder: Path, *, now: float) -> tuple[CompiledFile, ...]:
    """The files of ``folder`` that are complete at ``now`` (seconds since 1970), by name."""
    found: list[CompiledFile] = []
    total = 0
    for path in sorted(folder.rglob("*")):
        try:
            status = path.lstat()
        except OSError:
            continue  # compilers remove what is temporary
        name = path.relative_to(folder).as_posix()
        whole = status.st_mtime <= now - SETTLED_S and not path.name.endswith((".lock", ".tmp"))
        fits = status.st_size <= _FILE_LIMIT_BYTES and len(name) <= _NAME_LIMIT and name.isascii()
        if not (stat.S_ISREG(status.st_mode) and whole and fits):
            continue
        total += status.st_size
        if total > _TOTAL_LIMIT_BYTES or len(found) == _COUNT_LIMIT:
            break
        found.append(CompiledFile(name, status.st_size, bool(status.st_mode & stat.S_IXUSR)))
    return tuple(found)


def pack(files: Iterable[CompiledFile]) -> bytes:
    """A list of files, for the wire."""
    return _FILES.dump_json(tuple(files))


def parse(data: bytes) -> tuple[CompiledFile, ...]:
    """A list of files, from the wire.

    Raises:
        ProtocolError: It is none, a name leads out of the folder, or it is too much.
    """
    try:
        files = _FILES.validate_json(data, strict=True)
    except ValidationError as error:
        raise ProtocolError(f"a list of compiled files does not parse: {error}") from None
    for file in files:
        parts = PurePosixPath(file.name).parts
        plain = parts and ".." not in parts and "\0" not in file.name
        if not plain or file.name.startswith("/") or len(file.name) > _NAME_LIMIT:
            raise ProtocolError(f"{file.name!r} is not the name of a compiled file")
        if not 0 <= file.size <= _FILE_LIMIT_BYTES:
            raise ProtocolError(f"{file.name} has {file.size} bytes, which is over the limit")
    if len(files) > _COUNT_LIMIT or sum(file.size for file in files) > _TOTAL_LIMIT_BYTES:
        raise ProtocolError(f"{len(files)} compiled files are over the limit")
    return files


def wanted(files: Iterable[CompiledFile], folder: Path) -> tuple[CompiledFile, ...]:
    """Those that ``folder`` lacks; names tell contents, as they are hashes of the source."""
    return tuple(file for file in files if not (folder / file.name).exists())


@contextlib.contextmanager
def arriving(file: CompiledFile, folder: Path) -> Iterator[BinaryIO]:
    """Where to write the contents of ``file``; it has its name once the context ends well.

    Raises:
        ProtocolError: A link leads out of ``folder``.
    """
    path = folder / file.name
    path.parent.mkdir(parents=True, exist_ok=True)
    if not path.parent.resolve().is_relative_to(folder.resolve()):
        raise ProtocolError(f"{file.name} would be written outside of {folder}")
    descriptor, name = tempfile.mkstemp(dir=path.parent, suffix=".tmp")
    draft = Path(name)
    try:
        with os.fdopen(descriptor, "wb") as target:
            yield target
        draft.chmod(0o700 if file.executable else 0o600)
        draft.replace(path)
    finally:
        draft.unlink(missing_ok=True)
