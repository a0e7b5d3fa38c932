"""One fact as one HTTP request: CloudEvents JSON, signed as Standard Webhooks describes.

https://www.standardwebhooks.com: the signature is over ``id.timestamp.body``, so a receiver can
refuse what was changed and, by the timestamp, what was recorded and sent again.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Final, Self

from trainmover.errors import ConfigError
from trainmover.events.catalog import type_of
from trainmover.events.envelope import Envelope, percent_encode

__all__ = ["Request", "Secret", "request_for", "sign"]

_PREFIX: Final = "whsec_"
_LEAST_BYTES: Final = 24
_CURE: Final = 'Make one with: echo "whsec_$(openssl rand -base64 32)"'


@dataclass(frozen=True, slots=True)
class Secret:
    """What sender and receiver share."""

    key: bytes = field(repr=False)

    @classmethod
    def parse(cls, text: str) -> Self:
        """From ``whsec_`` and base64, as receivers' libraries read it.

        Raises:
            ConfigError: It is not that, or too short to protect anything.
        """
        text = text.strip()
        if not text.startswith(_PREFIX):
            raise ConfigError(f"the relay's secret does not begin with {_PREFIX}. {_CURE}")
        try:
            key = base64.b64decode(text.removeprefix(_PREFIX), validate=True)
        except (binascii.Error, ValueError) as error:
            raise ConfigError(
                f"the relay's secret begins with {_PREFIX} but is not base64. {_CURE}"
            ) from error
        if len(key) < _LEAST_BYTES:
            raise ConfigError(
                f"the relay's secret has {len(key)} bytes, at least {_LEAST_BYTES} are needed. "
                f"{_CURE}"
            )
        return cls(key)


@dataclass(frozen=True, slots=True)
class Request:
    """What is posted."""

    headers: Mapping[str, str]
    body: bytes


def request_for(event: Envelope, *, secret: Secret | None, now: datetime) -> Request:
    """The request that tells of ``event``.

    Args:
        event: A fact.
        secret: Signs it; None sends it unsigned.
        now: Time of this attempt, with a zone.
    """
    document: dict[str, Any] = {
        "specversion": "1.0",
        "id": event.id,
        "source": event.source,
        "type": event.type,
        "time": event.time.isoformat().replace("+00:00", "Z"),
        "subject": event.job,
        "datacontenttype": "application/json",
        "dataschema": type_of(event.payload).schema,
        **event.trace,
        "data": event.payload.model_dump(mode="json"),
    }
    body = json.dumps(document, ensure_ascii=False, separators=(",", ":")).encode()
    headers = {
        "content-type": "application/cloudevents+json; charset=utf-8",
        # The same for every attempt: a receiver that saw it already need not act again.
        "webhook-id": percent_encode(f"{event.source}#{event.id}"),
        "webhook-timestamp": str(int(now.timestamp())),
    }
    if secret is not None:
        headers["webhook-signature"] = sign(
            secret, id=headers["webhook-id"], timestamp=headers["webhook-timestamp"], body=body
        )
    return Request(headers=headers, body=body)


def sign(secret: Secret, *, id: str, timestamp: str, body: bytes) -> str:
    """``v1,`` and the base64 of HMAC-SHA256 over ``id.timestamp.body``."""
    content = b".".join((id.encode(), timestamp.encode(), body))
    digest = hmac.new(secret.key, content, hashlib.sha256).digest()
    return f"v1,{base64.b64encode(digest).decode()}"
