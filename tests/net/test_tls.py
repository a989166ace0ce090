"""TLS: settings, handshakes, and files of certificates."""

from __future__ import annotations

import hashlib
import os
import re
import ssl
import stat
import tempfile
import warnings
from collections.abc import Iterator
from concurrent import futures
from pathlib import Path
from typing import Any

import pytest
from cryptography.hazmat.primitives.serialization import (
    BestAvailableEncryption,
    Encoding,
    PrivateFormat,
    load_pem_private_key,
)

from lance_spark.errors import ConnectionLost, OptionError, Timeout, TlsRefused
from lance_spark.net import tls_stream
from lance_spark.net.deadline import Deadline
from lance_spark.net.stream import Stream
from lance_spark.net.tls import (
    ClientTls,
    ServerTls,
    TlsContext,
    find_certificates,
    fingerprints,
    handshake,
    make_client_context,
    make_server_context,
    read_certificates,
    read_pem,
)
from lance_spark.net.tls_stream import PeerCertificate, read_peer
from tests.net.conftest import LONG_S, Certificates, Spawn, secure, soon
from tests.streams import make_pair

Pair = tuple[Stream, Stream]


@pytest.fixture
def ends(tcp_pair: Pair) -> Pair:
    return tcp_pair


@pytest.fixture
def opened() -> Iterator[list[Stream]]:
    """Close what a test adds to the list."""
    streams: list[Stream] = []
    yield streams
    for stream in streams:
        stream.close()


def read_one(stream: Stream) -> bytes:
    buffer = memoryview(bytearray(1))
    return bytes(buffer[: stream.recv_into(buffer, soon())])


def meet(
    ends: Pair, client: TlsContext, server: TlsContext, spawn: Spawn, name: str
) -> tuple[str, str]:
    """Let a client and a server fail for good; give what each of them says.

    With TLS 1.3 a client only learns that it is refused when it reads.
    """

    def be_client() -> None:
        stream = handshake(ends[0], client, soon(), server_name=name)
        try:
            stream.send([b"question"], soon())
            read_one(stream)
        finally:
            stream.close()

    def be_server() -> None:
        handshake(ends[1], server, soon()).close()

    work = [spawn(be_client), spawn(be_server)]
    texts = []
    for each in work:
        with pytest.raises(TlsRefused) as caught:
            each.result(LONG_S)
        assert not caught.value.retriable
        texts.append(str(caught.value))
    return texts[0], texts[1]


