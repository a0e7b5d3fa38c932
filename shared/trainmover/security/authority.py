"""Keys and certificates: bus users' seeds, and a small certificate authority for development.

A real deployment may replace the authority's files by those of its own authority.
"""

from __future__ import annotations

import ipaddress
import os
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Final

import nkeys  # type: ignore[import-untyped]  # ships no annotations
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from trainmover.errors import ConfigError

__all__ = ["Issued", "covers", "make_authority", "make_seed", "make_server"]

_CA_DAYS: Final = 3650
_SERVER_DAYS: Final = 825
_RENEW_BEFORE: Final = timedelta(days=30)
_SKEW: Final = timedelta(minutes=10)


@dataclass(frozen=True, slots=True)
class Issued:
    """A certificate and its private key, both PEM."""

    certificate: bytes
    key: bytes


def make_seed() -> str:
    """The seed of a new bus user."""
    return bytes(nkeys.encode_seed(os.urandom(32), nkeys.PREFIX_BYTE_USER)).decode()


def make_authority() -> Issued:
    """A new certificate authority that signs servers' certificates, valid for ten years."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = _name("TrainMover development CA")
    certificate = (
        _builder(subject=name, issuer=name, public=key.public_key(), days=_CA_DAYS)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(_usage(signs_certificates=True), critical=True)
        .sign(key, hashes.SHA256())
    )
    return _issued(certificate, key)


def make_server(authority: Issued, hosts: Iterable[str]) -> Issued:
    """A server's certificate.

    Args:
        authority: Who signs.
        hosts: Names and addresses that clients reach the server by.

    Raises:
        ConfigError: The authority's files cannot be read, or a name cannot be certified.
    """
    try:
        issuer = x509.load_pem_x509_certificate(authority.certificate)
        signer = serialization.load_pem_private_key(authority.key, password=None)
    except ValueError as error:
        raise ConfigError(f"the certificate authority's files are not PEM: {error}") from error
    if not isinstance(signer, ec.EllipticCurvePrivateKey):
        raise ConfigError("the certificate authority's key is not an elliptic-curve key")
    names = [_alternative(host) for host in dict.fromkeys(hosts)]
    key = ec.generate_private_key(ec.SECP256R1())
    certificate = (
        _builder(
            subject=_name("TrainMover bus"),
            issuer=issuer.subject,
            public=key.public_key(),
            days=_SERVER_DAYS,
        )
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(_usage(signs_certificates=False), critical=True)
        .add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), critical=False)
        .add_extension(x509.SubjectAlternativeName(names), critical=False)
        .add_extension(
            x509.AuthorityKeyIdentifier.from_issuer_public_key(signer.public_key()),
            critical=False,
        )
        .sign(signer, hashes.SHA256())
    )
    return _issued(certificate, key)


def covers(certificate: bytes, hosts: Iterable[str], *, now: datetime | None = None) -> bool:
    """Whether a server's certificate names every host and is valid for a month to come."""
    try:
        found = x509.load_pem_x509_certificate(certificate)
        names = found.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    except (ValueError, x509.ExtensionNotFound):
        return False
    if found.not_valid_after_utc - (now or datetime.now(UTC)) < _RENEW_BEFORE:
        return False
    return set(names) >= {_alternative(host) for host in hosts}


def _builder(
    *, subject: x509.Name, issuer: x509.Name, public: ec.EllipticCurvePublicKey, days: int
) -> x509.CertificateBuilder:
    now = datetime.now(UTC)
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(public)
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - _SKEW)  # clocks of machines differ
        .not_valid_after(now + timedelta(days=days))
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(public), critical=False)
    )


def _usage(*, signs_certificates: bool) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=not signs_certificates,
        key_cert_sign=signs_certificates,
        crl_sign=signs_certificates,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        encipher_only=False,
        decipher_only=False,
    )


def _name(common: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, common)])


def _alternative(host: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(host))
    except ValueError:
        pass
    try:
        return x509.DNSName(host)
    except ValueError as error:
        raise ConfigError(f"host {host!r} cannot stand in a certificate: {error}") from error


def _issued(certificate: x509.Certificate, key: ec.EllipticCurvePrivateKey) -> Issued:
    return Issued(
        certificate=certificate.public_bytes(serialization.Encoding.PEM),
        key=key.private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.PKCS8,
            serialization.NoEncryption(),
        ),
    )
