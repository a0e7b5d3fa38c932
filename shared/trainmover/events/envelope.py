"""CloudEvents 1.0 envelope in NATS binary mode: attributes in headers, payload as JSON.

Structured mode (one JSON document with everything in it) is understood on read, because tools
that are not ours send it.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any, Final
from urllib.parse import unquote_to_bytes

from pydantic import ValidationError
from pydantic_core import from_json, to_json

from trainmover.errors import InvalidIdError, MalformedEventError
from trainmover.job.topology import Frozen

__all__ = ["MAX_BYTES", "Envelope", "decode", "encode", "percent_encode"]

MAX_BYTES: Final = 4 * 1024 * 1024
"""Largest payload of a fact: a membership of some 100,000 ranks fits."""

_TRACE_HEADERS: Final = ("traceparent", "tracestate")
_STRUCTURED: Final = "application/cloudevents+json"
_YEARS: Final = (1970, 9000)
_UNSAFE: Final = re.compile(rb'[^\x21-\x7e]|["%]')


@dataclass(frozen=True, slots=True)
class Envelope:
    """One fact with its context attributes.

    Attributes:
        id: Unique per source; source and id together are the ``Nats-Msg-Id`` that makes
            publishing exactly-once.
        source: Who says it, for example ``/planner`` or ``/machine/node-2``.
        job: The job it is about.
        time: When it was said, UTC.
        payload: The event model; its class decides type and subject.
        trace: W3C trace context headers (``traceparent``, ``tracestate``), may be empty.
        sequence: The writer's run and the number within it (the CloudEvents extension
            ``sequence``); the bus fills it in, see ``events.sequence``.
    """

    id: str
    source: str
    job: str
    time: datetime
    payload: Frozen
    trace: Mapping[str, str] = field(default_factory=dict)
    sequence: str = ""

    @property
    def type(self) -> str:
        """CloudEvents type of the payload."""
        from trainmover.events.catalog import type_of  # noqa: PLC0415 - the catalogue needs us

        return type_of(self.payload).type

    @property
    def subject(self) -> str:
        """Subject on which the event is published."""
        from trainmover.events.catalog import type_of  # noqa: PLC0415 - the catalogue needs us

        kind = type_of(self.payload)
        return kind.subject(self.job, machine=kind.machine_of(self.payload))


def encode(envelope: Envelope) -> tuple[dict[str, str], bytes]:
    """Headers and body of ``envelope`` (CloudEvents NATS binding, binary mode).

    Raises:
        MalformedEventError: The event could not be read back: its class is not in the catalogue,
            the time has no zone, an attribute is empty, JSON cannot hold a value (NaN), the
            payload is over ``MAX_BYTES``, or a machine speaks for another.
    """
    from trainmover.events.catalog import type_of  # noqa: PLC0415 - the catalogue needs us

    try:
        kind = type_of(envelope.payload)
    except KeyError:
        raise MalformedEventError(
            f"{type(envelope.payload).__name__} is not an event: add it to the catalogue first"
        ) from None
    if envelope.time.utcoffset() is None:
        raise MalformedEventError(f"{kind.type}: the time has no zone; use datetime.now(UTC)")
    attributes = {
        "specversion": "1.0",
        "id": envelope.id,
        "source": envelope.source,
        "type": kind.type,
        "time": envelope.time.astimezone(UTC).isoformat().replace("+00:00", "Z"),
        "subject": envelope.job,
        "datacontenttype": "application/json",
        "dataschema": kind.schema,
    }
    machine = kind.machine_of(envelope.payload)
    _check_source(kind.type, envelope.source, machine)
    if envelope.sequence:
        attributes["sequence"] = envelope.sequence
    for name, value in attributes.items():
        if not value:
            raise MalformedEventError(f"{kind.type}: attribute {name!r} is empty; fill it in")
    # nats-py sends header values as raw UTF-8, strips blanks and flattens line ends: encode here.
    headers = {f"ce-{name}": percent_encode(value) for name, value in attributes.items()}
    headers.update({k: envelope.trace[k] for k in _TRACE_HEADERS if envelope.trace.get(k)})
    try:
        data = envelope.payload.model_dump_json().encode()
    except ValueError as error:  # a text that is no Unicode
        raise MalformedEventError(f"{kind.type} does not fit into JSON: {error}") from error
    _check_size(kind.type, data)
    try:
        kind.model.model_validate_json(data)  # the bug is here, not at some reader
    except ValidationError as error:
        raise MalformedEventError(f"{kind.type} does not survive JSON: {_brief(error)}") from error
    return headers, data


def decode(subject: str, headers: Mapping[str, str] | None, data: bytes) -> Envelope:
    """Parse a message, binary or structured mode.

    Raises:
        MalformedEventError: Attributes are missing, the type is unknown, the payload is over
            ``MAX_BYTES`` or does not validate, or the subject is not this fact's subject.
    """
    from trainmover.events.catalog import lookup  # noqa: PLC0415 - the catalogue needs us

    _check_size(f"message on {subject!r}", data)
    found = {name.lower(): value for name, value in (headers or {}).items()}
    if found.get("content-type", "").partition(";")[0].strip().lower() == _STRUCTURED:
        attributes, data = _structured(data)
    else:
        attributes = {
            name[3:]: _percent_decode(value) for name, value in found.items() if name[:3] == "ce-"
        }
    if attributes.get("specversion") != "1.0":
        raise MalformedEventError(
            f"message on {subject!r} is not a CloudEvent 1.0: "
            f"specversion is {attributes.get('specversion')!r}"
        )
    kind = lookup(_required(attributes, "type", subject))
    job, *said = [*subject.split("."), "", "", "", "", ""][2:]
    if (said[0], said[1]) != (kind.entity, kind.fact):
        belongs = f"{kind.type} belongs on {kind.template!r}, came on {subject!r}"
        raise MalformedEventError(belongs, kind="foreign")
    content = attributes.get("datacontenttype", "application/json")
    if content.partition(";")[0].strip().lower() != "application/json":
        raise MalformedEventError(f"{kind.type}: payload is {content!r}, only JSON is understood")
    try:
        payload = kind.model.model_validate_json(data)
    except ValidationError as error:
        raise MalformedEventError(f"{kind.type}: payload is wrong: {_brief(error)}") from error
    machine = kind.machine_of(payload)
    try:
        expected = kind.subject(job, machine=machine)
    except InvalidIdError as error:
        raise MalformedEventError(f"{kind.type} on {subject!r}: {error}", kind="foreign") from error
    if expected != subject:
        raise MalformedEventError(
            f"{kind.type} belongs on {expected!r}, came on {subject!r}", kind="foreign"
        )
    source = _required(attributes, "source", subject)
    _check_source(kind.type, source, machine)
    trace = {k: found.get(k) or attributes.get(k, "") for k in _TRACE_HEADERS}
    return Envelope(
        id=_required(attributes, "id", subject),
        source=source,
        job=job,
        time=_time(_required(attributes, "time", subject), kind.type),
        payload=payload,
        trace={k: v for k, v in trace.items() if v},
        sequence=attributes.get("sequence", ""),
    )


def _check_source(type_: str, source: str, machine: str | None) -> None:
    if machine is not None and source != f"/machine/{machine}":
        raise MalformedEventError(
            f"{type_} of machine {machine!r} says that it comes from {source!r}", kind="foreign"
        )


def _check_size(what: str, data: bytes) -> None:
    if len(data) > MAX_BYTES:
        raise MalformedEventError(
            f"{what} has {len(data)} bytes, over the limit of {MAX_BYTES}: publish less at once",
            kind="oversized",
        )


def _structured(data: bytes) -> tuple[dict[str, str], bytes]:
    try:
        document: Any = from_json(data)
    except ValueError as error:
        raise MalformedEventError(f"structured event is not JSON: {error}") from error
    if not isinstance(document, dict) or "data" not in document:
        raise MalformedEventError("structured event is not an object with a 'data' member")
    attributes = {k: v for k, v in document.items() if k != "data" and isinstance(v, str)}
    return attributes, to_json(document["data"])


def _required(attributes: Mapping[str, str], name: str, subject: str) -> str:
    value = attributes.get(name, "")
    if not value:
        raise MalformedEventError(f"event on {subject!r} lacks the attribute {name!r}")
    return value


def _time(text: str, type_: str) -> datetime:
    try:
        time = datetime.fromisoformat(text)
    except ValueError as error:
        raise MalformedEventError(f"{type_}: time {text!r} is not RFC 3339") from error
    if time.utcoffset() is None:
        raise MalformedEventError(f"{type_}: time {text!r} has no zone")
    if not _YEARS[0] <= time.year <= _YEARS[1]:
        # Whoever adds to a time, or tells it in another zone, must not fall off the calendar.
        raise MalformedEventError(f"{type_}: time {text!r} is in no year that can be meant")
    return time.astimezone(UTC)


def percent_encode(value: str) -> str:
    """``value`` as the NATS binding wants a header value: visible ASCII without ``"`` and ``%``."""
    # What came from the wire or a file system may be no Unicode: it is shown, never raised.
    safe = value.encode(errors="backslashreplace")
    return _UNSAFE.sub(lambda match: b"%%%02X" % match[0][0], safe).decode()


def _percent_decode(value: str) -> str:
    if "%" not in value and value.isascii():  # nearly always, and a planner reads many at once
        return value
    return unquote_to_bytes(value.encode("utf-8", "replace")).decode("utf-8", "replace")


def _brief(error: ValidationError) -> str:
    first = error.errors(include_url=False, include_input=False)[0]
    where = ".".join(str(part) for part in first["loc"]) or "payload"
    return f"{where}: {first['msg']}" + (
        f" (and {error.error_count() - 1} more)" if error.error_count() > 1 else ""
    )
