"""The part of a NATS server's configuration that decides who may do what.

Clients are in one account, and each stream is in another, with the copies of what it holds.
JetStream publishes its answers, and what a consumer delivers, on whatever subject the asker names,
and asks nobody: in one account with the streams, whoever may only look could have an answer stored
as a lease, a command or a fact. So what clients may say to a stream is a service of its account.
Answers come back to the clients' account and go no further; what a consumer delivers leaves its
account towards inboxes alone.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import PurePath
from typing import Any, Final

from trainmover.bus.credentials import inbox_prefix
from trainmover.bus.kept import KEPT
from trainmover.bus.streams import BUCKETS, DEAD_STREAM, fact_subjects
from trainmover.security.roles import Permissions, Role, User, permissions
from trainmover.subjects import COMMAND_STREAM, DEAD_LETTER, EVENT_STREAM

__all__ = ["ACCOUNT", "auth_config", "cluster_config", "server_config"]

ACCOUNT: Final = "TRAINMOVER"
_GENERAL: Final = ("$JS.API.INFO", "$JS.API.STREAM.NAMES", "$JS.API.STREAM.LIST")
"""What is asked of JetStream and of no stream: the account of the facts answers."""
_STREAM_VERBS: Final = (
    *("CREATE", "UPDATE", "DELETE", "PURGE", "INFO"),
    *("MSG.GET", "MSG.DELETE", "LEADER.STEPDOWN", "PEER.REMOVE"),
)
_CONSUMER_VERBS: Final = ("INFO", "DELETE", "LEADER.STEPDOWN")
_INBOXES: Final = "_INBOX.>"
_SYSTEM: Final = "SYS"
_ROUTE_USER: Final = "route"
_ANSWER_WITHIN: Final = "30s"
MAX_PAYLOAD: Final = 8 * 1024 * 1024
"""A batch of telemetry, or the membership of a very large job, may be that large."""


@dataclass(frozen=True, slots=True)
class _Store:
    """The account of one stream and its copies, or of all buckets.

    Attributes:
        account: Its name.
        single: What clients may say to it that has one answer.
        many: What has several.
    """

    account: str
    single: tuple[str, ...]
    many: tuple[str, ...]

    def services(self) -> tuple[str, ...]:
        """All that clients may say to it."""
        return (*self.single, *self.many)


def _store(name: str, streams: Mapping[str, Iterable[str]], more: tuple[str, ...] = ()) -> _Store:
    single = [*more]
    for stream, written in streams.items():
        single += written
        single += [f"$JS.API.STREAM.{verb}.{stream}" for verb in _STREAM_VERBS]
        single += [f"$JS.API.CONSUMER.{verb}.{stream}" for verb in ("CREATE", "NAMES", "LIST")]
        single += [f"$JS.API.CONSUMER.CREATE.{stream}.>"]
        single += [f"$JS.API.CONSUMER.{verb}.{stream}.*" for verb in _CONSUMER_VERBS]
        single += [f"$JS.ACK.{stream}.>", f"$JS.FC.{stream}.>"]
    many = [f"$JS.API.CONSUMER.MSG.NEXT.{stream}.*" for stream in streams]
    return _Store(f"{ACCOUNT}_{name}", tuple(single), tuple(many))


_STORES: Final = (
    _store(
        "FACTS",
        {EVENT_STREAM: fact_subjects("*"), **{kept.stream: () for kept in KEPT}},
        _GENERAL,
    ),
    _store("COMMANDS", {COMMAND_STREAM: ["tm.v1.*.cmd.*"]}),
    _store("DEAD", {DEAD_STREAM: [DEAD_LETTER]}),
    _store("STATE", {f"KV_{bucket}": [f"$KV.{bucket}.>"] for bucket in BUCKETS}),
)


def auth_config(
    keys: Mapping[User, str], *, jobs: Iterable[str], tls_folder: PurePath | None
) -> str:
    """Accounts, users, permissions and TLS.

    Args:
        keys: Public key of every user.
        jobs: Jobs that the permissions are for.
        tls_folder: Where the server finds ``server.pem`` and ``server.key``; None without TLS.
    """
    names = list(jobs)
    reading = [user.which for user in keys if user.role is Role.SUBSCRIBER]
    pools = [user.which for user in keys if user.role is Role.POOL]
    allowed = {user: permissions(user, names, subscribers=reading, pools=pools) for user in keys}
    accounts: dict[str, Any] = {
        ACCOUNT: {
            "users": [
                {"nkey": key, "permissions": _permissions(user, key, allowed[user])}
                for user, key in sorted(keys.items(), key=lambda item: item[0].name)
            ],
            "imports": [
                {kind: {"account": store.account, "subject": subject}}
                for store in _STORES
                for kind, subject in (
                    *(("service", subject) for subject in store.services()),
                    ("stream", _INBOXES),
                )
            ],
        },
        **{
            store.account: {
                "jetstream": "enabled",
                "exports": [
                    *({"service": subject} for subject in store.single),
                    *({"service": subject, "response_type": "stream"} for subject in store.many),
                    {"stream": _INBOXES},
                ],
            }
            for store in _STORES
        },
        _SYSTEM: {"users": []},
    }
    text = (
        "# Made by `trainmover bus setup`, which replaces it: do not edit.\n"
        f"accounts: {json.dumps(accounts, indent=2)}\n"
        f"system_account: {_SYSTEM}\n"
    )
    if tls_folder is not None:
        files = {
            "cert_file": str(tls_folder / "server.pem"),
            "key_file": str(tls_folder / "server.key"),
            "min_version": "1.3",
        }
        text += f"tls: {json.dumps(files, indent=2)}\n"
    return text


def server_config(*, listen: str, store: str) -> str:
    """A whole configuration around it, to be tuned.

    Args:
        listen: ``host:port`` for clients.
        store: Folder for streams, as the server sees it.
    """
    return (
        "# Made once by `trainmover bus setup` and yours from then on.\n"
        "server_name: trainmover\n"
        f"listen: {json.dumps(listen)}\n"
        "http: 127.0.0.1:8222 # health checks, from there only\n"
        "# A client that is gone is noticed in seconds.\n"
        'ping_interval: "2s"\n'
        "ping_max: 2\n"
        'write_deadline: "2s"\n'
        f"max_payload: {MAX_PAYLOAD}\n"
        "jetstream {\n"
        f"  store_dir: {json.dumps(store)}\n"
        "  # An acknowledged fact must survive the machine, not only the process.\n"
        "  sync_interval: always\n"
        "}\n"
        'include "auth.conf"\n'
    )


def cluster_config(*, routes: Iterable[str], password: str) -> str:
    """A whole configuration of one of several servers, the same for all of them.

    Args:
        routes: ``host:port`` by which servers reach each other.
        password: By which they know each other. It is in this file alone: what is on a command line
            is read by everybody on the host.
    """
    peers = list(routes)
    port = peers[0].rpartition(":")[2]
    cluster = {
        "name": "trainmover",
        "listen": f"0.0.0.0:{port}",
        # Clients know all servers by name; addresses that they cannot reach would only delay them.
        "no_advertise": True,
        "authorization": {"user": _ROUTE_USER, "password": password},
        "routes": [f"nats://{_ROUTE_USER}:{password}@{peer}" for peer in peers],
    }
    return (
        "# Made by `trainmover bus setup --route`, which replaces it: do not edit.\n"
        'include "nats.conf"\n'
        f"cluster: {json.dumps(cluster, indent=2)}\n"
    )


def _permissions(user: User, key: str, found: Permissions) -> dict[str, Any]:
    if user.role is Role.ADMIN:
        return {"publish": list(found.publish), "subscribe": list(found.subscribe)}
    publish: dict[str, Any] = {"allow": list(found.publish)}
    if found.never_publish:
        publish["deny"] = list(found.never_publish)
    # Programs of ours use the key's inbox; the name's is for people with a plain client.
    inboxes = [f"{inbox_prefix(key)}.>", f"_INBOX.{user.name}.>"]
    rules: dict[str, Any] = {
        "publish": publish,
        "subscribe": {"allow": [*found.subscribe, *inboxes]},
    }
    if found.answers:
        rules["allow_responses"] = {"max": 1, "expires": _ANSWER_WITHIN}
    return rules
