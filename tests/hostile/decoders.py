"""Every decoder, samples of what it reads, and the errors that its callers know."""

from __future__ import annotations

import contextlib
import functools
import json
import struct
import zlib
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

import numpy as np
import torch
from tests.support.fabric import membership

from trainmover.bus.nats.packing import ZLIB, unpack
from trainmover.bus.protocol import Entry
from trainmover.commands import BreakStep, DepartureRequest, Refusal, Start, Stop, parse_command
from trainmover.errors import MalformedEventError, ProtocolError, TrainMoverError
from trainmover.events import decode
from trainmover.events.machine import MachineLost
from trainmover.job.endpoints import split_endpoint
from trainmover.protocol import replies
from trainmover.runtime import lease
from trainmover.telemetry import records as telemetry
from trainmover_executor.links.dialling.handshake import Answer, LinkRequest, Reply
from trainmover_executor.messages import forks as fork_frames
from trainmover_executor.messages.worker import (
    Fact,
    FrameReader,
    Hello,
    WorkerSpec,
    parse_from_worker,
    parse_to_worker,
)
from trainmover_executor.state.packing.portable import pack_tree
from trainmover_executor.worker.to_standbys.record import entry_of
from trainmover_gateway.relay.policy import Answer as Answered
from trainmover_gateway.relay.policy import decide
from trainmover_planner.service import _count

__all__ = ["DECODERS", "Decoder"]

_GOLDEN: Final = Path(__file__).parents[1] / "contract" / "golden" / "facts-0.1.jsonl"
_NOW: Final = datetime(2026, 1, 1, tzinfo=UTC)


@dataclass(frozen=True)
class Decoder:
    """Something that reads what others wrote.

    Attributes:
        name: What it reads.
        samples: Valid messages.
        read: Reads one.
        knows: What its callers expect it to raise.
    """

    name: str
    samples: tuple[bytes, ...]
    read: Callable[[bytes], object]
    knows: tuple[type[Exception], ...]


@functools.cache
def _facts() -> list[dict[str, Any]]:
    return [json.loads(line) for line in _GOLDEN.read_text().splitlines()]


def _fact(data: bytes) -> object:
    """A line of the golden file: subject, headers and body may all be wrong."""
    line = json.loads(data)
    if not isinstance(line, dict) or not isinstance(headers := line.get("headers"), dict):
        raise MalformedEventError("no message at all")
    headers = {str(name): str(value) for name, value in headers.items()}
    body = line.get("body")
    raw = body if isinstance(body, str) else json.dumps(body)
    return decode(str(line.get("subject")), headers, raw.encode(errors="surrogatepass"))


def _body(data: bytes) -> object:
    for line in _facts():
        try:
            decode(line["subject"], line["headers"], data)
        except MalformedEventError:
            continue
    return None


def _batch() -> bytes:
    steps = np.zeros(2, telemetry.STEP)
    return telemetry.encode_batch(
        telemetry.Batch(
            job="j",
            machine="m",
            generation=1,
            epoch=1,
            records=np.zeros(3, telemetry.RECORD),
            more=telemetry.Sections(records=np.zeros(3, telemetry.RECORD), steps=steps),
            groups={7: (range(0, 8, 1),)},
        )
    )


def _frames(parse: Callable[[dict[str, Any]], object]) -> Callable[[bytes], object]:
    def read(data: bytes) -> object:
        # The length in front is right now and then, so that more than it is tried.
        framed = struct.pack("<II", len(data), 0) + data
        found = [parse(header) for header, _ in FrameReader().feed(framed)]
        with contextlib.suppress(ProtocolError):
            found += [parse(header) for header, _ in FrameReader().feed(data)]
        return found

    return read


def _retry_after(data: bytes) -> object:
    answer = Answered(503, "busy", {"retry-after": data.decode(errors="replace")})
    return decide(answer, attempt=1, chance=0.5, now=_NOW)


