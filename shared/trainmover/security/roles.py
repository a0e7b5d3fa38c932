"""Who may do what on the bus. Pure: from a user to the subjects it may use.

The server enforces these, so a subject must name whoever may write it: that is why the facts and
telemetry of a machine end in its name. Reading stored facts goes through consumers; a consumer's
name and filter are part of the subject that creates it, and the server holds the request to them.

Nobody may make a direct get (``$JS.API.DIRECT.GET``), whose answer is a bare stored message. Where
the server's answers may go is decided in ``server_config``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from types import MappingProxyType
from typing import Final

from trainmover import subjects
from trainmover.bus.kept import KEPT
from trainmover.bus.streams import (
    BUCKETS,
    DEAD_STREAM,
    ENTITIES,
    JOBS_BUCKET,
    MACHINES_BUCKET,
    fact_subjects,
)
from trainmover.events.catalog import CATALOG, Speaker
from trainmover.protocol.requests import POOL_LEASE
from trainmover.subjects import COMMAND_STREAM, DEAD_LETTER, EVENT_STREAM, validate_id

__all__ = [
    "RELAY_POSITION",
    "SINGLE_ROLES",
    "Permissions",
    "Role",
    "User",
    "permissions",
    "users",
]

RELAY_POSITION: Final = "relay"
"""The one durable position that the relay's user may read from."""


class Role(StrEnum):
    """What a user is."""

    ADMIN = "admin"
    """Sets up streams and buckets; may do everything in the account."""
    PLANNER = "planner"
    """Decides: commands to agents, facts about jobs and migrations."""
    DETECTOR = "detector"
    """Findings: facts about incidents; sees telemetry."""
    MACHINE = "machine"
    """One machine's agent: its own facts, telemetry and commands."""
    POOL = "pool"
    """The leader of a pool: assigns machines of the pool to jobs, and asks planners for them."""
    OPERATOR = "operator"
    """A person who may ask for moves."""
    OPS = "ops"
    """Tools that look and change nothing."""
    RELAY = "relay"
    """The webhook relay: looks, and keeps its position in the stream."""
    SUBSCRIBER = "subscriber"
    """A tool of somebody's that reads facts, and keeps a position of its own in the stream."""


@dataclass(frozen=True, slots=True)
class User:
    """Somebody who may connect.

    Attributes:
        role: What it is.
        which: Which machine, for ``Role.MACHINE``; which tool, for ``Role.SUBSCRIBER``; which pool,
            for ``Role.POOL``.
        pool: The pool that a machine is from; empty for a machine that is a job's own.
    """

    role: Role
    which: str = ""
    pool: str = ""

    @property
    def name(self) -> str:
        """``planner``, or ``machine-node-2``."""
        return f"{self.role}-{self.which}" if self.which else str(self.role)


@dataclass(frozen=True, slots=True)
class Permissions:
    """Subjects that a user may use; everything else is refused.

    Attributes:
        publish: Patterns it may publish on.
        subscribe: Patterns it may subscribe to, its own inboxes excepted.
        never_publish: Exceptions from ``publish``.
        answers: Whether it may answer what it is asked.
    """

    publish: tuple[str, ...]
    subscribe: tuple[str, ...]
    never_publish: tuple[str, ...] = ()
    answers: bool = False


_MANY: Final = frozenset({Role.MACHINE, Role.POOL, Role.SUBSCRIBER})

SINGLE_ROLES: Final = tuple(role for role in Role if role not in _MANY)
"""Roles of which there is one user."""


def users(
    machines: Iterable[str],
    *,
    subscribers: Iterable[str] = (),
    pools: Mapping[str, Iterable[str]] = MappingProxyType({}),
) -> list[User]:
    """One user for each role, machine and subscriber, each pool's leader and its machines."""
    return [
        *map(User, SINGLE_ROLES),
        *(User(Role.MACHINE, validate_id(name, what="machine")) for name in machines),
        *(User(Role.SUBSCRIBER, validate_id(name, what="subscriber")) for name in subscribers),
        *(User(Role.POOL, validate_id(pool, what="pool")) for pool in pools),
        *(
            User(Role.MACHINE, validate_id(name, what="machine"), pool=pool)
            for pool, names in pools.items()
            for name in names
        ),
    ]