class TestAgreement:
    def test_server_proves_itself(
        self, ends: Pair, certs: Certificates, spawn: Spawn, opened: list[Stream]
    ) -> None:
        contexts = certs.client_context(), certs.server_context(ask=False)
        client, server = secure(ends, contexts, spawn)
        opened += [client, server]
        chain = fingerprints(certs.server.cert) | fingerprints(certs.ca)
        assert client.certificate == PeerCertificate("localhost", chain)
        assert server.certificate is None

    @pytest.mark.parametrize("require", [True, False])
    @pytest.mark.parametrize("version", ["TLSv1_2", "TLSv1_3"])
    def test_client_proves_itself(
        self,
        ends: Pair,
        certs: Certificates,
        spawn: Spawn,
        opened: list[Stream],
        require: bool,
        version: str,
    ) -> None:
        client_context = certs.client_context(certs.client)
        client_context.maximum_version = ssl.TLSVersion[version]
        contexts = client_context, certs.server_context(require=require)
        opened += secure(ends, contexts, spawn)
        chain = fingerprints(certs.client.cert) | fingerprints(certs.ca)
        assert opened[1].certificate == PeerCertificate("alice", chain)
        assert not chain & fingerprints(certs.foreign_ca)
        assert opened[0]._tls.version() == version.replace("_", ".")  # type: ignore[attr-defined]

    def test_client_need_not_if_it_is_not_required(
        self, ends: Pair, certs: Certificates, spawn: Spawn, opened: list[Stream]
    ) -> None:
        contexts = certs.client_context(), certs.server_context()
        opened += secure(ends, contexts, spawn)
        assert opened[1].certificate is None

    @pytest.mark.parametrize("name", ["localhost", "127.0.0.1"])
    def test_names_of_the_server(
        self,
        ends: Pair,
        certs: Certificates,
        spawn: Spawn,
        opened: list[Stream],
        name: str,
    ) -> None:
        server = spawn(handshake, ends[1], certs.server_context(), soon())
        context = certs.client_context()
        opened.append(handshake(ends[0], context, soon(), server_name=name))
        opened.append(server.result(LONG_S))

    def test_settings_as_text(
        self, ends: Pair, certs: Certificates, spawn: Spawn, opened: list[Stream]
    ) -> None:
        read = {
            name: Path(path).read_text()
            for name, path in (("ca", certs.ca), ("cert", certs.client.cert))
        }
        settings = ClientTls(**read, key=Path(certs.client.key).read_text())
        contexts = make_client_context(settings), certs.server_context(require=True)
        opened += secure(ends, contexts, spawn)
        assert opened[1].certificate is not None

    def test_certificate_and_key_in_one(
        self, ends: Pair, certs: Certificates, spawn: Spawn, opened: list[Stream]
    ) -> None:
        both = Path(certs.client.both).read_text()
        client = make_client_context(ClientTls(ca=certs.ca, cert=both))
        path = certs.server.both
        server = make_server_context(ServerTls(path, path, (certs.ca,), True))
        opened += secure(ends, (client, server), spawn)
        assert opened[1].certificate is not None

    def test_several_authorities(
        self, ends: Pair, certs: Certificates, spawn: Spawn, opened: list[Stream]
    ) -> None:
        cas = (certs.ca, certs.foreign_ca)
        identity = certs.server
        settings = ServerTls(identity.cert, identity.key, cas, True)
        contexts = (
            certs.client_context(certs.foreign_client),
            make_server_context(settings),
        )
        opened += secure(ends, contexts, spawn)
        peer = opened[1].certificate
        # The name is the same as that of our client, the chain is not.
        assert peer is not None and peer.common_name == "alice"
        assert peer.chain & fingerprints(certs.foreign_ca)
        assert not peer.chain & fingerprints(certs.ca)

    def test_resumed_session_never_gains_a_chain(
        self, certs: Certificates, spawn: Spawn
    ) -> None:
        """What a client resumes is no proof of its authority: the chain is unknown."""
        context = certs.client_context(certs.client)
        context.maximum_version = ssl.TLSVersion.TLSv1_2
        server_context = certs.server_context(require=True)
        session, chains = None, []
        for _ in range(2):
            ends = make_pair()
            accepting = spawn(handshake, ends[1], server_context, soon())
            tls = _raw_handshake(ends[0], context, session)
            server = accepting.result(LONG_S)
            session = tls.session
            assert server.certificate.common_name == "alice"
            chains.append(server.certificate.chain)
            server.close()
        assert chains[0] == fingerprints(certs.client.cert) | fingerprints(certs.ca)
        assert chains[1] <= chains[0] and chains[1] >= fingerprints(certs.client.cert)


def _raw_handshake(
    stream: Stream, context: ssl.SSLContext, session: ssl.SSLSession | None
) -> ssl.SSLObject:
    incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
    tls = context.wrap_bio(
        incoming, outgoing, server_hostname="localhost", session=session
    )
    buffer = memoryview(bytearray(65536))
    while True:
        try:
            tls.do_handshake()
        except ssl.SSLWantReadError:
            stream.send([outgoing.read()], soon())
            incoming.write(buffer[: stream.recv_into(buffer, soon())])
        else:
            stream.send([outgoing.read()], soon())
            return tls


