"""The session and the broker that benchmarks run, each in processes of its own."""

from __future__ import annotations

import compileall
import os
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import lance_spark
from lance_spark.testing import BrokerProcess

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_SETTINGS: dict[str, bool | float | int | str | None] = {
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.driver.memory": "2g",
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
}


@contextmanager
def run_session(tasks: int = 1, **settings: str) -> Iterator[SparkSession]:
    """Run a local Spark, by default one task at a time."""
    from pyspark.sql import SparkSession

    os.environ["PYSPARK_PYTHON"] = sys.executable
    # As an installed package has it, also where Python is told to write none.
    compileall.compile_dir(Path(lance_spark.__file__).parent, quiet=1)
    builder = SparkSession.builder.master(f"local[{tasks}]").appName("lance-bench")
    session = builder.config(map={**_SETTINGS, **settings}).getOrCreate()
    session.sparkContext.setLogLevel("OFF")
    try:
        yield session
    finally:
        session.stop()


@contextmanager
def run_broker(**settings: Any) -> Iterator[BrokerProcess]:
    """Run a broker in a child; it does not sync if no setting says otherwise."""
    with (
        tempfile.TemporaryDirectory(prefix="lance-bench-") as directory,
        BrokerProcess(Path(directory, "data"), **{"fsync": "none", **settings}) as one,
    ):
        yield one
