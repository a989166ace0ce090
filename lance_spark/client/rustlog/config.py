"""What RustLog can do, and how its servers are reached.

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
    "rustlog",
    "records",
    "counted",
    columns=("topic", "partition", "offset", "value"),
)
DIALECTS = ("binary", "json")


@dataclass(frozen=True, slots=True, kw_only=True)
class Config(ConnectionConfig):
    """How RustLog's servers are reached.

    Args:
        dialect: `binary`, which RustLog's broker speaks, or `json`, which only its
            specification has.

    Raises:
        OptionError: a value can't be used. RustLog can't carry a token.
    """

    protocol: ClassVar[str] = "rustlog"
    default_port: ClassVar[int] = 9092
    response_bytes_min: ClassVar[int] = 10 * 1024 * 1024

    servers: str = "127.0.0.1"
    dialect: str = "binary"

    def __post_init__(self) -> None:
        # Not super(): a dataclass with slots is another class than the one named here.
        ConnectionConfig.__post_init__(self)
        if self.dialect not in DIALECTS:
            raise OptionError(
                f"dialect {self.dialect!r} is unknown: give {' or '.join(DIALECTS)}"
            )
        if self.auth_token is not None:
            raise OptionError(
                "auth_token: RustLog can't carry a token; where the broker asks for "
                "one, use TLS with a client certificate (tls_cert)"
            )
