"""What Spark runs with in tests: the settings of the testing kit, and this tree.

The session that all tests share is the kit's (`conftest.py` at the top); clusters and
queries that are killed have JVMs of their own.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from lance_spark.spark import local

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

ROOT = Path(__file__).parent.parent.parent.parent

# Two tasks at once, and each is tried three times, as it would be on a cluster.
MASTER = "local[2,3]"
# What makes the session's daemons import things before they fork: see there.
WARM = ROOT / "tests" / "spark" / "engine" / "warm"
# Spark's classes, ready for a JVM to map: see `archive`, which writes it.
ARCHIVE = Path(sys.prefix) / "spark.jsa"
JAVA_OPTIONS = local.JAVA_OPTIONS
if ARCHIVE.exists():
    # A JVM that can't use it would say so, and goes on without.
    JAVA_OPTIONS += f" -XX:SharedArchiveFile={ARCHIVE} -Xlog:disable"
# Beside those of the testing kit.
SETTINGS = {"spark.master": MASTER, "spark.driver.extraJavaOptions": JAVA_OPTIONS}


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
    return {**local.make_settings(directory), **SETTINGS}


@contextmanager
def run_session(directory: Path) -> Iterator[SparkSession]:
    """Run Spark as the session of the tests does, for scripts without pytest."""
    with local.run_session(
        directory,
        settings=SETTINGS,
        environment=make_warm_environment(),
    ) as session:
        session.sparkContext.setLogLevel("OFF")
        yield session
