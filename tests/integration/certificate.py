"""Certificates for tests of TLS: two authorities that do not know each other."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import trustme

from lance_spark.net.tls import ClientTls


@dataclass(frozen=True)
class Certificates:
    """Files of two authorities that do not know each other.

    `server` and `alice` and `bob` are of the first, `mallory` is of the second and has
    the name of alice.
    """

    directory: Path

    def path(self, name: str) -> str:
        """Give the path of a file."""
        return str(self.directory / name)

    @property
    def ca(self) -> str:
        """The authority of the server and of good clients."""
        return self.path("ca.pem")

    @property
    def server(self) -> dict[str, Any]:
        """Settings of a broker with TLS, which verifies clients that show something."""
        return {
            "tls_enabled": True,
            "tls_cert_path": self.path("server.pem"),
            "tls_key_path": self.path("server.key"),
            "tls_client_ca_path": self.ca,
        }

    def client(self, name: str | None) -> dict[str, Any]:
        """Settings of a client with the certificate of somebody, or with none."""
        settings: dict[str, Any] = {"tls": True, "tls_ca": self.ca}
        if name is not None:
            settings["tls_cert"] = self.path(f"{name}.pem")
            settings["tls_key"] = self.path(f"{name}.key")
        return settings

    def raw(self, name: str | None) -> ClientTls:
        """The same for a connection without a client."""
        cert = None if name is None else self.path(f"{name}.pem")
        key = None if name is None else self.path(f"{name}.key")
        return ClientTls(ca=self.ca, cert=cert, key=key)


def issue_certificates(directory: Path) -> Certificates:
    """Make the authorities and everybody's certificates."""
    made = Certificates(directory)
    good, foreign = trustme.CA(), trustme.CA()
    good.cert_pem.write_to_path(made.path("ca.pem"))
    foreign.cert_pem.write_to_path(made.path("foreign.pem"))
    for name, ca, common_name in (
        ("server", good, "localhost"),
        ("alice", good, "alice"),
        ("bob", good, "bob"),
        ("mallory", foreign, "alice"),
    ):
        issued = ca.issue_cert("localhost", "127.0.0.1", common_name=common_name)
        issued.private_key_pem.write_to_path(made.path(f"{name}.key"))
        for blob in issued.cert_chain_pems:
            blob.write_to_path(made.path(f"{name}.pem"), append=True)
    return made
