"""The nats-py client, where it would leave people to guess: what is forbidden, and to whom."""

from __future__ import annotations

import asyncio
import re
from typing import Any, Final

import nats.errors
import nats.protocol.parser
from nats.aio.client import Client
from nats.aio.msg import Msg

from trainmover.bus.credentials import BusAddress, Credentials
from trainmover.errors import BusError, PermissionDeniedError

__all__ = ["PermissionAwareClient", "forbidden", "refusal_of"]

# The server splits its lines at blanks and tabs and lets other white space into subjects, at which
# nats-py takes the line for no protocol at all and hangs up.
_MESSAGE: Final = rb"\A%s[ \t]+([^ \t\r\n]+)[ \t]+([0-9]+)[ \t]+(([^ \t\r\n]+)[ \t]+)?%s\r\n"
nats.protocol.parser.MSG_RE = re.compile(_MESSAGE % (b"MSG", b"([0-9]+)"))
nats.protocol.parser.HMSG_RE = re.compile(_MESSAGE % (b"HMSG", rb"([0-9]+)[ \t]+([0-9]+)"))


class PermissionAwareClient(Client):
    """A client whose requests end at once when they are forbidden, and that hears anything.

    nats-py stops reading, without a word and until its pings go unanswered, when a header, a
    subject or a reply subject is no UTF-8, which the server forwards all the same; and when a ping
    is answered that nobody waits for any more, as by a server that was busy for too long.

    Args:
        demands_tls: Whether to refuse a server that offers no encryption.
    """

    def __init__(self, *, demands_tls: bool = False) -> None:
        super().__init__()
        self._demands_tls = demands_tls
        self._open: dict[asyncio.Timeout, str] = {}
        self._refused: dict[asyncio.Timeout, str] = {}

    async def request(
        self,
        subject: str,
        payload: bytes = b"",
        timeout: float = 0.5,  # noqa: ASYNC109 - the signature is nats-py's
        old_style: bool = False,
        headers: dict[str, Any] | None = None,
    ) -> Msg:
        """Like the original; raises ``PermissionDeniedError`` when the subject is forbidden."""
        try:
            async with asyncio.timeout(None) as scope:
                self._open[scope] = subject
                return await super().request(subject, payload, timeout, old_style, headers)
        except TimeoutError:
            if scope in self._refused:
                raise forbidden("publish", subject) from None
            raise
        finally:
            self._open.pop(scope, None)
            self._refused.pop(scope, None)

    async def _process_info(self, info: dict[str, Any], initial_connection: bool = False) -> None:
        # nats-py encrypts where the server asks for it: whoever sits in between could ask for
        # nothing, be told our name, and pass our signature on.
        if initial_connection and self._demands_tls and not info.get("tls_required"):
            raise nats.errors.Error("the server offers no TLS")
        await super()._process_info(info, initial_connection)

    async def _process_headers(self, headers: bytes) -> dict[str, str] | None:
        try:
            found: dict[str, str] | None = await super()._process_headers(headers)
        except (ValueError, LookupError):
            return {}
        return found

    async def _process_pong(self) -> None:
        if self._pongs and self._pongs[0].done():
            self._pongs[0] = asyncio.get_running_loop().create_future()
        await super()._process_pong()

    async def _process_msg(
        self, sid: int, subject: bytes, reply: bytes, data: bytes, headers: bytes
    ) -> None:
        await super()._process_msg(sid, _text(subject), _text(reply), data, headers)

    def refuse(self, subject: str) -> bool:
        """End the requests that wait for an answer from ``subject``; tells whether any did."""
        hit = [scope for scope, waiting in self._open.items() if waiting.lower() == subject]
        for scope in hit:
            del self._open[scope]
            self._refused[scope] = subject
            scope.reschedule(asyncio.get_running_loop().time())
        return bool(hit)


def _text(subject: bytes) -> bytes:
    return bytes(subject).decode(errors="replace").encode()


def refusal_of(text: str, bus: BusAddress, credentials: Credentials) -> BusError | None:
    """The true cause of a failed connection, where it is one of identity."""
    if not text:
        return None
    if "authorization" not in text.lower():
        if "offers no TLS" in text:
            known = credentials.ca or credentials.cert
            return PermissionDeniedError(
                f"the bus at {bus} does not encrypt, and {known} says that ours does: is the "
                "address right? Unset TRAINMOVER_NATS_CA and TRAINMOVER_NATS_CERT for a bus "
                "without TLS."
            )
        if "alert" in text.lower():  # from the server's side, about ours
            shown = f"does not take {credentials.cert}" if credentials.cert else "asks for one"
            return PermissionDeniedError(
                f"no connection to the bus at {bus} without a certificate of the client's, and it "
                f"{shown} ({text}). Set TRAINMOVER_NATS_CERT to a file with ours and its key."
            )
        given = (
            f"{credentials.ca} does not vouch for it" if credentials.ca else "none is known here"
        )
        return PermissionDeniedError(
            f"no trusted connection to the bus at {bus}: its certificate needs an authority, and "
            f"{given} ({text}). Set TRAINMOVER_NATS_CA to the authority's certificate."
        )
    if bus.identity and not credentials.given:
        tried = f"user {bus.identity['user']!r}" if "user" in bus.identity else "a token"
        return PermissionDeniedError(
            f"the bus at {bus} does not know this user (tried {tried} of its URL). Mend the URL; "
            "characters like : / @ and % are written %3A, %2F, %40 and %25 there."
        )
    return PermissionDeniedError(
        f"the bus at {bus} does not know this user (tried {credentials}). Set "
        "TRAINMOVER_NATS_NKEY to the nkey file that 'trainmover bus setup' made for it, or write "
        "user and password into the URL, nats://USER:PASSWORD@HOST:4222."
    )


def forbidden(verb: str, subject: str) -> PermissionDeniedError:
    """The error of a subject that this user may not use."""
    return PermissionDeniedError(
        f"this bus user may not {verb} {subject!r}: use the credentials of a role that may "
        "(TRAINMOVER_NATS_NKEY)."
    )
