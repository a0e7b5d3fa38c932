"""The bus: whether it answers, is what we need, knows us, and keeps the time that we keep."""

from __future__ import annotations

import asyncio
import contextlib
import json
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final

from trainmover import __version__
from trainmover.bus.credentials import BusAddress, Credentials
from trainmover.bus.nats.bus import NatsBus
from trainmover.errors import BusError, PermissionDeniedError
from trainmover.events.envelope import MAX_BYTES
from trainmover.protocol.requests import StatusRequest
from trainmover.subjects import EVENT_STREAM
from trainmover_console.doctor.symptom import Symptom, good, problem, reason, warning

__all__ = ["Greeting", "Seen", "examine", "greet", "judge", "judge_greeting"]

_SERVER: Final = (2, 11)
_SKEW_S: Final = 0.5
_SLOW_S: Final = 0.05
_ASK_S: Final = 3.0
_ROLL_CALL_S: Final = 0.4
_GREETING_BYTES: Final = 65536


@dataclass(frozen=True, slots=True)
class Greeting:
    """What somebody at an address said first.

    Attributes:
        error: Why there was nothing to read; empty when there was.
        info: A NATS server's description of itself; empty when it is none.
    """

    url: str
    error: str = ""
    info: Mapping[str, Any] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Seen:
    """What a client of the bus sees.

    Attributes:
        refused: What we tried and the bus did not allow, or what failed, by the trial's name.
        round_trip_s: Time of a request to the server; None where it did not answer.
        ahead_s: How far this host's clock is ahead of the server's, seconds.
        stream: Whether the stream of facts exists; None where it is unknown.
        services: (name, version) of every service that answered.
        facts: Facts of the job on the bus.
        planner: Whether the job's planner answers.
    """

    refused: Mapping[str, str]
    round_trip_s: float | None = None
    ahead_s: float | None = None
    stream: bool | None = None
    services: tuple[tuple[str, str], ...] = ()
    facts: int = 0
    planner: bool = False


async def greet(url: str) -> Greeting:
    """Hear what answers at the address: a NATS server speaks first."""
    try:
        host, port = BusAddress.parse(url).host_and_port
        async with asyncio.timeout(_ASK_S):
            reader, writer = await asyncio.open_connection(host, port, limit=_GREETING_BYTES)
            try:
                line = await reader.readline()
            finally:
                writer.close()
                with contextlib.suppress(OSError):
                    await writer.wait_closed()
    except TimeoutError:
        return Greeting(url, error=f"no answer in {_ASK_S:g} s")
    except (OSError, ValueError) as error:
        return Greeting(url, error=reason(error))
    with contextlib.suppress(ValueError):
        if line.startswith(b"INFO "):
            return Greeting(url, info=json.loads(line[5:]))
    return Greeting(url)


def judge_greeting(greeting: Greeting, credentials: Credentials) -> Iterator[Symptom]:
    """What that means. Pure."""
    where = str(BusAddress.parse(greeting.url))
    if greeting.error:
        yield problem(
            "bus",
            f"{where} cannot be reached: {greeting.error}",
            "Start NATS there ('trainmover up' brings one), let the firewall pass the port, or "
            "name another with --nats.",
        )
        return
    info = greeting.info
    if info is None:
        cure = "Something else has that port: stop it, or name the bus with --nats."
        yield problem("bus", f"what answers at {where} is no NATS server", cure)
        return
    version = str(info.get("version", "0"))
    if tuple(int(part) for part in version.split("-", maxsplit=1)[0].split(".")[:2]) < _SERVER:
        need = ".".join(map(str, _SERVER))
        yield problem("bus", f"NATS {version} is older than {need}", "Use a newer nats-server.")
    else:
        yield good("bus", f"NATS {version} at {where}")
    if not info.get("jetstream"):
        yield problem(
            "jetstream",
            "the server has no JetStream: nothing is kept",
            "Start it with -js and a --store_dir on a disk, or with 'jetstream {}' in its file.",
        )
    else:
        yield good("jetstream", "JetStream is on")
    if int(info.get("max_payload", 0)) < MAX_BYTES:
        yield problem(
            "bus",
            f"messages may have {info.get('max_payload')} bytes, facts up to {MAX_BYTES}",
            "Set max_payload: 8MB in the server's file.",
        )
    yield from _identity(info, credentials)


def _identity(info: Mapping[str, Any], credentials: Credentials) -> Iterator[Symptom]:
    known = credentials.nkey is not None or credentials.creds is not None
    if info.get("auth_required") and not known:
        yield problem(
            "permissions",
            "the bus wants to know who we are, and we have no key",
            "Set TRAINMOVER_NATS_NKEY: clients/operator/nkey of 'trainmover bus setup'.",
        )
    if info.get("tls_required") and credentials.ca is None:
        cure = "Set TRAINMOVER_NATS_CA to the ca.pem beside the key."
        yield problem("permissions", "the bus is encrypted, and we have no certificate", cure)
    if not info.get("auth_required"):
        yield warning(
            "permissions",
            "the bus trusts everybody who reaches it",
            "Give it keys: docs/howto/security.md, or trainmover run --secure.",
        )


