"""CloudEvents 1.0 envelope in NATS binary mode: attributes in headers, payload as JSON."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from trainmover.topology import Frozen

__all__ = ["Envelope", "decode", "encode"]


@dataclass(frozen=True, slots=True)
class Envelope:
    """One fact with its context attributes.

    Attributes:
        id: Unique per source; used as ``Nats-Msg-Id`` for exactly-once publishing.
        source: Who says it, for example ``/planner`` or ``/machine/worker-2``.
        job: The job it is about.
        time: When it was said, UTC.
        payload: The event model; its class decides type and subject.
        trace: W3C trace context headers (``traceparent``, ``tracestate``), may be empty.
    """

    id: str
    source: str
    job: str
    time: datetime
    payload: Frozen
    trace: Mapping[str, str] = field(default_factory=dict)

    @property
    def type(self) -> str:
        """CloudEvents type of the payload."""
        from trainmover.events.catalog import type_of  # noqa: PLC0415 - the catalogue needs us

        return type_of(self.payload).type

    @property
    def subject(self) -> str:
        """Subject on which the event is published."""
        from trainmover.events.catalog import type_of  # noqa: PLC0415 - the catalogue needs us

        return type_of(self.payload).subject(self.job)


def encode(envelope: Envelope) -> tuple[dict[str, str], bytes]:
    """Headers and body of ``envelope`` (CloudEvents NATS binding, binary mode)."""
    raise NotImplementedError


def decode(subject: str, headers: Mapping[str, str] | None, data: bytes) -> Envelope:
    """Parse a message, binary or structured mode.

    Raises:
        MalformedEventError: Attributes are missing, the type is unknown, the payload does not
            validate, or the subject is not the type's subject.
    """
    raise NotImplementedError


_Json = dict[str, Any]
