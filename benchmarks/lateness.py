"""How long decisions took, by what a bus stored: from the message that caused one to its effect."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Self

import nats.errors
from nats.aio.client import Client
from nats.js.api import AckPolicy, ConsumerConfig, DeliverPolicy

from trainmover import subjects

__all__ = ["Stored", "decisions"]

_BATCH: Final = 500
_KINDS: Final = (
    "migration.*",
    "incident.opened",
    "link.lost.*",
    "plan.prepared.*",
    "plan.committed.*",
)


@dataclass(frozen=True, slots=True)
class Stored:
    """Facts with the bus's own times.

    Attributes:
        facts: (kind, seconds since 1970, body), oldest first.
    """

    facts: Sequence[tuple[str, float, Mapping[str, Any]]]

    @classmethod
    async def read(cls, client: Client, job: str) -> Self:
        """All of them that decisions begin or end with."""
        prefix = f"tm.v1.{job}."
        config = ConsumerConfig(
            deliver_policy=DeliverPolicy.ALL,
            ack_policy=AckPolicy.NONE,
            filter_subjects=[prefix + kind for kind in _KINDS],
            mem_storage=True,
        )
        reader = await client.jetstream().pull_subscribe(
            "", stream=subjects.EVENT_STREAM, config=config
        )
        facts, left = [], 1
        while left:
            try:
                messages = await reader.fetch(_BATCH, timeout=10.0)
            except (TimeoutError, nats.errors.TimeoutError):
                continue  # a busy host: there are more
            for message in messages:
                left = message.metadata.num_pending
                entity, fact = message.subject.removeprefix(prefix).split(".")[:2]
                at_s = message.metadata.timestamp.timestamp()
                body = json.loads(message.data)
                for heavy in ("membership", "plan"):
                    body.pop(heavy, None)
                facts.append((f"{entity}.{fact}", at_s, body))
        return cls(facts)

    def times(self, kind: str, *, migration: str | None = None) -> list[float]:
        """When facts of a kind were stored, those about one migration or all."""
        return [
            at_s
            for known, at_s, body in self.facts
            if known == kind and migration in (None, body.get("migration"))
        ]

    def last_before(self, kinds: tuple[str, ...], at_s: float) -> float:
        """When the latest of these was stored before then."""
        return max(when for kind, when, _ in self.facts if kind in kinds and when <= at_s)


def decisions(
    stored: Stored,
    *,
    asked: Mapping[str, float],
    heard: Sequence[Mapping[str, tuple[int, int, int]]],
) -> list[dict[str, Any]]:
    """A row for each migration, in milliseconds.

    Args:
        stored: What the bus kept.
        asked: When moves were asked for, by migration, in seconds since 1970.
        heard: Of each process with machines: first and last time at which commands were stored,
            and how many came, by ``MIGRATION.VERB``.
    """
    rows = []
    incidents = {body["id"]: at_s for kind, at_s, body in stored.facts if kind == "incident.opened"}
    for kind, _, body in stored.facts:
        if kind != "migration.proposed":
            continue
        migration, planned = body["migration"], body["kind"] == "planned"
        row: dict[str, Any] = {"what": "move" if planned else "crash"}
        if planned:
            cause_s = asked[migration]
        else:
            # The lost links said so first; the incident is what the planner heard.
            cause_s = incidents[body["incident"]]
            links = [at_s for at_s in stored.times("link.lost") if at_s <= cause_s]
            row["incident_ms"] = _ms(_burst(links), cause_s)
        commands = [
            one[f"{migration}.{_verb(planned)}"]
            for one in heard
            if f"{migration}.{_verb(planned)}" in one
        ]
        row["approved_ms"] = _ms(
            cause_s, stored.times("migration.approved", migration=migration)[0]
        )
        row["first_command_ms"] = _ms(cause_s, min(one[0] for one in commands) / 1e9)
        row["last_command_ms"] = _ms(cause_s, max(one[1] for one in commands) / 1e9)
        row["commands"] = sum(one[2] for one in commands)
        for fact, answer in (("ready", "prepared"), ("committed", "committed")):
            said = stored.times(f"migration.{fact}", migration=migration)
            reports = stored.times(f"plan.{answer}", migration=migration)
            if said and reports:
                row[f"{fact}_ms"] = _ms(max(reports), said[0])
        rows.append(row)
    return rows


def _verb(planned: bool) -> str:
    return "prepare" if planned else "recover"


def _burst(times: Sequence[float]) -> float:
    """The first of the latest ones that came together."""
    first = times[-1]
    for at_s in reversed(times):
        if first - at_s > 1.0:
            break
        first = at_s
    return first


def _ms(cause_s: float, effect_s: float) -> float:
    return round(1e3 * (effect_s - cause_s), 1)
