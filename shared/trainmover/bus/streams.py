"""What is stored on the bus: streams and buckets, and how they are created."""

from __future__ import annotations

import os
from typing import Final

from nats.js import JetStreamContext
from nats.js.api import (
    DiscardPolicy,
    RetentionPolicy,
    StorageType,
    StreamConfig,
    StreamSource,
    SubjectTransform,
)
from nats.js.errors import BadRequestError

from trainmover import subjects
from trainmover.bus.kept import KEPT, Kept
from trainmover.errors import ConfigError
from trainmover.events.catalog import CATALOG
from trainmover.events.envelope import MAX_BYTES

__all__ = [
    "BUCKETS",
    "DEAD_STREAM",
    "ENTITIES",
    "MACHINES_BUCKET",
    "REPLICAS_VARIABLE",
    "ensure",
    "fact_subjects",
    "replicas_wanted",
    "stream_configs",
]

ENTITIES: Final = tuple(sorted({kind.entity for kind in CATALOG.values()}))
"""Every entity of the catalogue: ``cmd``, ``telemetry`` and ``request`` are not among them."""

DEAD_STREAM: Final = "TM_DEAD"
JOBS_BUCKET: Final = "tm_jobs"
MACHINES_BUCKET: Final = "tm_machines"
MIGRATIONS_BUCKET: Final = "tm_migrations"
REPLICAS_VARIABLE: Final = "TRAINMOVER_NATS_REPLICAS"
"""On how many servers of a cluster each stream and bucket is kept: 1, 3 or 5."""

BUCKETS: Final = (JOBS_BUCKET, MIGRATIONS_BUCKET, MACHINES_BUCKET)

_DEDUP_WINDOW_S: Final = 600.0  # how long after an outage a retry is still recognised
_HEADER_BYTES: Final = 64 * 1024
_FACT_BYTES: Final = MAX_BYTES + _HEADER_BYTES
_COPY_BYTES: Final = _FACT_BYTES + 4 * 1024
"""A copy has a header more. One that is not taken would be tried again for ever, and hold up all
that are behind it: whatever the stream of facts takes, the streams of copies take as well."""
_NAME_IN_USE: Final = 10058  # "stream name already in use with a different configuration"
_MOST_REPLICAS: Final = 5  # JetStream's own limit
_FACTS_BYTES: Final = 768 * 1024**2  # reserved on the server: keep it modest
_MESSAGE_BYTES: Final = 8 * 1024 * 1024
"""A command with the membership of a very large job; a fact has at most half of it."""
_READERS: Final = 16_384
"""Readers of one stream at a time: each agent is one. They cost the server memory, and whoever may
read may make more."""
_COMMAND_BYTES: Final = 256 * 1024**2
_COMMANDS_EACH: Final = 1000
"""Of one machine: who takes none for so long must not keep the others' from being stored."""
_DEAD_BYTES: Final = 64 * 1024**2
_DEAD_AGE_S: Final = 7 * 24 * 3600.0
_LETTER_BYTES: Final = 256 * 1024
_BUCKET_BYTES: Final = 128 * 1024**2
_HISTORY: Final = 8
_NUMBER_BYTES: Final = 1024
"""A machine writes one number. What is full takes nothing more, so that nobody may fill it."""
_COMMAND_AGE_S: Final = 24 * 3600.0  # a machine that is gone for good never reads its own
_LIMITS: Final = (
    "max_age",
    "max_bytes",
    "max_msg_size",
    "max_msgs_per_subject",
    "allow_msg_ttl",
)
"""Set on a stream that has none of its own; what an administrator set stays."""


def fact_subjects(job: str, *, entity: str = "*", fact: str = "*") -> list[str]:
    """Patterns that match exactly the facts asked for, and never a command or telemetry.

    A plain ``tm.v1.<job>.*.*`` would overlap with commands, so the entities are listed. Facts of
    machines have one token more than the others.
    """
    patterns = []
    for each in ENTITIES if entity == "*" else (entity,):
        said = {
            kind.by_machines
            for kind in CATALOG.values()
            if kind.entity == each and fact in ("*", kind.fact)
        }
        plain = subjects.events(job, entity=each, fact=fact)
        if said != {True}:
            patterns.append(plain)
        if True in said:
            patterns.append(f"{plain}.*")
    return patterns