def _holder(data: bytes) -> object:
    holder = lease._read(Entry("k", data, 1))
    return holder is not None and holder.is_dead


def _spec() -> WorkerSpec:
    return WorkerSpec(
        job="j",
        machine="m0",
        generation=0,
        rank=0,
        local_rank=0,
        role="standby",
        membership=membership(2),
        control="/tmp/x",
        listen_fd=3,
        clock_fd=4,
        endpoint="m0:1",
        program=("x",),
    )


def _headers(*messages: Any) -> tuple[bytes, ...]:
    return tuple(message.model_dump_json().encode() for message in messages)


_LINK_REQUEST: Final = LinkRequest(job="j", epoch=5, group="g", source=0, target=1)

DECODERS: Final = (
    Decoder(
        "a fact",
        tuple(json.dumps(line).encode() for line in _facts()),
        _fact,
        (MalformedEventError, ValueError),
    ),
    Decoder(
        "the body of each fact",
        tuple(line["body"].encode() for line in _facts()),
        _body,
        (MalformedEventError,),
    ),
    Decoder(
        "a command",
        _headers(
            Stop(reason="r"),
            Start(generation=1, membership=membership(2), slot=0),
        ),
        parse_command,
        (MalformedEventError,),
    ),
    Decoder(
        "a compressed command",
        (
            zlib.compress(
                Start(generation=1, membership=membership(2), slot=0).model_dump_json().encode()
            ),
        ),
        functools.partial(unpack, ZLIB),
        (MalformedEventError,),
    ),
    Decoder("telemetry", (_batch(),), telemetry.decode_batch, (MalformedEventError,)),
    Decoder(
        "a planner's reply",
        _headers(Refusal(code="c", reason="r", next_step="n")),
        replies.parse,
        (ProtocolError,),
    ),
    Decoder(
        "a machine's departure",
        _headers(DepartureRequest(reason="r")),
        DepartureRequest.model_validate_json,
        (ValueError,),
    ),
    Decoder("a lease", _headers(lease._Holder.here()), _holder, ()),
    Decoder("a count", (b"17", b"9" * 5000), lambda data: _count(Entry("k", data, 1)), ()),
    Decoder(
        "an endpoint",
        (b"10.0.0.1:80", b"host:1", b"[::1]:1"),
        lambda data: split_endpoint(data.decode(errors="replace")),
        (ValueError,),
    ),
    Decoder(
        "a link_request",
        (_LINK_REQUEST.pack(),),
        lambda data: LinkRequest.parse(data, job="j"),
        (ProtocolError,),
    ),
    Decoder("an answer", (Answer(Reply.OK).pack(),), Answer.parse, (ProtocolError,)),
    Decoder(
        "a recording",
        (pack_tree({"key": "k", "tensors": [torch.zeros(2)]}),),
        entry_of,
        (ProtocolError,),
    ),
    Decoder(
        "a worker's frame",
        _headers(Hello(rank=0, pid=1), Fact.of(MachineLost(machine="m", reason="r"))),
        _frames(parse_from_worker),
        (TrainMoverError,),
    ),
    Decoder(
        "an agent's frame",
        _headers(BreakStep(epoch=1, reason="r")),
        _frames(parse_to_worker),
        (TrainMoverError,),
    ),
    Decoder(
        "a fork server's frame",
        _headers(fork_frames.Spawned(key="k", pid=1)),
        _frames(fork_frames.parse_from_forks),
        (TrainMoverError,),
    ),
    Decoder(
        "a frame to a fork server",
        _headers(fork_frames.Spawn(key="k", spec=_spec())),
        _frames(fork_frames.parse_to_forks),
        (TrainMoverError,),
    ),
    Decoder(
        "a webhook's answer",
        (b"7", b"Thu, 01 Jan 2026 12:00:20 GMT", b"Thu, 01 Jan 0001 00:00:00 +2359"),
        _retry_after,
        (),
    ),
)
