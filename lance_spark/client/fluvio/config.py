"""What Fluvio can do, and how its servers are reached.

Every process that Spark starts reads this, also those that never connect: so nothing of
the protocol's wire is imported here.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from lance_spark.client.config import ConnectionConfig
from lance_spark.client.driver import Traits
from lance_spark.errors import OptionError

TRAITS = Traits(
    "fluvio",
    "records",
    "counted",
    columns=("topic", "partition", "offset", "timestamp", "key", "value"),
    compressions=("none", "gzip", "snappy", "lz4", "zstd"),
)
ISOLATIONS = ("read_uncommitted", "read_committed")


@dataclass(frozen=True, slots=True, kw_only=True)
class Config(ConnectionConfig):
    """How the controllers (SC) of a Fluvio cluster are reached; they name the SPUs.

    Args:
        isolation: `read_committed` reads what all replicas have, and waits for them
            when it writes; `read_uncommitted` does not.

    Raises:
        OptionError: a value can't be used. Fluvio can't carry a token.
    """

    protocol: ClassVar[str] = "fluvio"
    default_port: ClassVar[int] = 9003

    servers: str = "127.0.0.1"
    isolation: str = "read_uncommitted"

    def __post_init__(self) -> None:
        # Not super(): a dataclass with slots is another class than the one named here.
        ConnectionConfig.__post_init__(self)
        if self.isolation not in ISOLATIONS:
            raise OptionError(
                f"isolation {self.isolation!r} is unknown: give "
                f"{' or '.join(ISOLATIONS)}"
            )
        if self.auth_token is not None:
            raise OptionError(
                "auth_token: Fluvio can't carry a token; where the broker asks for "
                "one, use TLS with a client certificate (tls_cert)"
            )
