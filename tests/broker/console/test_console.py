"""The console as part of a broker: TLS, addresses, starting and stopping."""

from __future__ import annotations

import ssl
import subprocess
import sys
import threading
from http.client import HTTPException
from pathlib import Path
from typing import Any

import pytest
import trustme

from lance_spark.broker import EmbeddedBroker
from lance_spark.broker.console.console import Console
from lance_spark.errors import OptionError
from lance_spark.net.address import Address
from lance_spark.store import Store
from lance_spark.wire.lwp import scan
from tests.broker.console.visit import Visitor, add_topic
from tests.broker.kit import StartBroker, record

# Starting and stopping.


def test_without_a_console() -> None:
    with EmbeddedBroker(fsync="none") as broker:
        assert broker.ui_address is None and broker.ui_url is None
    with EmbeddedBroker(fsync="none", ui=False) as broker:
        assert broker.ui_address is None


def test_again_at_the_same_address(directory: Path) -> None:
    broker = EmbeddedBroker(data_dir=str(directory / "d"), ui=True, fsync="none")
    assert broker.ui_url is None
    before = set(threading.enumerate())
    with broker:
        address = broker.ui_address
        assert address is not None and address.startswith("127.0.0.1:")
        assert broker.ui_url == f"http://{address}/"
        add_topic(broker, "t", record(b"x"))
        assert Visitor(broker).records("t")["records"]
    assert broker.ui_address is None
    # No thread is left of it.
    for thread in set(threading.enumerate()) - before:
        thread.join(10)
        assert not thread.is_alive(), thread
    with broker:
        assert broker.ui_address == address
        assert Visitor(broker).records("t")["records"]


def test_address_in_use(directory: Path) -> None:
    path = str(directory / "d")
    with EmbeddedBroker(fsync="none", ui=True) as broker:
        other = EmbeddedBroker(fsync="none", data_dir=path, ui=broker.ui_address)
        with pytest.raises(OptionError, match=r"console: .* already in use"):
            other.start()
        assert not other.is_running and other.ui_address is None
        assert Visitor(broker).get("/api/session")
    Store(path, framing=scan).close()


# In a process of its own: modules that are imported anew are others than before, also
# for tests that come later.
_START_WITHOUT = """
import sys
sys.modules[sys.argv[1]] = None
from lance_spark.broker import EmbeddedBroker
EmbeddedBroker(ui=True, data_dir=sys.argv[2]).start()
"""


@pytest.mark.parametrize("package", ["starlette", "uvicorn"])
def test_package_missing(directory: Path, package: str) -> None:
    path = str(directory / "d")
    done = subprocess.run(
        [sys.executable, "-c", _START_WITHOUT, package, path],
        capture_output=True,
        text=True,
        timeout=60,
    )
    last = done.stderr.splitlines()[-1]
    assert f"OptionError: the console needs the package {package}" in last
    assert "pip install 'lance-spark[ui]'" in last
    Store(path, framing=scan).close()


@pytest.mark.parametrize(
    ("host", "url"),
    [
        ("0.0.0.0", "http://127.0.0.1:80/"),
        ("::", "http://127.0.0.1:80/"),
        ("::1", "http://[::1]:80/"),
        ("broker.example.com", "http://broker.example.com:80/"),
    ],
)
def test_url(broker: EmbeddedBroker, host: str, url: str) -> None:
    address = Address(host, 80)
    console = Console(
        broker.service, broker.config, address=address, addresses={"lance": address}
    )
    assert (console.address, console.url) == (address, url)
    console.stop()


# TLS.