class TestRefusal:
    def test_unknown_authority(
        self, ends: Pair, certs: Certificates, spawn: Spawn
    ) -> None:
        client = make_client_context(ClientTls(ca=certs.foreign_ca))
        texts = meet(ends, client, certs.server_context(), spawn, "localhost")
        assert "handshake failed: certificate verify failed: " in texts[0]
        assert "certificate in certificate chain" in texts[0]
        assert "unknown ca" in texts[1]

    def test_authorities_of_the_system(
        self, ends: Pair, certs: Certificates, spawn: Spawn
    ) -> None:
        client = make_client_context(ClientTls())
        texts = meet(ends, client, certs.server_context(), spawn, "localhost")
        assert "certificate verify failed" in texts[0]

    @pytest.mark.parametrize("name", ["example.org", "127.0.0.2"])
    def test_wrong_name(
        self, ends: Pair, certs: Certificates, spawn: Spawn, name: str
    ) -> None:
        client, server = certs.client_context(), certs.server_context()
        text, _ = meet(ends, client, server, spawn, name)
        assert "certificate verify failed" in text
        assert "mismatch" in text and f"'{name}'" in text

    @pytest.mark.parametrize("version", ["TLSv1_2", "TLSv1_3"])
    def test_client_without_a_certificate(
        self, ends: Pair, certs: Certificates, spawn: Spawn, version: str
    ) -> None:
        client, server = certs.client_context(), certs.server_context(require=True)
        client.maximum_version = ssl.TLSVersion[version]
        texts = meet(ends, client, server, spawn, "localhost")
        assert "the client has to present a certificate" in texts[1]
        expected = "wants a client certificate" if version == "TLSv1_3" else "alert"
        assert expected in texts[0]

    @pytest.mark.parametrize("require", [True, False])
    def test_client_of_another_authority(
        self, ends: Pair, certs: Certificates, spawn: Spawn, require: bool
    ) -> None:
        client = certs.client_context(certs.foreign_client)
        server = certs.server_context(require=require)
        texts = meet(ends, client, server, spawn, "localhost")
        assert "certificate verify failed" in texts[1]
        assert "does not trust our certificate" in texts[0]

    def test_old_versions(self, ends: Pair, certs: Certificates, spawn: Spawn) -> None:
        client, server = certs.client_context(), certs.server_context()
        for context in (client, server):
            assert context.minimum_version == ssl.TLSVersion.TLSv1_2
        old = client
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)
            old.minimum_version = old.maximum_version = ssl.TLSVersion.TLSv1_1
        old.set_ciphers("ALL:@SECLEVEL=0")
        texts = meet(ends, client, server, spawn, "localhost")
        assert "TLS 1.2 or later is needed" in texts[1]
        assert "another version of TLS" in texts[0]

    def test_plain_client(self, ends: Pair, certs: Certificates, spawn: Spawn) -> None:
        server = spawn(handshake, ends[1], certs.server_context(), soon())
        ends[0].send([b"LANC" + bytes(40)], soon())
        # The client gets an alert that it can't read, and the end. It does not wait.
        while read_one(ends[0]):
            pass
        ends[0].close()
        with pytest.raises(ConnectionLost, match="the peer does not speak TLS"):
            server.result(LONG_S)

    def test_a_client_that_is_refused_can_finish_and_see_why(
        self, certs: Certificates, spawn: Spawn, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """What it sends late must not reset the connection before it reads."""
        monkeypatch.setattr(tls_stream, "_DRAIN_S", LONG_S)
        client, end = make_pair()
        server = spawn(handshake, end, certs.server_context(), soon())
        client.send([b"LANC" + bytes(40)], soon())
        while read_one(client):
            pass
        # The server waits for the client to finish.
        with pytest.raises(futures.TimeoutError):
            server.result(0.05)
        client.send([b"late"], soon())
        client.close()
        with pytest.raises(ConnectionLost, match="the peer does not speak TLS"):
            server.result(LONG_S)

    def test_plain_server(self, ends: Pair, certs: Certificates, spawn: Spawn) -> None:
        client = spawn(
            handshake, ends[0], certs.client_context(), soon(), server_name="localhost"
        )
        assert read_one(ends[1])
        ends[1].shutdown_write()
        with pytest.raises(ConnectionLost, match=r"peer ended .* does it speak TLS"):
            client.result(LONG_S)

    def test_server_that_answers_in_plain(
        self, ends: Pair, certs: Certificates, spawn: Spawn
    ) -> None:
        client = spawn(
            handshake, ends[0], certs.client_context(), soon(), server_name="localhost"
        )
        ends[1].send([b"LANC" + bytes(40)], soon())
        ends[1].shutdown_write()
        with pytest.raises(ConnectionLost, match="the peer does not speak TLS"):
            client.result(LONG_S)

    def test_server_that_is_gone(self, certs: Certificates) -> None:
        ends = make_pair()
        ends[1].close()
        with pytest.raises(ConnectionLost, match="does the peer speak TLS"):
            handshake(ends[0], certs.client_context(), soon(), server_name="localhost")

    def test_peer_that_says_nothing(self, ends: Pair, certs: Certificates) -> None:
        context = certs.client_context()
        with pytest.raises(Timeout, match=r"nothing came .* does the peer speak TLS"):
            handshake(ends[0], context, Deadline.after(0.01), server_name="localhost")
        end, _silent = make_pair()
        with pytest.raises(Timeout, match="nothing came"):
            handshake(end, certs.server_context(), Deadline.after(0.01))

    def test_failure_closes_the_stream(self, certs: Certificates) -> None:
        for shake in (
            lambda end: handshake(
                end, certs.client_context(), Deadline.after(0), server_name="localhost"
            ),
            lambda end: handshake(end, certs.server_context(), Deadline.after(0)),
        ):
            end, _silent = make_pair()
            with pytest.raises(Timeout):
                shake(end)
            with pytest.raises(ConnectionLost, match="closed here"):
                end.send([b"x"], soon())

    @pytest.mark.parametrize("name", [".example.org", "a" * 70 + ".org", "a\0b"])
    def test_impossible_names(self, certs: Certificates, name: str) -> None:
        end, _ = make_pair()
        with pytest.raises(OptionError, match="TLS server name"):
            handshake(end, certs.client_context(), soon(), server_name=name)
        with pytest.raises(ConnectionLost, match="closed here"):
            end.send([b"x"], soon())


class TestSettings:
    @pytest.fixture(autouse=True)
    def temporary(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
        path = tmp_path / "temporary"
        path.mkdir()
        monkeypatch.setattr(tempfile, "tempdir", str(path))
        return path

    @pytest.fixture
    def broken(self, tmp_path: Path) -> str:
        """Give a file that looks like PEM and is none."""
        path = tmp_path / "broken.pem"
        path.write_text(
            "-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n"
            "-----BEGIN PRIVATE KEY-----\nc2VjcmV0\n-----END PRIVATE KEY-----\n"
        )
        return str(path)

    def test_keys_as_text_are_gone_at_once(
        self, certs: Certificates, temporary: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        modes: list[int] = []
        load = ssl.SSLContext.load_cert_chain

        def look_and_load(self: ssl.SSLContext, *args: Any, **more: Any) -> None:
            modes.extend(stat.S_IMODE(f.stat().st_mode) for f in temporary.iterdir())
            load(self, *args, **more)

        monkeypatch.setattr(ssl.SSLContext, "load_cert_chain", look_and_load)
        identity = certs.client
        cert, key = (Path(p).read_text() for p in (identity.cert, identity.key))
        make_client_context(ClientTls(ca=certs.ca, cert=cert, key=key))
        assert modes == [0o600, 0o600] and not list(temporary.iterdir())
        other_key = Path(certs.server.key).read_text()
        with pytest.raises(OptionError):
            make_client_context(ClientTls(ca=certs.ca, cert=cert, key=other_key))
        assert len(modes) == 4 and not list(temporary.iterdir())

    def test_no_room_for_a_temporary_file(
        self, certs: Certificates, temporary: Path
    ) -> None:
        temporary.rmdir()
        both = Path(certs.client.both).read_text()
        with pytest.raises(OptionError, match="can't be used: No such file"):
            make_client_context(ClientTls(ca=certs.ca, cert=both))

    @pytest.mark.parametrize("field", ["ca", "cert", "key"])
    def test_missing_file_of_a_client(self, certs: Certificates, field: str) -> None:
        identity = certs.client
        given = {"ca": certs.ca, "cert": identity.cert, "key": identity.key}
        given[field] = "/does/not/exist.pem"
        with pytest.raises(OptionError, match=r"/does/not/exist.pem can't be read: No"):
            make_client_context(ClientTls(**given))

    @pytest.mark.parametrize("field", ["cert_path", "key_path", "client_ca_paths"])
    def test_missing_file_of_a_server(self, certs: Certificates, field: str) -> None:
        given: dict[str, Any] = {
            "cert_path": certs.server.cert,
            "key_path": certs.server.key,
            "client_ca_paths": (certs.ca,),
        }
        missing = "/does/not/exist.pem"
        given[field] = missing if field != "client_ca_paths" else (certs.ca, missing)
        with pytest.raises(OptionError, match=r"/does/not/exist.pem can't be read: No"):
            make_server_context(ServerTls(**given))

    def test_key_of_another_certificate(self, certs: Certificates) -> None:
        settings = ServerTls(certs.server.cert, certs.client.key)
        with pytest.raises(OptionError, match=r"server\.pem and its key .* mismatch"):
            make_server_context(settings)

    def test_swapped_files(self, certs: Certificates) -> None:
        with pytest.raises(OptionError, match=r"server\.key: there is no PEM cert"):
            make_server_context(ServerTls(certs.server.key, certs.server.cert))
        with pytest.raises(OptionError, match=r"server\.pem: there is no PEM private"):
            make_server_context(ServerTls(certs.server.cert, certs.server.cert))
        with pytest.raises(OptionError, match=r"server\.key: there is no PEM cert"):
            make_client_context(ClientTls(ca=certs.server.key))

    def test_broken_files(self, certs: Certificates, broken: str) -> None:
        with pytest.raises(OptionError, match=r"CA file .*broken\.pem can't be used"):
            make_client_context(ClientTls(ca=broken))
        with pytest.raises(OptionError, match=r"broken\.pem and its key can't be used"):
            make_client_context(ClientTls(ca=certs.ca, cert=broken))
        with pytest.raises(OptionError, match=r"server\.pem and its key can't be") as e:
            make_server_context(ServerTls(certs.server.cert, broken))
        assert "c2VjcmV0" not in str(e.value)

    def test_key_with_a_passphrase(self, certs: Certificates) -> None:
        key = load_pem_private_key(Path(certs.client.key).read_bytes(), None)
        locked = key.private_bytes(
            Encoding.PEM, PrivateFormat.PKCS8, BestAvailableEncryption(b"secret")
        ).decode()
        settings = ClientTls(ca=certs.ca, cert=certs.client.cert, key=locked)
        # Nothing is asked on the terminal.
        with pytest.raises(OptionError, match="has a passphrase: give it without one"):
            make_client_context(settings)

    def test_key_without_a_certificate(self, certs: Certificates) -> None:
        with pytest.raises(OptionError, match="give the certificate too"):
            make_client_context(ClientTls(ca=certs.ca, key=certs.client.key))

    def test_required_without_an_authority(self, certs: Certificates) -> None:
        settings = ServerTls(
            certs.server.cert, certs.server.key, require_client_cert=True
        )
        with pytest.raises(OptionError, match="give the file of the clients' CA"):
            make_server_context(settings)

    def test_secrets_are_not_shown(self, certs: Certificates) -> None:
        both = Path(certs.client.both).read_text()
        key = Path(certs.client.key).read_text()
        shown = repr(ClientTls(ca=certs.ca, cert=both, key=key))
        assert shown == (
            f"ClientTls(ca={certs.ca!r}, cert='(PEM text)', key='(not shown)')"
        )
        assert repr(ClientTls()) == "ClientTls(ca=None, cert=None, key=None)"

    @pytest.mark.parametrize("separator", ["\n", ""])
    def test_key_without_its_armour_is_not_shown(
        self, certs: Certificates, separator: str
    ) -> None:
        lines = Path(certs.client.key).read_text().split("\n")[1:-2]
        settings = ClientTls(
            ca=certs.ca, cert=certs.client.cert, key=separator.join(lines)
        )
        with pytest.raises(OptionError, match=r"key file \(not shown\)") as caught:
            make_client_context(settings)
        assert lines[0] not in str(caught.value)

    def test_plain_values(self) -> None:
        assert ClientTls(ca="a") == ClientTls(ca="a") != ClientTls(ca="b")
        assert hash(ServerTls("a", "b")) == hash(ServerTls("a", "b"))
        assert re.search("ServerTls", repr(ServerTls("a", "b")))


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