def permissions(
    user: User,
    jobs: Iterable[str],
    *,
    subscribers: Iterable[str] = (),
    pools: Iterable[str] = (),
) -> Permissions:
    """What ``user`` may do for ``jobs``.

    Args:
        user: Who.
        jobs: Names of jobs.
        subscribers: Whose positions in the stream others must leave alone.
        pools: Names of pools, to be looked at.
    """
    names = [validate_id(job, what="job") for job in jobs]
    if user.role is Role.ADMIN:
        return Permissions(publish=(">",), subscribe=(">",))
    publish, subscribe = _SUBJECTS[user.role](user, names)
    if user.role in {Role.OPS, Role.OPERATOR}:
        for pool in pools:
            publish.append(subjects.request(validate_id(pool, what="pool"), "status"))
            subscribe.append(f"tm.v1.{pool}.pool.>")
    service = _SERVICES.get(user.role)
    return Permissions(
        publish=tuple(publish),
        subscribe=(*subscribe, *(_health(service) if service else ())),
        never_publish=()
        if user.role in {Role.RELAY, Role.SUBSCRIBER}
        else _positions_of_others(names, [RELAY_POSITION, *subscribers]),
        answers=service is not None,
    )


_Subjects = tuple[list[str], list[str]]
"""What one may publish on, and what one may subscribe to."""


def _planner(_user: User, jobs: list[str]) -> _Subjects:
    publish = [*_facts_of("planner", jobs), DEAD_LETTER, *_read_facts(), *_read_buckets()]
    for job in jobs:
        publish.append(subjects.commands(job))
        for bucket in BUCKETS:
            publish += [f"$KV.{bucket}.{job}", f"$KV.{bucket}.{job}.>"]
    asked = [*map(subjects.requests, jobs), *map(subjects.departures, jobs)]
    return publish, asked


def _detector(_user: User, jobs: list[str]) -> _Subjects:
    publish = [*_facts_of("detector", jobs), DEAD_LETTER, *_read_facts()]
    publish += [f"$KV.{JOBS_BUCKET}.{job}.detector-lease" for job in jobs]
    publish.append(_read_bucket(JOBS_BUCKET))
    return publish, [subjects.telemetry_all(job) for job in jobs]


def _machine(user: User, jobs: list[str]) -> _Subjects:
    publish = [*_facts_of("machine", jobs, machine=user.which), DEAD_LETTER]
    for job in jobs:
        publish += [
            subjects.telemetry(job, user.which),
            subjects.departure(job, user.which),
            f"$KV.{MACHINES_BUCKET}.{job}.{user.which}.generation",
            *_read_commands(job, user.which),
            # How a job ends is all that an agent reads of the facts.
            _read_only(EVENT_STREAM, job, entity="job"),
        ]
    publish += [_read_bucket(MACHINES_BUCKET), f"$JS.FC.{EVENT_STREAM}.>"]
    if user.pool:
        publish = _lent(user, jobs, publish)
    return publish, []


def _lent(user: User, jobs: list[str], publish: list[str]) -> list[str]:
    """What a machine of a pool may publish, next to a machine that is a job's own.

    Nobody knows which job it will serve, so its key holds for all of them. But it can offer itself
    only as a machine of a pool, and planners take that where the pool's leader assigned it.
    """
    name, pool = user.which, validate_id(user.pool, what="pool")
    own = {subjects.event(job, entity="machine", fact="registered", machine=name) for job in jobs}
    return [
        *(subject for subject in publish if subject not in own),
        *(subjects.event(job, entity="machine", fact="lent", machine=name) for job in jobs),
        subjects.event(pool, entity="pool", fact="seen", machine=name),
        *_read_commands(pool, name),
    ]


def _pool(user: User, jobs: list[str]) -> _Subjects:
    pool = user.which
    publish = [
        *_facts_of("pool", [pool, *jobs]),
        subjects.commands(pool),
        *(subjects.request(job, verb) for job in jobs for verb in ("standbys", "release")),
        f"$KV.{JOBS_BUCKET}.{pool}.{POOL_LEASE}-lease",
        _read_bucket(JOBS_BUCKET),
        DEAD_LETTER,
        f"$JS.API.STREAM.INFO.{EVENT_STREAM}",
        # What its machines say, and that something happened at a job.
        *(_read_only(stream, pool, entity="pool", fact="seen") for stream in _FACTS),
        *(_read_only(EVENT_STREAM, job, entity="job") for job in jobs),
        *(f"$JS.FC.{stream}.>" for stream in _FACTS),
    ]
    return publish, [subjects.requests(pool), subjects.departures(pool)]


def _relay(_user: User, jobs: list[str]) -> _Subjects:
    return [*_read_at(RELAY_POSITION, jobs), DEAD_LETTER], []


def _subscriber(user: User, jobs: list[str]) -> _Subjects:
    return _read_at(user.which, jobs), []


def _read_at(position: str, jobs: list[str]) -> list[str]:
    """Facts at a position that is kept on the bus."""
    publish = [f"$JS.API.STREAM.INFO.{EVENT_STREAM}"]
    for job in jobs:
        consumer = f"{EVENT_STREAM}.{_position(job, position)}"
        publish += [
            f"$JS.API.CONSUMER.CREATE.{consumer}",
            f"$JS.API.CONSUMER.CREATE.{consumer}.>",
            f"$JS.API.CONSUMER.INFO.{consumer}",
            f"$JS.API.CONSUMER.MSG.NEXT.{consumer}",
            f"$JS.ACK.{consumer}.>",
        ]
    return publish


