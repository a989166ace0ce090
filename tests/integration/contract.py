"""The servers that one contract holds for, and what its tests share."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from lance_spark.broker import EmbeddedBroker
from lance_spark.client import Consumer, LanceClient, Producer
from tests.integration.certificate import Certificates
from tests.integration.process import BrokerProcess

# Small segments and frequent looks, so that retention can be seen at work.
SETTINGS: dict[str, Any] = {
    "fsync": "none",
    "segment_bytes": 64 * 1024,
    "maintenance_interval_s": 0.05,
}
TOKEN = "open sesame"


@dataclass(frozen=True)
class Target:
    """A server and how to talk to it."""

    kind: str
    address: str
    options: dict[str, Any] = field(default_factory=dict)

    @property
    def is_plain(self) -> bool:
        """Whether it offers LWP and nothing more."""
        return self.kind == "plain"


@contextmanager
def run_target(
    kind: str, directory: Path, certificates: Certificates
) -> Iterator[Target]:
    """Run a server of a kind, in a directory that is there."""
    settings = {**SETTINGS, **_SETTINGS[kind](certificates)}
    options = _OPTIONS[kind](certificates) if kind in _OPTIONS else {}
    if kind == "process":
        with BrokerProcess(directory / "data", **settings) as process:
            yield Target(kind, process.address, options)
        return
    with EmbeddedBroker(data_dir=str(directory / "data"), **settings) as broker:
        yield Target(kind, broker.address, options)


_SETTINGS: dict[str, Callable[[Certificates], dict[str, Any]]] = {
    "embedded": lambda _: {},
    "process": lambda _: {},
    "mtls": lambda certificates: {
        **certificates.server,
        "tls_require_client_cert": True,
    },
    "tokens": lambda _: {"tokens": (TOKEN,)},
    "plain": lambda _: {"dialect": "plain"},
}
_OPTIONS: dict[str, Callable[[Certificates], dict[str, Any]]] = {
    "mtls": lambda certificates: certificates.client("alice"),
    "tokens": lambda _: {"auth_token": TOKEN},
    "plain": lambda _: {"checksum": "auto"},
}
KINDS = tuple(_SETTINGS)


def fill(client: LanceClient, topic: str, count: int = 10) -> list[bytes]:
    """Write some small records; give their values."""
    values = [f"value {n}".encode() for n in range(count)]
    with Producer(client, topic) as producer:
        for value in values:
            producer.send(value)
    return values


def read(client: LanceClient, topic: str) -> list[bytes | None]:
    """Read the values of all records that are there."""
    with Consumer(client, topic) as consumer:
        return [record.value for record in consumer]
