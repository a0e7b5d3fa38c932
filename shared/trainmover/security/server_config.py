"""The part of a NATS server's configuration that decides who may do what."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from pathlib import PurePath
from typing import Any, Final

from trainmover.bus.credentials import inbox_prefix
from trainmover.security.roles import Permissions, Role, User, permissions

__all__ = ["ACCOUNT", "auth_config", "server_config"]

ACCOUNT: Final = "TRAINMOVER"
_SYSTEM: Final = "SYS"
_ANSWER_WITHIN: Final = "30s"
MAX_PAYLOAD: Final = 8 * 1024 * 1024
"""A batch of telemetry, or the membership of a very large job, may be that large."""


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
    accounts: dict[str, Any] = {
        ACCOUNT: {
            "jetstream": "enabled",
            "users": [
                {"nkey": key, "permissions": _permissions(user, key, permissions(user, names))}
                for user, key in sorted(keys.items(), key=lambda item: item[0].name)
            ],
        },
        _SYSTEM: {"users": []},
    }
    text = (
        "# Made by `trainmover setup`, which replaces it: do not edit.\n"
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
        "# Made once by `trainmover setup` and yours from then on.\n"
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


def _permissions(user: User, key: str, found: Permissions) -> dict[str, Any]:
    if user.role is Role.ADMIN:
        return {"publish": list(found.publish), "subscribe": list(found.subscribe)}
    publish: dict[str, Any] = {"allow": list(found.publish)}
    if found.never_publish:
        publish["deny"] = list(found.never_publish)
    # Programs of ours use the key's inbox; the name's is for people with a plain client.
    inboxes = [f"{inbox_prefix(key)}.>", f"_INBOX.{user.name}.>"]
    allowed: dict[str, Any] = {
        "publish": publish,
        "subscribe": {"allow": [*found.subscribe, *inboxes]},
    }
    if found.answers:
        allowed["allow_responses"] = {"max": 1, "expires": _ANSWER_WITHIN}
    return allowed
