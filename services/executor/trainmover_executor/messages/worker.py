"""What an agent and its workers say to each other over one unix socket per worker.

A frame is: 4 bytes header length, 4 bytes body length (both little-endian unsigned), the header as
JSON, the body as raw bytes. Only ``Links`` has a body.

Agent to worker: the commands that concern a running rank. Worker to agent: ``Hello`` once,
``Warmed`` when a standby finished its shadow iterations, ``Broke`` when its program ends before it
took a slot, ``Fact`` for everything the agent is to publish, ``Links`` with their counters,
``Done`` when the program ended normally. What a worker does is not said: the agent reads it from
the memory of the worker's clock.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Iterator
from typing import Annotated, Any, Final, Literal, TypeVar

from pydantic import Field, TypeAdapter, ValidationError

from trainmover.commands import (
    AbortMigration,
    BreakStep,
    Prepare,
    Recover,
    Release,
    SaveCheckpoint,
)
from trainmover.errors import ProtocolError
from trainmover.events import lookup, type_of
from trainmover.job.redundancy import RedundancyChoice
from trainmover.job.topology import Frozen, Membership

__all__ = [
    "Broke",
    "Done",
    "Fact",
    "FrameReader",
    "FromWorker",
    "Hello",
    "Links",
    "ToWorker",
    "Warmed",
    "WorkerSpec",
    "pack",
    "parse_from_worker",
    "parse_to_worker",
    "read_header",
]

T = TypeVar("T")

_HEAD: Final = struct.Struct("<II")
_MAX_FRAME: Final = 16 * 1024 * 1024


class WorkerSpec(Frozen):
    """All that one training process is told when it is started.

    Attributes:
        role: ``active`` ranks train at once; ``standby`` ranks live in the sandbox until a plan
            makes them a joiner.
        control: Path of the agent's unix socket for this worker.
        listen_fd: Inherited file descriptor of the listening socket that ``endpoint`` names.
        clock_fd: Inherited file descriptor of the memory of its clock, which the agent reads.
        program: The user's script (or module, with ``as_module``) and its arguments.
        metrics_dir: Folder for ``Session.log`` lines, or None.
        redundancy: Where state is to survive this machine.
    """

    job: str
    machine: str
    generation: int
    rank: int
    local_rank: int
    role: Literal["active", "standby"]
    membership: Membership
    control: str
    listen_fd: int
    clock_fd: int
    endpoint: str
    program: tuple[str, ...]
    as_module: bool = False
    metrics_dir: str | None = None
    log_dir: str | None = None
    redundancy: RedundancyChoice = "auto"


class Hello(Frozen):
    """First frame of a worker."""

    kind: Literal["hello"] = "hello"
    rank: int
    pid: int


class Warmed(Frozen):
    """A standby rank finished its shadow iterations."""

    kind: Literal["warmed"] = "warmed"
    rank: int
    shadow_iterations: int
    warm_s: float


class Broke(Frozen):
    """The program of a standby ends before it took a slot.

    Attributes:
        error: The last line of what it raised, or how it ended.
        where: ``file:line`` of the innermost call in the user's program; empty: nobody knows.
    """

    kind: Literal["broke"] = "broke"
    rank: int
    error: str
    where: str = ""


class Fact(Frozen):
    """An event payload to publish: ``type`` is its CloudEvents type."""

    kind: Literal["fact"] = "fact"
    type: str
    payload: dict[str, Any]

    @classmethod
    def of(cls, payload: Frozen) -> Fact:
        """Wrap an event model."""
        return cls(type=type_of(payload).type, payload=payload.model_dump(mode="json"))

    def model(self) -> Frozen:
        """The event model inside."""
        return lookup(self.type).model.model_validate(self.payload)


class Links(Frozen):
    """Counters of a worker's links: records of ``trainmover.telemetry.records.LINK`` as a body.

    Attributes:
        groups: New groups: their ranks as (start, stop, stride) spans, by id.
    """

    kind: Literal["links"] = "links"
    groups: dict[int, tuple[tuple[int, int, int], ...]] = Field(default_factory=dict)


class Done(Frozen):
    """The user's program ended normally."""

    kind: Literal["done"] = "done"
    rank: int
    step: int


FromWorker = Annotated[Hello | Warmed | Broke | Fact | Links | Done, Field(discriminator="kind")]
ToWorker = Annotated[
    Prepare | Recover | AbortMigration | BreakStep | SaveCheckpoint | Release,
    Field(discriminator="verb"),
]
_FROM_WORKER: TypeAdapter[FromWorker] = TypeAdapter(FromWorker)
_TO_WORKER: TypeAdapter[ToWorker] = TypeAdapter(ToWorker)


def pack(message: Frozen, body: bytes = b"") -> bytes:
    """One frame."""
    head = message.model_dump_json().encode()
    return _HEAD.pack(len(head), len(body)) + head + body


def parse_from_worker(header: dict[str, Any]) -> FromWorker:
    """The message a worker sent.

    Raises:
        ProtocolError: It is none of a worker's.
    """
    return read_header(_FROM_WORKER, header)


def parse_to_worker(header: dict[str, Any]) -> ToWorker:
    """The message an agent sent.

    Raises:
        ProtocolError: It is none of an agent's.
    """
    return read_header(_TO_WORKER, header)


def read_header(adapter: TypeAdapter[T], header: object) -> T:
    """One message of those that ``adapter`` knows.

    Raises:
        ProtocolError: It is none of them.
    """
    try:
        return adapter.validate_python(header)
    except (ValidationError, RecursionError) as error:
        raise ProtocolError(f"a control message does not parse: {error}") from error


class FrameReader:
    """Turns a byte stream into frames; feed it whatever arrived."""

    def __init__(self) -> None:
        self._buffer = bytearray()

    def feed(self, data: bytes) -> Iterator[tuple[dict[str, Any], bytes]]:
        """Add bytes and yield every frame (header, body) that is complete.

        Raises:
            ProtocolError: The peer announces a frame over 16 MiB, or its header is no JSON.
        """
        self._buffer += data
        while len(self._buffer) >= _HEAD.size:
            head, body = _HEAD.unpack_from(self._buffer)
            if head + body > _MAX_FRAME:
                raise ProtocolError(f"control frame of {head + body} bytes is over {_MAX_FRAME}")
            end = _HEAD.size + head + body
            if len(self._buffer) < end:
                return
            frame = bytes(self._buffer[_HEAD.size : end])
            del self._buffer[:end]
            try:
                header = json.loads(frame[:head])
            except (ValueError, RecursionError) as error:
                raise ProtocolError(f"a control frame's header is no JSON: {error}") from error
            yield header, frame[head:]
