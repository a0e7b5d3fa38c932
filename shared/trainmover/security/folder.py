"""The folder that ``trainmover bus setup`` keeps: who is known, their keys, the server's files.

setup.json                      jobs, machines, hosts, TLS or not
ca/ca.pem, ca/ca.key            the development authority; the key signs and goes nowhere else
server/nats.conf, auth.conf     what the server reads, with server.pem and server.key
server/cluster.conf             what it reads instead where there are several
route                           the password by which those know each other
clients/ROLE/nkey, ca.pem       all that one client needs
clients/machines/NAME/...       the same for each machine
clients/subscribers/NAME/...    the same for each tool that reads at a position of its own
clients/pools/NAME/...          the same for the leader of each pool
"""

from __future__ import annotations

import os
import secrets
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from pydantic import Field, ValidationError

from trainmover.bus.credentials import public_key
from trainmover.errors import ConfigError
from trainmover.job.endpoints import split_endpoint
from trainmover.job.topology import Frozen
from trainmover.security.authority import Issued, covers, make_authority, make_seed, make_server
from trainmover.security.roles import SINGLE_ROLES, Role, User, users
from trainmover.security.secret import LEAST_BYTES
from trainmover.security.server_config import auth_config, cluster_config, server_config
from trainmover.subjects import validate_id

__all__ = ["LOCAL_HOSTS", "Setup", "Written", "client_folder", "load", "revoke", "rotate", "write"]

LOCAL_HOSTS: Final = ("localhost", "127.0.0.1", "::1")
_SECRET: Final = 0o600
_ROLES: Final = tuple(map(str, SINGLE_ROLES))
_FOLDERS: Final = {
    Role.MACHINE: "machines",
    Role.SUBSCRIBER: "subscribers",
    Role.POOL: "pools",
}
_PUBLIC: Final = 0o644


class Setup(Frozen):
    """What a folder was made for.

    Attributes:
        jobs: Jobs that the permissions are for.
        machines: Machines that have a key.
        subscribers: Tools that have a key, and read facts at a position of that name.
        pools: Pools whose leader has a key, each with the machines of it that have one.
        revoked: Machines whose key was taken back, and that nobody named since.
        hosts: Names and addresses that clients reach the server by.
        tls: Whether connections are encrypted.
        routes: ``host:port`` by which several servers reach each other; none for one server.
        server_folder: Where the server will see ``server/``; where it is when empty.
    """

    jobs: tuple[str, ...] = Field(min_length=1)
    machines: tuple[str, ...] = ()
    subscribers: tuple[str, ...] = ()
    pools: Mapping[str, tuple[str, ...]] = Field(default_factory=dict)
    revoked: tuple[str, ...] = ()
    hosts: tuple[str, ...] = LOCAL_HOSTS
    tls: bool = True
    routes: tuple[str, ...] = ()
    server_folder: str = ""

    @property
    def every_machine(self) -> tuple[str, ...]:
        """Machines that have a key, those of pools as well."""
        return (*self.machines, *(name for names in self.pools.values() for name in names))

    def check(self) -> Setup:
        """This setup, when every name in it can be used.

        Raises:
            InvalidIdError: One cannot be a token of a subject.
            ConfigError: A route is no address, or somebody has the name of somebody else.
        """
        for job in self.jobs:
            validate_id(job, what="job")
        for pool in self.pools:
            if validate_id(pool, what="pool") in self.jobs:
                raise ConfigError(f"a pool cannot be named {pool!r}: a job is. Rename the pool.")
        for machine, count in Counter(self.every_machine).items():
            validate_id(machine, what="machine")
            if count > 1:
                raise ConfigError(
                    f"machine {machine!r} is named twice: it is a job's own or of one pool. "
                    "Give each its name, or take its key back first (--revoke)."
                )
        for name in self.subscribers:
            validate_id(name, what="subscriber")
            if name in {*_ROLES, *self.every_machine, *self.pools}:
                raise ConfigError(
                    f"a subscriber cannot be named {name!r}: a role, a machine or a pool is. Name "
                    "the tool."
                )
        for route in self.routes:
            try:
                split_endpoint(route)
            except ValueError as error:
                raise ConfigError(f"route {route!r} is not HOST:PORT: {error}") from error
        return self


