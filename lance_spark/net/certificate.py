"""Certificates: what a peer has proved, and what a file holds."""

from __future__ import annotations

import hashlib
import re
import ssl
from dataclasses import dataclass
from pathlib import Path
from typing import cast

from lance_spark.errors import OptionError

# A file of certificates is a few KiB; the system's whole collection is 300 KiB.
PEM_BYTES_MAX = 16 * 1024 * 1024
_CERTIFICATE = re.compile(
    "-----BEGIN CERTIFICATE-----.*?-----END CERTIFICATE-----", re.DOTALL
)


@dataclass(frozen=True, slots=True)
class PeerCertificate:
    """The certificate of a peer, verified.

    Args:
        common_name: of its subject; None if it has none, or more than one.
        chain: SHA-256 of the DER of every certificate of the verified chain, from
            the peer's own to the root.
    """

    common_name: str | None
    chain: frozenset[bytes]


def fingerprints(path: str) -> frozenset[bytes]:
    """Give the SHA-256 of the DER of each certificate of a PEM file.

    Raises:
        OptionError: the file can't be read or holds no certificate.
    """
    return frozenset(_digest(der) for der in read_certificates(path))


def read_certificates(path: str) -> list[bytes]:
    """Give the DER of each certificate of a PEM file.

    Raises:
        OptionError: the file can't be read or holds no certificate.
    """
    found = find_certificates(read_pem(path, "certificate file"))
    if not found:
        raise OptionError(
            f"certificate file {path}: there is no certificate in it; give a PEM file, "
            "with lines -----BEGIN CERTIFICATE-----"
        )
    try:
        return [ssl.PEM_cert_to_DER_cert(text) for text in found]
    except ValueError as error:
        raise OptionError(
            f"certificate file {path}: a certificate in it is damaged: {error}"
        ) from None


def find_certificates(text: str) -> list[str]:
    """Give the certificates of a PEM text, each as PEM."""
    return _CERTIFICATE.findall(text)


def read_pem(path: str, what: str, shown: str | None = None) -> str:
    """Read a PEM file.

    Args:
        path: the file.
        what: what it is, for the error's text.
        shown: what stands for the path there.

    Raises:
        OptionError: it can't be read.
    """
    try:
        with Path(path).open("rb") as file:
            data = file.read(PEM_BYTES_MAX)
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        raise OptionError(f"{what} {shown or path} can't be read: {reason}") from None
    # Only the ASCII armour matters; whatever surrounds it may be in any encoding.
    return data.decode("latin-1")


def read_peer(connection: ssl.SSLObject) -> PeerCertificate | None:
    """Give the peer's certificate of a finished handshake, None if there is none."""
    leaf = connection.getpeercert(binary_form=True)
    # The fields are empty for a certificate that nobody has verified.
    fields = connection.getpeercert()
    if not leaf or not fields:
        return None
    subject = cast(tuple[tuple[tuple[str, str], ...], ...], fields.get("subject", ()))
    names = [text for part in subject for key, text in part if key == "commonName"]
    chain = frozenset(_digest(der) for der in (leaf, *_verified_chain(connection)))
    return PeerCertificate(names[0] if len(names) == 1 else None, chain)


def _verified_chain(connection: ssl.SSLObject) -> list[bytes]:
    if hasattr(connection, "get_verified_chain"):  # Python 3.13 and later.
        return list(connection.get_verified_chain())
    # The same call, before it was made public. A resumed session has no chain.
    chain = connection._sslobj.get_verified_chain()  # type: ignore[attr-defined]
    return [ssl.PEM_cert_to_DER_cert(each.public_bytes()) for each in chain or ()]


def _digest(der: bytes) -> bytes:
    return hashlib.sha256(der).digest()