def _ops(_user: User, jobs: list[str]) -> _Subjects:
    publish = [
        *_read_facts(),
        *_read_buckets(),
        f"$JS.API.STREAM.INFO.{DEAD_STREAM}",
        f"$JS.API.CONSUMER.CREATE.{DEAD_STREAM}.*",
        f"$JS.API.CONSUMER.CREATE.{DEAD_STREAM}.*.>",
        f"$JS.FC.{DEAD_STREAM}.>",
        f"$JS.API.STREAM.MSG.GET.{DEAD_STREAM}",
        "$JS.API.INFO",
        "$JS.API.STREAM.NAMES",
        "$JS.API.STREAM.LIST",
        "$SRV.>",
        *(subjects.request(job, verb) for job in jobs for verb in ("status", "policy")),
    ]
    # The server compares patterns: ``nats sub 'tm.v1.gpt.migration.>'`` needs exactly this one.
    watch = [f"tm.v1.{job}.{entity}.>" for job in jobs for entity in ENTITIES]
    watch += [subjects.telemetry_all(job) for job in jobs]
    return publish, [*watch, DEAD_LETTER]


def _operator(user: User, jobs: list[str]) -> _Subjects:
    publish, subscribe = _ops(user, jobs)
    asks = [subjects.requests(job) for job in jobs]
    return [*publish, *asks, *_facts_of("operator", jobs)], subscribe


_SUBJECTS: Final[Mapping[Role, Callable[[User, list[str]], _Subjects]]] = {
    Role.PLANNER: _planner,
    Role.DETECTOR: _detector,
    Role.MACHINE: _machine,
    Role.POOL: _pool,
    Role.RELAY: _relay,
    Role.SUBSCRIBER: _subscriber,
    Role.OPS: _ops,
    Role.OPERATOR: _operator,
}

_SERVICES: Final = {
    Role.PLANNER: "planner",
    Role.DETECTOR: "detector",
    Role.MACHINE: "agent",
    Role.POOL: "pool",
    Role.RELAY: "relay",
}
"""Names under which they answer health checks."""


def _facts_of(speaker: Speaker, jobs: list[str], *, machine: str | None = None) -> list[str]:
    kinds = [kind for kind in CATALOG.values() if kind.by == speaker]
    return [kind.subject(job, machine=machine) for job in jobs for kind in kinds]


_FACTS: Final = (EVENT_STREAM, *(kept.stream for kept in KEPT))
"""The facts, and the copies of those that were pushed out."""


def _read_commands(job: str, machine: str) -> list[str]:
    queue = f"{COMMAND_STREAM}.agent:{job}:{machine}"
    return [
        f"$JS.API.CONSUMER.CREATE.{queue}.{subjects.command(job, machine)}",
        f"$JS.API.CONSUMER.MSG.NEXT.{queue}",
        f"$JS.ACK.{queue}.>",
    ]


def _read_only(stream: str, job: str, *, entity: str, fact: str = "*") -> str:
    """Facts of one pattern: it is part of the subject, and the server holds the reader to it."""
    (pattern,) = fact_subjects(job, entity=entity, fact=fact)
    return f"$JS.API.CONSUMER.CREATE.{stream}.*.{pattern}"


def _read_facts() -> list[str]:
    """All facts, and the copies of those that were pushed out."""
    return [
        subject
        for stream in _FACTS
        for subject in (
            f"$JS.API.STREAM.INFO.{stream}",
            f"$JS.API.CONSUMER.CREATE.{stream}.*",
            f"$JS.API.CONSUMER.CREATE.{stream}.*.>",
            f"$JS.FC.{stream}.>",
        )
    ]


def _read_bucket(bucket: str) -> str:
    return f"$JS.API.STREAM.MSG.GET.KV_{bucket}"


def _read_buckets() -> list[str]:
    return [
        subject
        for bucket in BUCKETS
        for subject in (f"$JS.API.STREAM.INFO.KV_{bucket}", _read_bucket(bucket))
    ]


def _position(job: str, name: str) -> str:
    return f"facts:{job}:{name}"


def _positions_of_others(jobs: list[str], kept: list[str]) -> tuple[str, ...]:
    """A consumer that is created again is changed: readers must leave those of others alone."""
    create = f"$JS.API.CONSUMER.CREATE.{EVENT_STREAM}"
    names = [f"{create}.{_position(job, name)}" for job in jobs for name in kept]
    return tuple(subject for name in names for subject in (name, f"{name}.>"))


def _health(service: str) -> list[str]:
    name = f"trainmover-{service}"
    return ["$SRV.*", f"$SRV.*.{name}", f"$SRV.*.{name}.*"]
