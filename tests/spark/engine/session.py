"""The Spark session that all tests of a run share: a JVM takes seconds to start."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

ROOT = Path(__file__).parent.parent.parent.parent

# Two tasks at once, and each is tried three times, as it would be on a cluster.
MASTER = "local[2,3]"
# What makes the session's daemons import things before they fork: see there.
WARM = ROOT / "tests" / "spark" / "engine" / "warm"
# What starts quickly. A test is over before the best compiler is done with anything.
JAVA_OPTIONS = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"


def make_environment() -> dict[str, str]:
    """Give what a JVM's Python workers need to find this interpreter and this tree."""
    path = os.environ.get("PYTHONPATH")
    return {
        "PYSPARK_PYTHON": sys.executable,
        "PYSPARK_DRIVER_PYTHON": sys.executable,
        "PYTHONPATH": f"{ROOT}{os.pathsep}{path}" if path else str(ROOT),
        "SPARK_LOCAL_IP": "127.0.0.1",
    }


def make_warm_environment() -> dict[str, str]:
    """Give the same for a JVM whose Python workers start with all they need: `warm`."""
    variables = make_environment()
    path = f"{WARM}{os.pathsep}{variables['PYTHONPATH']}"
    return {**variables, "PYTHONPATH": path}


def make_settings(directory: Path) -> dict[str, str]:
    """Give the settings of a small, quiet Spark whose files are in a directory."""
    return {
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.sql.shuffle.partitions": "2",
        "spark.sql.session.timeZone": "UTC",
        "spark.driver.memory": "1g",
        "spark.driver.host": "127.0.0.1",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.local.dir": str(directory / "local"),
        "spark.sql.warehouse.dir": str(directory / "warehouse"),
        "spark.driver.extraJavaOptions": JAVA_OPTIONS,
    }


@contextmanager
def run_session(directory: Path) -> Iterator[SparkSession]:
    """Run Spark in this process and in a JVM below it."""
    from pyspark.sql import SparkSession

    assert SparkSession.getActiveSession() is None, "a test has made its own session"
    with set_environment(make_environment()):
        # The JVM keeps it; other children of this process do not get it.
        with set_environment(make_warm_environment()):
            builder = SparkSession.builder.master(MASTER).appName("lance-tests")
            session = builder.config(map=make_settings(directory)).getOrCreate()
        session.sparkContext.setLogLevel("OFF")
        try:
            yield session
        finally:
            session.stop()


@contextmanager
def set_environment(variables: Mapping[str, str]) -> Iterator[None]:
    """Set environment variables for a while."""
    before = {name: os.environ.get(name) for name in variables}
    os.environ.update(variables)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value
