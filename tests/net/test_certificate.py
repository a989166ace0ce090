from __future__ import annotations

import hashlib
import os
import ssl
from pathlib import Path

import pytest

from lance_spark.errors import OptionError
from lance_spark.net.certificate import (
    PeerCertificate,
    find_certificates,
    fingerprints,
    read_certificates,
    read_peer,
    read_pem,
)
from tests.net.conftest import Certificates


def digest_of(path: str) -> bytes:
    der = ssl.PEM_cert_to_DER_cert(Path(path).read_text())
    return hashlib.sha256(der).digest()


def test_fingerprints_of_one(certs: Certificates) -> None:
    assert fingerprints(certs.ca) == {digest_of(certs.ca)}


def test_fingerprints_of_several(certs: Certificates, tmp_path: Path) -> None:
    # With words in between in an encoding of their own, as bundles have them.
    bundle = tmp_path / "bundle.pem"
    parts = [Path(path).read_bytes() for path in (certs.ca, certs.foreign_ca)]
    bundle.write_bytes("Zürich\n".encode("latin-1").join(parts) + b"\xff end")
    expected = {digest_of(certs.ca), digest_of(certs.foreign_ca)}
    assert fingerprints(str(bundle)) == expected
    assert len(read_certificates(str(bundle))) == 2


def test_a_key_is_no_certificate(certs: Certificates) -> None:
    with pytest.raises(OptionError, match="there is no certificate in it") as caught:
        fingerprints(certs.server.key)
    assert certs.server.key in str(caught.value)
    assert fingerprints(certs.server.both) == fingerprints(certs.server.cert)


def test_damaged_certificate(tmp_path: Path) -> None:
    path = tmp_path / "bad.pem"
    path.write_text("-----BEGIN CERTIFICATE-----\nA\n-----END CERTIFICATE-----\n")
    with pytest.raises(OptionError, match=r"bad\.pem: a certificate in it is damaged"):
        fingerprints(str(path))


def test_cut_certificate(certs: Certificates, tmp_path: Path) -> None:
    path = tmp_path / "cut.pem"
    path.write_text(Path(certs.ca).read_text()[:-30])
    with pytest.raises(OptionError, match="there is no certificate"):
        fingerprints(str(path))


@pytest.mark.parametrize(
    ("name", "reason"),
    [("missing.pem", "No such file"), ("", "Is a directory"), ("a\0b", "null")],
)
def test_file_that_can_not_be_read(tmp_path: Path, name: str, reason: str) -> None:
    with pytest.raises(OptionError, match=f"CA file .* can't be read: .*{reason}"):
        read_pem(f"{tmp_path}{os.sep}{name}", "CA file")


def test_find_certificates(certs: Certificates) -> None:
    text = Path(certs.ca).read_text()
    assert find_certificates("") == []
    assert find_certificates(f"a{text}b{text}c") == [text.strip()] * 2


class Handshaken:
    """Says what an `ssl.SSLObject` would; the real one is in test_tls.py."""

    def __init__(self, leaf: bytes | None, fields: dict[str, object] | None) -> None:
        self.leaf, self.fields = leaf, fields

    def getpeercert(self, binary_form: bool = False) -> object:
        return self.leaf if binary_form else self.fields

    def get_verified_chain(self) -> list[bytes]:
        return [b"leaf", b"root"]


def name(text: str) -> tuple[tuple[str, str], ...]:
    return (("commonName", text),)


@pytest.mark.parametrize(
    ("subject", "expected"),
    [
        ([], None),
        ([(("organizationName", "x"),)], None),
        ([(("organizationName", "x"),), name("alice")], "alice"),
        ([(("organizationName", "x"), ("commonName", "alice"))], "alice"),
        # Nobody can say which of two would be meant.
        ([name("alice"), name("bob")], None),
        ([name("alice"), name("alice")], None),
    ],
)
def test_common_name(subject: list[object], expected: str | None) -> None:
    peer = read_peer(Handshaken(b"leaf", {"subject": subject, "version": 3}))
    chain = {hashlib.sha256(der).digest() for der in (b"leaf", b"root")}
    assert peer == PeerCertificate(expected, frozenset(chain))


@pytest.mark.parametrize(("leaf", "fields"), [(None, None), (b"leaf", {})])
def test_nothing_was_verified(leaf: bytes | None, fields: dict[str, object]) -> None:
    assert read_peer(Handshaken(leaf, fields)) is None
