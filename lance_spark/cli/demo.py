"""`lance-spark demo`: the broker's promises, shown on a million records."""

from __future__ import annotations

import importlib.util
import signal
import sys
import tempfile
from pathlib import Path
from types import FrameType

import click

from lance_spark.cli.options import PATH, option
from lance_spark.errors import LanceError


@click.command("demo")
@option("--records=1000000", click.IntRange(min=100), "How many records to send.")
@option("--dir directory", PATH, "Keep the data here; must not exist or be empty.")
@option(
    *("--spark/--no-spark with_spark", bool),
    "Read and write with Spark too.  [default: if it is installed]",
    default=None,
)
def command(records: int, directory: Path | None, with_spark: bool | None) -> None:
    """Kill a broker under load, start it again, and show that nothing is lost."""
    from lance_spark.demo import run

    if directory is not None and directory.exists():
        is_empty = directory.is_dir() and not any(directory.iterdir())
        if not is_empty:
            raise LanceError(f"{directory}: must not exist or be an empty directory")
    if with_spark is None:
        with_spark = importlib.util.find_spec("pyspark") is not None
    usual = signal.signal(signal.SIGTERM, _exit)
    try:
        with tempfile.TemporaryDirectory(prefix="lance-demo-") as temporary:
            run(directory or Path(temporary), records, with_spark=with_spark)
    finally:
        signal.signal(signal.SIGTERM, usual)
    kept = directory and f"; look around: lance-spark check {directory / 'data'}"
    print(f"all of it as promised{kept or ''}")


def _exit(number: int, frame: FrameType | None) -> None:
    # Cleans up after SIGTERM as after Ctrl-C.
    sys.exit(128 + number)