@dataclass(frozen=True, slots=True)
class Written:
    """What ``write`` did.

    Attributes:
        created: Users that got a key now.
        known: Users that had one.
        config_changed: Whether a running server has to read its configuration again.
    """

    created: tuple[User, ...]
    known: tuple[User, ...]
    config_changed: bool


def client_folder(folder: Path, user: User) -> Path:
    """Where one client's files are."""
    clients = folder / "clients"
    if user.role in _FOLDERS:
        return clients / _FOLDERS[user.role] / user.which
    return clients / str(user.role)


def load(folder: Path) -> Setup | None:
    """What ``folder`` was made for, None when it was not made yet.

    Raises:
        ConfigError: Its ``setup.json`` does not parse.
    """
    try:
        return Setup.model_validate_json((folder / "setup.json").read_bytes())
    except FileNotFoundError:
        return None
    except (OSError, ValidationError) as error:
        raise ConfigError(f"{folder / 'setup.json'} cannot be used: {error}") from error


def write(
    folder: Path, setup: Setup, *, listen: str = "0.0.0.0:4222", store: str = "/data/jetstream"
) -> Written:
    """Make what is missing; keys that exist stay.

    Args:
        folder: Where to; made when missing.
        setup: What for.
        listen: Address of the server, for a new ``nats.conf``.
        store: Its folder for streams, as it sees it, for a new ``nats.conf``.

    Raises:
        ConfigError: A file there cannot be read or written.
        InvalidIdError: A job or machine name cannot be part of a subject.
    """
    setup.check()
    try:
        return _write(folder, setup, listen=listen, store=store)
    except OSError as error:
        raise ConfigError(
            f"cannot write {error.filename or folder}: {error.strerror}. "
            "Name a folder of yours with --out."
        ) from error


def revoke(folder: Path, setup: Setup, names: Iterable[str]) -> Setup:
    """Take keys back: what is left of ``setup``, to be written next.

    A machine or a subscriber is gone until it is named again, and has a new key then; a role, or
    the leader of a pool, gets a new key at once. The server goes on to know the old keys until it
    has read its files again, and who had a machine's goes on to know the secrets of links: see
    ``rotate``.

    Args:
        folder: As for ``write``.
        setup: What the folder was made for.
        names: Machines, subscribers, pools (their leaders), or roles.

    Raises:
        ConfigError: Nobody of that name has a key, or it cannot be removed.
    """
    machines, revoked = list(setup.machines), list(setup.revoked)
    subscribers = list(setup.subscribers)
    pools = {pool: list(lent) for pool, lent in setup.pools.items()}
    for name in names:
        if name in machines:
            machines.remove(name)
            revoked.append(name)
            user = User(Role.MACHINE, name)
        elif name in subscribers:
            subscribers.remove(name)
            user = User(Role.SUBSCRIBER, name)
        elif pool := next((pool for pool, lent in pools.items() if name in lent), ""):
            pools[pool].remove(name)
            user = User(Role.MACHINE, name)
        elif name in pools:
            user = User(Role.POOL, name)
        elif name in _ROLES:
            user = User(Role(name))
        else:
            raise ConfigError(
                f"nobody named {name!r} has a key in {folder}: name a machine "
                f"({', '.join(setup.every_machine) or 'there is none'}), a subscriber "
                f"({', '.join(setup.subscribers) or 'there is none'}), a pool "
                f"({', '.join(setup.pools) or 'there is none'}) or a role "
                f"({', '.join(_ROLES)})."
            )
        try:
            for file in _secrets_of(client_folder(folder, user), setup):
                file.unlink(missing_ok=True)
        except OSError as error:
            raise ConfigError(f"cannot remove {error.filename}: {error.strerror}") from error
    left = {"machines": machines, "subscribers": subscribers, "revoked": revoked}
    lent = {"pools": {pool: tuple(names) for pool, names in pools.items()}}
    return setup.model_copy(update={key: tuple(names) for key, names in left.items()} | lent)


def _secrets_of(home: Path, setup: Setup) -> list[Path]:
    return [home / name for name in ("nkey", *(f"link-{job}" for job in setup.jobs))]


