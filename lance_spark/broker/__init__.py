"""The broker: the whole server side of LWP, over `store`.

`EmbeddedBroker` runs one in threads of this process. What it does is in `service`,
how it is asked in `lwp` and `plain`.
"""

from lance_spark.broker.config import BrokerConfig
from lance_spark.broker.embedded import EmbeddedBroker

__all__ = ["BrokerConfig", "EmbeddedBroker"]
