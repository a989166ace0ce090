"""What TANK can do, and how its servers are reached.

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
    "tank",
    "records",
    "counted",
    columns=("topic", "partition", "offset", "timestamp", "key", "value"),
    first_position=1,
    compressions=("none", "snappy"),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Config(ConnectionConfig):
    """How TANK's servers are reached.

    Raises:
        OptionError: a value can't be used. TANK can't carry a token.
    """

    protocol: ClassVar[str] = "tank"
    default_port: ClassVar[int] = 11011

    servers: str = "127.0.0.1"

    def __post_init__(self) -> None:
        # With slots, `super()` without arguments means a class that is replaced.
        ConnectionConfig.__post_init__(self)
        if self.auth_token is not None:
            raise OptionError(
                "auth_token: TANK can't carry a token; where the broker asks for one, "
                "use TLS with a client certificate (tls_cert)"
            )