def rotate(folder: Path, setup: Setup, jobs: Iterable[str]) -> None:
    """Give jobs a new secret of their links; ``write`` hands it to the machines.

    The one before it is still taken, so that a job can go on while its machines learn of the new
    one, until the next time.

    Args:
        folder: As for ``write``.
        setup: What the folder was made for.
        jobs: Names of jobs.

    Raises:
        ConfigError: The folder is not for such a job, or cannot be written.
    """
    for job in jobs:
        if job not in setup.jobs:
            raise ConfigError(f"{folder} has no job {job!r}: it has {', '.join(setup.jobs)}.")
        file = folder / "links" / job
        try:
            before = file.read_text().split()[:1] if file.exists() else []
            _put(file, "".join(f"{each}\n" for each in (_secret(), *before)), mode=_SECRET)
        except OSError as error:
            raise ConfigError(f"cannot write {error.filename}: {error.strerror}") from error


def _write(folder: Path, setup: Setup, *, listen: str, store: str) -> Written:
    before = _read(folder / "server" / "server.pem")
    certificate = _authority(folder, setup) if setup.tls else None
    keys: dict[User, str] = {}
    created = []
    for user in users(setup.machines, subscribers=setup.subscribers, pools=setup.pools):
        home = client_folder(folder, user)
        seed = home / "nkey"
        if not seed.exists():
            _put(seed, make_seed() + "\n", mode=_SECRET)
            created.append(user)
        keys[user] = public_key(seed.read_text().strip(), where=seed)
        if certificate is None:
            (home / "ca.pem").unlink(missing_ok=True)
        else:
            _put(home / "ca.pem", certificate.decode(), mode=_PUBLIC)
    _link_secrets(folder, setup)
    server = folder / "server"
    seen_as = Path(setup.server_folder or server.absolute())
    text = auth_config(keys, jobs=setup.jobs, tls_folder=seen_as if setup.tls else None)
    changed = _put(server / "auth.conf", text, mode=_SECRET)
    changed |= setup.tls and before != _read(server / "server.pem")
    if not (server / "nats.conf").exists():
        _put(server / "nats.conf", server_config(listen=listen, store=store), mode=_PUBLIC)
        changed = True
    if setup.routes:
        changed |= _put(server / "cluster.conf", _cluster(folder, setup), mode=_SECRET)
    _put(folder / "setup.json", setup.model_dump_json(indent=2) + "\n", mode=_PUBLIC)
    known = tuple(user for user in keys if user not in created)
    return Written(created=tuple(created), known=known, config_changed=changed)


def _cluster(folder: Path, setup: Setup) -> str:
    password = folder / "route"
    if not password.exists():
        _put(password, f"{_secret()}\n", mode=_SECRET)
    return cluster_config(routes=setup.routes, password=password.read_text().strip())


def _link_secrets(folder: Path, setup: Setup) -> None:
    """The secret of each job, or two while it changes, and a copy for each machine."""
    for job in setup.jobs:
        secret = folder / "links" / job
        if not secret.exists():
            _put(secret, f"{_secret()}\n", mode=_SECRET)
        for machine in setup.every_machine:
            home = client_folder(folder, User(Role.MACHINE, machine))
            _put(home / f"link-{job}", secret.read_text(), mode=_SECRET)


def _secret() -> str:
    return secrets.token_hex(LEAST_BYTES)


def _authority(folder: Path, setup: Setup) -> bytes:
    """Make the authority and the server's certificate where needed; the authority's certificate."""
    public, private = folder / "ca" / "ca.pem", folder / "ca" / "ca.key"
    if not public.exists():
        made = make_authority()
        _put(private, made.key.decode(), mode=_SECRET)
        _put(public, made.certificate.decode(), mode=_PUBLIC)
    certificate = public.read_bytes()
    server = folder / "server" / "server.pem"
    if not server.exists() or not covers(server.read_bytes(), setup.hosts):
        if not private.exists():
            raise ConfigError(
                f"{server} is missing, outdated or lacks a host, and {private} that could sign "
                "another one is not there: put a certificate of your own authority in its place."
            )
        made = make_server(Issued(certificate, private.read_bytes()), setup.hosts)
        _put(server.with_suffix(".key"), made.key.decode(), mode=_SECRET)
        _put(server, made.certificate.decode(), mode=_PUBLIC)
    return certificate


def _read(path: Path) -> bytes:
    return path.read_bytes() if path.exists() else b""


def _put(path: Path, text: str, *, mode: int) -> bool:
    """Write a file as a whole or not at all; tells whether anything changed."""
    path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    if path.exists() and path.read_text() == text:
        return False
    draft = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    descriptor = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, mode)
    with os.fdopen(descriptor, "w") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
    draft.replace(path)
    return True
