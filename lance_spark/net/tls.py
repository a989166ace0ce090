"""TLS: settings, contexts made from them, handshakes, and files of certificates.

TLS 1.2 at least; there is no way to go on in plain text. Keys are read once and never
appear in a text.
"""

from __future__ import annotations

import os
import re
import ssl
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from lance_spark.errors import OptionError
from lance_spark.net.deadline import Deadline
from lance_spark.net.stream import Stream
from lance_spark.net.tls_stream import TlsStream, describe, digest

# A file of certificates is a few KiB; the system's whole collection is 300 KiB.
PEM_BYTES_MAX = 16 * 1024 * 1024
_CERTIFICATE = re.compile(
    "-----BEGIN CERTIFICATE-----.*?-----END CERTIFICATE-----", re.DOTALL
)
_PEM_MARK = "-----BEGIN"
_KEY_MARK = "PRIVATE KEY-----"
# The shortest of keys has more characters.
_PATH_SHOWN_MAX = 60


@dataclass(frozen=True, repr=False)
class ClientTls:
    """What a client trusts and who it is. Each is a path or the PEM text itself.

    Args:
        ca: certificates of the authorities to trust; None for those of the system.
        cert: the client's own certificate, with the chain to its authority.
        key: the private key of it; None if it is in `cert` too.
    """

    ca: str | None = None
    cert: str | None = None
    key: str | None = None

    def __repr__(self) -> str:
        ca, cert = (_shown(value) for value in (self.ca, self.cert))
        key = None if self.key is None else "(not shown)"
        return f"ClientTls(ca={ca!r}, cert={cert!r}, key={key!r})"


@dataclass(frozen=True)
class ServerTls:
    """What a server is and which clients it trusts.

    Args:
        cert_path: its certificate, with the chain to its authority.
        key_path: the private key of it.
        client_ca_paths: authorities whose clients' certificates are accepted.
        require_client_cert: refuse clients that present none.
    """

    cert_path: str
    key_path: str
    client_ca_paths: tuple[str, ...] = ()
    require_client_cert: bool = False


# Settings that have been read and checked; for any number of connections.
TlsContext = ssl.SSLContext


def make_client_context(settings: ClientTls) -> TlsContext:
    """Read what a client needs.

    Raises:
        OptionError: a file is missing, is not PEM, or does not go with another.
    """
    context = _make_context(ssl.PROTOCOL_TLS_CLIENT)
    if settings.ca is None:
        context.load_default_certs()
    else:
        _load_authorities(context, settings.ca)
    if settings.cert is not None:
        _load_identity(context, settings.cert, settings.key or settings.cert)
    elif settings.key is not None:
        raise OptionError("a TLS key without its certificate: give the certificate too")
    return context


def make_server_context(settings: ServerTls) -> TlsContext:
    """Read what a server needs.

    Raises:
        OptionError: a file is missing, is not PEM, or does not go with another.
    """
    context = _make_context(ssl.PROTOCOL_TLS_SERVER)
    # A session that is taken up again has no chain to see who the client is. That of
    # TLS 1.2 can't be turned off wholly: then only the client's own is known.
    context.options |= ssl.OP_NO_TICKET
    context.num_tickets = 0
    _load_identity(context, settings.cert_path, settings.key_path)
    for path in settings.client_ca_paths:
        _load_authorities(context, path)
    if settings.client_ca_paths:
        context.verify_mode = ssl.CERT_OPTIONAL
    if settings.require_client_cert:
        if not settings.client_ca_paths:
            raise OptionError(
                "client certificates are required, but no authority to check them "
                "with is given: give the file of the clients' CA"
            )
        context.verify_mode = ssl.CERT_REQUIRED
    return context


def handshake(
    stream: Stream,
    context: TlsContext,
    deadline: Deadline,
    *,
    server_name: str | None = None,
) -> TlsStream:
    """Make one end of a connection secure; the stream is closed on failure.

    Args:
        stream: a connection that nothing was sent on.
        context: made by `make_client_context` or `make_server_context`.
        deadline: for the whole handshake.
        server_name: what the server's certificate has to be for; None on a server.

    Raises:
        ConnectionLost: one side does not trust the other, or the peer went away.
        Timeout: the peer did not answer.
        OptionError: the name can't be one of a server.
    """
    try:
        secure = TlsStream(stream, context, server_name)
    except (TypeError, ValueError) as error:
        stream.close()
        raise OptionError(f"TLS server name {server_name!r}: {error}") from None
    try:
        secure.handshake(deadline)
    except BaseException:
        secure.close()
        raise
    return secure


def _make_context(protocol: int) -> ssl.SSLContext:
    context = ssl.SSLContext(protocol)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.options |= ssl.OP_NO_RENEGOTIATION
    return context


def _load_authorities(context: ssl.SSLContext, source: str) -> None:
    """Trust the authorities in a file or text."""
    found = find_certificates(_read(source, "TLS CA file"))
    shown = _shown(source)
    if not found:
        raise OptionError(f"TLS CA file {shown}: there is no PEM certificate in it")
    try:
        # What is around them may be in any encoding, and would be refused.
        context.load_verify_locations(cadata="\n".join(found))
    except ssl.SSLError as error:
        raise OptionError(
            f"TLS CA file {shown} can't be used: {describe(error)}"
        ) from None


def _load_identity(context: ssl.SSLContext, cert: str, key: str) -> None:
    """Present a certificate to peers. The key is in no text of any error."""
    shown = f"TLS certificate {_shown(cert)}"
    if not find_certificates(_read(cert, "TLS certificate file")):
        raise OptionError(f"{shown}: there is no PEM certificate in it")
    if _KEY_MARK not in _read(key, "TLS key file"):
        raise OptionError(f"{shown}: there is no PEM private key in the file for it")
    try:
        with _as_file(cert) as cert_path, _as_file(key) as key_path:
            context.load_cert_chain(cert_path, key_path, password=_refuse_password)
    except OSError as error:
        reason = describe(error) if isinstance(error, ssl.SSLError) else error.strerror
        raise OptionError(f"{shown} and its key can't be used: {reason}") from None


def _refuse_password() -> str:
    # Without this OpenSSL would ask for it on the terminal, and wait.
    raise OptionError("the TLS key has a passphrase: give it without one")


@contextmanager
def _as_file(source: str) -> Iterator[str]:
    """Give the path of a file with the content; text goes through a private one."""
    if not _is_pem(source):
        yield source
        return
    # Readable by its owner only, from the start. OpenSSL reads keys from files alone.
    descriptor, path = tempfile.mkstemp(prefix="lance-tls-")
    try:
        with os.fdopen(descriptor, "w", encoding="utf-8") as file:
            file.write(source)
        yield path
    finally:
        Path(path).unlink()


def _read(source: str, what: str) -> str:
    """Give the text of a setting, from its file if it is a path."""
    return source if _is_pem(source) else read_pem(source, what, _shown(source))


def _is_pem(source: str) -> bool:
    return _PEM_MARK in source


def _shown(source: str | None) -> str | None:
    """Give a setting as it may be shown: a path, but never a text."""
    if source is None:
        return None
    if _is_pem(source):
        return "(PEM text)"
    # A key without its PEM lines would be taken for a path. Base64 has no dots.
    is_doubtful = len(source) > _PATH_SHOWN_MAX and "." not in source
    return "(not shown)" if is_doubtful or "\n" in source else source


def fingerprints(path: str) -> frozenset[bytes]:
    """Give the SHA-256 of the DER of each certificate of a PEM file.

    Raises:
        OptionError: the file can't be read or holds no certificate.
    """
    return frozenset(digest(der) for der in read_certificates(path))


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