def stream_configs() -> tuple[StreamConfig, ...]:
    """Facts and copies of some, commands until they are acknowledged, the dead, buckets."""
    return (
        StreamConfig(
            name=subjects.EVENT_STREAM,
            description="Facts of all jobs, in order",
            subjects=fact_subjects("*"),
            retention=RetentionPolicy.LIMITS,
            discard=DiscardPolicy.OLD,
            max_bytes=_FACTS_BYTES,
            max_msg_size=_FACT_BYTES,
            storage=StorageType.FILE,
            duplicate_window=_DEDUP_WINDOW_S,
            allow_direct=True,
            allow_msg_ttl=True,  # of facts that are not kept for good
            max_consumers=_READERS,
        ),
        *(_copies_config(kept) for kept in KEPT),
        StreamConfig(
            name=subjects.COMMAND_STREAM,
            description="Commands to machine agents, until acknowledged or a day old",
            subjects=["tm.v1.*.cmd.*"],
            retention=RetentionPolicy.WORK_QUEUE,
            discard=DiscardPolicy.OLD,
            max_age=_COMMAND_AGE_S,
            max_bytes=_COMMAND_BYTES,
            max_msgs_per_subject=_COMMANDS_EACH,
            max_msg_size=_MESSAGE_BYTES,
            max_consumers=_READERS,
            storage=StorageType.FILE,
            duplicate_window=_DEDUP_WINDOW_S,
        ),
        StreamConfig(
            name=DEAD_STREAM,
            description="Messages that nobody could read, the latest of them",
            subjects=[subjects.DEAD_LETTER],
            discard=DiscardPolicy.OLD,
            max_msgs=1000,
            max_bytes=_DEAD_BYTES,
            max_age=_DEAD_AGE_S,
            max_msg_size=_LETTER_BYTES,
            max_consumers=_READERS,
            storage=StorageType.FILE,
            duplicate_window=_DEDUP_WINDOW_S,
        ),
        *(_bucket_config(bucket) for bucket in BUCKETS),
    )


def _copies_config(kept: Kept) -> StreamConfig:
    """A stream that the server fills from the facts, and that has no subject to publish to."""
    return StreamConfig(
        name=kept.stream,
        description=kept.description,
        sources=[
            StreamSource(
                name=subjects.EVENT_STREAM,
                # A transform to nothing is a filter; one source keeps the order of all.
                subject_transforms=[
                    SubjectTransform(src=each, dest="") for each in kept.patterns()
                ],
            )
        ],
        retention=RetentionPolicy.LIMITS,
        discard=DiscardPolicy.OLD,
        max_msgs_per_subject=kept.each,
        max_bytes=kept.max_bytes,
        max_msg_size=_COPY_BYTES,
        storage=StorageType.FILE,
        duplicate_window=_DEDUP_WINDOW_S,
        allow_msg_ttl=True,  # what has one must not hold up the others
        max_consumers=_READERS,
    )


def _bucket_config(bucket: str) -> StreamConfig:
    """A bucket as clients of NATS know them, but for the header that empties one.

    Whoever may write one key could, with ``Nats-Rollup: all``, remove everybody's.
    """
    return StreamConfig(
        name=f"KV_{bucket}",
        subjects=[f"$KV.{bucket}.>"],
        max_msgs_per_subject=_HISTORY,
        max_bytes=_BUCKET_BYTES,
        max_msg_size=_NUMBER_BYTES if bucket == MACHINES_BUCKET else _MESSAGE_BYTES,
        # Leases and generations must not go missing. A job's first migrations may: facts tell of
        # them, and a bucket that is full of them would take no later ones.
        discard=DiscardPolicy.OLD if bucket == MIGRATIONS_BUCKET else DiscardPolicy.NEW,
        storage=StorageType.FILE,
        allow_rollup_hdrs=False,
        deny_delete=True,
        allow_direct=True,
    )


def replicas_wanted() -> int | None:
    """What ``TRAINMOVER_NATS_REPLICAS`` says, None when it is not set.

    Raises:
        ConfigError: It is not a number of servers.
    """
    text = os.environ.get(REPLICAS_VARIABLE)
    if not text:
        return None
    if not text.isdecimal() or not 1 <= int(text) <= _MOST_REPLICAS:
        raise ConfigError(
            f"{REPLICAS_VARIABLE} is {text!r}: set it to the number of servers that keep each "
            f"stream, 1 to {_MOST_REPLICAS}."
        )
    return int(text)


async def ensure(context: JetStreamContext, *, replicas: int | None = None) -> None:
    """Create what is missing and widen what an older version made; several may do so at once.

    Args:
        context: JetStream, as an administrator.
        replicas: On how many servers each is kept. None leaves what exists as it is, and makes
            what is missing on one.
    """
    for config in stream_configs():
        wanted = config.evolve(num_replicas=replicas)
        try:
            await context.add_stream(wanted)
        except BadRequestError as error:
            if error.err_code != _NAME_IN_USE:
                raise
            await _widen(context, wanted)


def _is_set(value: float | bool | None) -> bool:
    return value is not None and value > 0


async def _widen(context: JetStreamContext, wanted: StreamConfig) -> None:
    """Add what an older version did not know, and the replicas that are asked for."""
    there = (await context.stream_info(wanted.name or "")).config
    subjects_there = set(there.subjects or ())
    subjects_wanted = subjects_there | set(wanted.subjects or ())
    replicas = wanted.num_replicas or there.num_replicas
    unset = {
        name: getattr(wanted, name)
        for name in _LIMITS
        if _is_set(getattr(wanted, name)) and not _is_set(getattr(there, name))
    }
    if there.allow_rollup_hdrs and not wanted.allow_rollup_hdrs:
        unset["allow_rollup_hdrs"] = False
    if wanted.discard == DiscardPolicy.OLD != there.discard:
        unset["discard"] = DiscardPolicy.OLD
    if unset or subjects_wanted != subjects_there or replicas != there.num_replicas:
        await context.update_stream(
            there.evolve(subjects=sorted(subjects_wanted), num_replicas=replicas, **unset)
        )