class Certificates:
    """An authority, a server, a client."""

    def __init__(self, directory: Path) -> None:
        self.authority = trustme.CA()
        self.server = self._write(directory, "server", "127.0.0.1", "localhost")
        self.client = self._write(directory, "client", "c.example.com", name="client")
        self.ca = str(directory / "ca.pem")
        self.authority.cert_pem.write_to_path(self.ca)

    def _write(self, directory: Path, file: str, *hosts: str, name: str = "x") -> str:
        path = directory / f"{file}.pem"
        issued = self.authority.issue_cert(*hosts, common_name=name)
        issued.private_key_and_cert_chain_pem.write_to_path(str(path))
        return str(path)

    def settings(self, **more: Any) -> dict[str, Any]:
        """Give the settings of a broker."""
        server = {"tls_cert_path": self.server, "tls_key_path": self.server}
        return {"ui": True, "ui_admin": True, "tls_enabled": True, **server, **more}

    def context(self, *, client: bool = False) -> ssl.SSLContext:
        """Trust the server, and present a certificate if wanted."""
        context = ssl.create_default_context(cafile=self.ca)
        if client:
            context.load_cert_chain(self.client)
        return context


@pytest.fixture(scope="module")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Certificates:
    return Certificates(tmp_path_factory.mktemp("tls"))


def test_https(start: StartBroker, certificates: Certificates) -> None:
    broker = start(**certificates.settings(tokens=["secret"]))
    assert broker.ui_url == f"https://{broker.ui_address}/"
    visitor = Visitor(broker, certificates.context())
    answer = visitor.ask("POST", "/api/session", {"token": "secret"})
    assert answer.status == 200 and "Secure" in answer.headers["Set-Cookie"]
    assert visitor.get("/api/overview")["broker"]["tls"] is True
    made = visitor.ask("POST", "/api/topics", {"name": "t"})
    assert made.status == 200
    # The origin has to be the secure one.
    foreign = {"Origin": f"http://{visitor.host}"}
    assert visitor.ask("POST", "/api/topics", {"name": "u"}, **foreign).status == 403
    # And nothing is said in plain text.
    with pytest.raises((HTTPException, OSError)):
        Visitor(broker).ask("GET", "/api/session")


def test_https_with_keys_as_text(
    start: StartBroker, certificates: Certificates
) -> None:
    text = Path(certificates.server).read_text()
    broker = start(**certificates.settings(tls_cert_path=text, tls_key_path=text))
    assert Visitor(broker, certificates.context()).get("/api/session")


def test_old_versions_are_refused(
    start: StartBroker, certificates: Certificates
) -> None:
    broker = start(**certificates.settings())
    context = certificates.context()
    context.maximum_version = ssl.TLSVersion.TLSv1_2
    assert Visitor(broker, context).get("/api/session")
    assert broker._console is not None and broker._console._tls is not None
    lowest = broker._console._tls.minimum_version
    assert lowest == ssl.TLSVersion.TLSv1_2


RULE = {"auth": {"mtls_enabled": True, "allowed_cns": ["client"]}}


def test_certificates_are_not_asked_for(
    start: StartBroker, certificates: Certificates
) -> None:
    # A browser would ask its user for one. Topics that need one are hidden.
    settings = certificates.settings(
        tls_client_ca_path=certificates.ca, topics={"payments": RULE}
    )
    visitor = Visitor(start(**settings), certificates.context(client=True))
    found = visitor.get("/api/overview")
    assert found["topics"] == [] and found["hidden_topics"] == 1
    assert found["health"]["notes"] == []


def test_certificates_that_are_required(
    start: StartBroker, certificates: Certificates
) -> None:
    settings = certificates.settings(
        tls_client_ca_path=certificates.ca,
        tls_require_client_cert=True,
        topics={"payments": RULE},
    )
    broker = start(**settings)
    # Who could not connect to the broker can't look at it either.
    with pytest.raises((HTTPException, OSError)):
        Visitor(broker, certificates.context()).ask("GET", "/api/session")
    visitor = Visitor(broker, certificates.context(client=True))
    found = visitor.get("/api/overview")
    assert [topic["name"] for topic in found["topics"]] == ["payments"]
    assert visitor.get("/api/topics/payments")["rule"]["mtls"] is True