async def examine(bus: NatsBus, job: str | None) -> Seen:
    """Try what a person who operates a job does."""
    refused: dict[str, str] = {}
    round_trip: float | None = None
    ahead: float | None = None
    stream: bool | None = None
    facts, planner = 0, False
    services: tuple[tuple[str, str], ...] = ()
    with _trial(refused, "read the stream of facts"):
        stream, round_trip, ahead = await _clock(bus)
    with _trial(refused, "call the services"):
        services = await _roll_call(bus)
    if job is not None:
        if stream:
            with _trial(refused, "count the facts"):
                facts = await bus.event_count(job)
        try:
            await bus.request(job, "status", StatusRequest(), timeout_s=2)
            planner = True
        except PermissionDeniedError as error:
            refused["ask the planner"] = str(error)
        except BusError:
            planner = False
    return Seen(
        refused=refused,
        round_trip_s=round_trip,
        ahead_s=ahead,
        stream=stream,
        services=services,
        facts=facts,
        planner=planner,
    )


def judge(seen: Seen, *, job: str | None) -> Iterator[Symptom]:
    """What that means. Pure."""
    for what, why in seen.refused.items():
        cure = "Use the operator's key: 'trainmover bus setup' makes it, docs/howto/security.md."
        yield problem("permissions", f"may not {what}: {why}", cure)
    if not seen.refused:
        yield good("permissions", "the bus lets us look and ask")
    if seen.stream is False:
        cure = "trainmover bus setup --nats URL makes it, and so does the start of any service."
        yield problem("jetstream", f"there is no stream {EVENT_STREAM}", cure)
    if seen.round_trip_s is not None:
        text = f"the bus answers in {seen.round_trip_s * 1000:.1f} ms"
        if seen.round_trip_s > _SLOW_S:
            yield warning("bus", text, "Put it nearer, or look at its disk and its load.")
        else:
            yield good("bus", text)
    if seen.ahead_s is not None:
        yield _skew(seen.ahead_s)
    yield from _services(seen, job)


def _skew(ahead_s: float) -> Symptom:
    way = "ahead of" if ahead_s > 0 else "behind"
    if abs(ahead_s) > _SKEW_S:
        return warning(
            "clock",
            f"this host's clock is {abs(ahead_s):.1f} s {way} the bus's",
            "Run chrony or ntpd on every host: timelines and phase times are wrong by as much "
            "(detection and the protocol compare no clocks).",
        )
    return good("clock", f"this host's clock and the bus's agree to {_SKEW_S} s")


def _services(seen: Seen, job: str | None) -> Iterator[Symptom]:
    names = [name for name, _ in seen.services]
    for name, version in seen.services:
        if version != __version__:
            cure = "Install the same version of trainmover everywhere, and start it anew."
            yield warning("versions", f"{name} is {version}, we are {__version__}", cure)
    if job is None:
        return
    if "trainmover-detector" in names:
        yield good("services", "a detector answers")
    else:
        cure = "trainmover up --job J --nats URL starts detector and planner."
        yield problem("services", "no detector answers: nobody notices slow or dead ones", cure)
    if seen.planner:
        yield good("services", f"the planner of job {job} answers")
    else:
        cure = f"trainmover up --job {job} --nats URL; training goes on meanwhile."
        yield problem("services", f"the planner of job {job} does not answer", cure)
    if not seen.facts:
        cure = "Check the name: TRAINMOVER_JOB or --job has to be the one that its agents got."
        yield problem("job", f"nothing is known of a job {job!r} on this bus", cure)


@contextlib.contextmanager
def _trial(refused: dict[str, str], what: str) -> Iterator[None]:
    try:
        yield
    except BusError as error:
        refused[what] = str(error)
    except TimeoutError:
        refused[what] = "no answer"


async def _clock(bus: NatsBus) -> tuple[bool, float, float | None]:
    """Whether the stream exists, the round trip, and how far we are ahead."""
    before, began = time.time(), time.monotonic()
    reply = await bus.client.request(f"$JS.API.STREAM.INFO.{EVENT_STREAM}", b"", timeout=_ASK_S)
    took = time.monotonic() - began
    found = json.loads(reply.data)
    if "ts" not in found:
        return "error" not in found, took, None
    server = datetime.fromisoformat(found["ts"]).timestamp()
    return "error" not in found, took, before + took / 2 - server


async def _roll_call(bus: NatsBus) -> tuple[tuple[str, str], ...]:
    """(name, version) of every service on the bus."""
    found: list[tuple[str, str]] = []
    inbox = bus.client.new_inbox()
    replies = await bus.client.subscribe(inbox)
    await bus.client.publish("$SRV.PING", b"", reply=inbox)
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(_ROLL_CALL_S):
            async for message in replies.messages:
                with contextlib.suppress(ValueError, KeyError):
                    data = json.loads(message.data)
                    found.append((str(data["name"]), str(data["version"])))
    await replies.unsubscribe()
    return tuple(sorted(found))
