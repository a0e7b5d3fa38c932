"""Where a bus is, how a client proves who it is to it, and how it knows the bus."""

from __future__ import annotations

import os
import ssl
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, Self
from urllib.parse import SplitResult, unquote, urlsplit

import nkeys  # type: ignore[import-untyped]  # ships no annotations

from trainmover.errors import ConfigError

__all__ = ["CA", "CERT", "CREDS", "NKEY", "BusAddress", "Credentials", "inbox_prefix", "public_key"]

NKEY: Final = "TRAINMOVER_NATS_NKEY"
CREDS: Final = "TRAINMOVER_NATS_CREDS"
CA: Final = "TRAINMOVER_NATS_CA"
CERT: Final = "TRAINMOVER_NATS_CERT"

_PORT: Final = 4222
_SCHEME: Final = "nats"


@dataclass(frozen=True, slots=True, kw_only=True)
class BusAddress:
    """One or several servers of one bus, apart from what must not be printed.

    Attributes:
        servers: A URL each, without user and password.
        identity: Options of nats-py: ``user`` and ``password``, or ``token``; none where the URL
            has neither. nats-py itself takes them from a URL as they are written there, and comes
            to servers that it hears of later without them.
    """

    servers: tuple[str, ...]
    identity: Mapping[str, str] = field(default_factory=dict, repr=False)

    @classmethod
    def parse(cls, url: str) -> Self:
        """Of ``nats://user:password@host:port``, or several separated by commas.

        The first that names a user counts for all. Characters that have a meaning in a URL are
        written with a percent sign there (RFC 3986, section 2.1).

        Raises:
            ConfigError: It is no URL.
        """
        try:
            parts = [_split(each.strip()) for each in url.split(",") if each.strip()]
        except ValueError as error:
            raise ConfigError(f"the address of the bus is no URL: {error}") from error
        identities = (_identity(each) for each in parts if each.username)
        servers = tuple(
            each._replace(netloc=each.netloc.rpartition("@")[2]).geturl() for each in parts
        )
        return cls(servers=servers, identity=next(identities, {}))

    @property
    def host_and_port(self) -> tuple[str, int]:
        """Of the first server.

        Raises:
            ValueError: It names no host, or a port that is none.
        """
        first = urlsplit(self.servers[0]) if self.servers else None
        if first is None or not first.hostname:
            raise ValueError("it names no host")
        return first.hostname, first.port or _PORT

    def __str__(self) -> str:
        """For people: no password and no token."""
        return ",".join(self.servers)


@dataclass(frozen=True, slots=True, kw_only=True)
class Credentials:
    """Files that a client connects with.

    Attributes:
        nkey: File with the seed of a user's key, as ``trainmover bus setup`` makes it.
        creds: File with a user's JWT and seed, for servers that are run by operators and JWTs.
        ca: Certificate of the authority that signed the server's; TLS is required when given.
        cert: The client's own certificate and its key in one PEM file, for servers that ask for
            one; TLS is required when given.
    """

    nkey: Path | None = None
    creds: Path | None = None
    ca: Path | None = None
    cert: Path | None = None

    @property
    def given(self) -> bool:
        """Whether there is a key at all: the bus asks for one."""
        return self.nkey is not None or self.creds is not None

    @classmethod
    def from_environment(cls, environment: Mapping[str, str] = os.environ) -> Self:
        """``TRAINMOVER_NATS_NKEY``, ``_CREDS``, ``_CA`` and ``_CERT``."""
        given = (environment.get(name) for name in (NKEY, CREDS, CA, CERT))
        nkey, creds, ca, cert = (Path(path) if path else None for path in given)
        return cls(nkey=nkey, creds=creds, ca=ca, cert=cert)

    @classmethod
    def of_folder(cls, folder: Path) -> Self:
        """What ``trainmover bus setup`` put into one client's folder."""
        ca = folder / "ca.pem"
        return cls(nkey=folder / "nkey", ca=ca if ca.exists() else None)

    def environment(self) -> dict[str, str]:
        """The variables that hand these credentials to a child process."""
        paths = {NKEY: self.nkey, CREDS: self.creds, CA: self.ca, CERT: self.cert}
        return {name: str(path) for name, path in paths.items() if path is not None}

    def __str__(self) -> str:
        """For error messages: which files were tried."""
        return " and ".join(str(path) for path in (self.nkey, self.creds) if path) or "no key"

    def options(self) -> dict[str, Any]:
        """Keyword arguments for nats-py.

        Raises:
            ConfigError: A file is missing or is not what it should be, or both kinds are given.
        """
        found: dict[str, Any] = {}
        if self.nkey and self.creds:
            raise ConfigError(f"{NKEY} and {CREDS} are both set: a client is one user, unset one.")
        if self.nkey:
            seed = _read(self.nkey, NKEY).strip()
            found["nkeys_seed_str"] = seed
            found["inbox_prefix"] = inbox_prefix(public_key(seed, where=self.nkey))
        elif self.creds:
            _read(self.creds, CREDS)
            found["user_credentials"] = str(self.creds)
        if self.ca or self.cert:
            found["tls"] = self._tls()
        return found

    def _tls(self) -> ssl.SSLContext:
        trusted = None if self.ca is None else _read(self.ca, CA)
        try:
            context = ssl.create_default_context(cadata=trusted)
        except ssl.SSLError as error:
            raise ConfigError(f"{self.ca} ({CA}) holds no PEM certificate: {error}") from error
        if self.cert is not None:
            _read(self.cert, CERT)
            try:
                context.load_cert_chain(self.cert)
            except ssl.SSLError as error:
                raise ConfigError(
                    f"{self.cert} ({CERT}) has to hold a certificate and its key, both PEM: {error}"
                ) from error
        return context


def public_key(seed: str, *, where: object = "the seed") -> str:
    """The public half of a user's key.

    Raises:
        ConfigError: ``seed`` is not one.
    """
    try:
        return str(nkeys.from_seed(bytearray(seed.encode())).public_key, "ascii")
    except (nkeys.NkeysError, ValueError) as error:
        raise ConfigError(
            f"{where} does not hold the seed of a bus user, which begins with SU: "
            "make one with 'trainmover bus setup'."
        ) from error


def inbox_prefix(public: str) -> str:
    """Where a user's replies come: nobody else may listen there."""
    return f"_INBOX.{public}"


def _split(url: str) -> SplitResult:
    return urlsplit(url if "://" in url else f"{_SCHEME}://{url}")


def _identity(parts: SplitResult) -> dict[str, str]:
    user = unquote(parts.username or "")
    if parts.password is None:
        return {"token": user}
    return {"user": user, "password": unquote(parts.password)}


def _read(path: Path, variable: str) -> str:
    try:
        return path.read_text()
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(
            f"cannot read {path} ({variable}): {getattr(error, 'strerror', None) or error}. "
            "'trainmover bus setup' makes one folder for each client."
        ) from error
