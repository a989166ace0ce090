"""A small local Spark for tests and notebooks: quick to start, quiet, all in one place.

Its settings are for small data. A job that is measured or that lasts wants others.
"""

from __future__ import annotations

import os
import sys
import sysconfig
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from lance_spark.errors import OptionError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

# What starts quickly. Such a session is over before the best compiler is done.
JAVA_OPTIONS = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"


def make_settings(directory: Path) -> dict[str, str]:
    """Give the settings of a small, quiet Spark whose files are in a directory."""
    return {
        "spark.master": "local[2]",
        "spark.app.name": "lance-spark",
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


def make_environment() -> dict[str, str]:
    """Give what Spark's Python workers need to be this interpreter with its modules."""
    return {
        "PYSPARK_PYTHON": sys.executable,
        "PYSPARK_DRIVER_PYTHON": sys.executable,
        "PYTHONPATH": os.pathsep.join(_list_paths()),
        "SPARK_LOCAL_IP": "127.0.0.1",
    }


def _list_paths() -> list[str]:
    """List where modules are found that every Python of this installation lacks."""
    # Those of the installation stay out: in front of the standard library they could
    # hide modules of it.
    usual = {Path(path).resolve() for path in sysconfig.get_paths().values()}
    library = Path(sysconfig.get_path("stdlib")).resolve()
    usual |= {library, library / "lib-dynload"}
    found = [Path(path or ".").resolve() for path in sys.path]
    return [str(p) for p in dict.fromkeys(found) if p.is_dir() and p not in usual]


def start_session(
    directory: Path | str,
    *,
    settings: Mapping[str, str] | None = None,
    environment: Mapping[str, str] | None = None,
) -> SparkSession:
    """Start Spark in this process and in a JVM below it; its user stops it.

    Args:
        directory: where its files go.
        settings: more settings, which win over those of `make_settings`.
        environment: more variables for the JVM, over those of `make_environment`.

    Raises:
        OptionError: pyspark is not installed, or there is a session already.
    """
    try:
        from pyspark.sql import SparkSession
    except ImportError as error:
        raise OptionError(
            "a Spark session needs pyspark: pip install 'lance-spark[spark]'"
        ) from error
    if SparkSession.getActiveSession() is not None:
        # It could not be given these settings, and is not ours to stop.
        raise OptionError(
            "this process has a Spark session already: stop it, or use it "
            "(in tests: a fixture lance_spark_session of your own that returns it)"
        )
    with _set_environment({**make_environment(), **(environment or {})}):
        builder = SparkSession.builder.config(
            map={**make_settings(Path(directory)), **(settings or {})}
        )
        session = builder.getOrCreate()
    session.sparkContext.setLogLevel("ERROR")
    return session


@contextmanager
def run_session(
    directory: Path | str | None = None,
    *,
    settings: Mapping[str, str] | None = None,
    environment: Mapping[str, str] | None = None,
) -> Iterator[SparkSession]:
    """Run Spark for as long as a `with` block.

    Args:
        directory: where its files go; without one they are temporary.
        settings: more settings, which win over those of `make_settings`.
        environment: more variables for the JVM, over those of `make_environment`.

    Raises:
        OptionError: pyspark is not installed, or there is a session already.
    """
    with ExitStack() as stack:
        if directory is None:
            temporary = tempfile.TemporaryDirectory(prefix="lance-spark-")
            directory = stack.enter_context(temporary)
        session = start_session(directory, settings=settings, environment=environment)
        stack.callback(session.stop)
        yield session


@contextmanager
def _set_environment(variables: Mapping[str, str]) -> Iterator[None]:
    """Set environment variables while a JVM is started, which keeps them."""
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
