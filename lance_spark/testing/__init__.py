"""Brokers, topics and faults for tests of jobs that use LANCE topics.

With pytest they are fixtures (`plugin`); without it, `run_broker` is where to begin.
Importing this package is cheap, as every run of pytest does where it is installed:
names are looked up when they are asked for.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from lance_spark.testing.faults import Fault, Faults
    from lance_spark.testing.process import BrokerProcess
    from lance_spark.testing.relay import CLEAR, Fate, Flow, Relay
    from lance_spark.testing.scratch import (
        ScratchBroker,
        run_broker,
        run_broker_process,
    )
    from lance_spark.testing.topic import ScratchTopic

__all__ = [
    "CLEAR",
    "BrokerProcess",
    "Fate",
    "Fault",
    "Faults",
    "Flow",
    "Relay",
    "ScratchBroker",
    "ScratchTopic",
    "run_broker",
    "run_broker_process",
]

# Where names are looked for, each after those that it imports.
_HOMES = ("relay", "faults", "process", "topic", "scratch")


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    homes = (import_module(f"{__name__}.{home}") for home in _HOMES)
    return next(getattr(home, name) for home in homes if hasattr(home, name))


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
