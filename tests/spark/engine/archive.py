"""Write the classes that Spark loads into one file, from which a JVM maps them.

    python -m tests.spark.engine.archive

Loading and checking them is half of what the start of a session takes, and the tests
start two dozen JVMs. `make test` runs this once. A JVM whose jars are others by now, or
that is another one, does without; so do tests where the file is missing.
"""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

from lance_spark.spark import local
from lance_spark.testing import run_broker
from tests.spark.engine.session import ARCHIVE, MASTER, make_environment

PATIENCE_S = 300


def main() -> None:
    """Have a session do some of everything, and archive what it has loaded."""
    ARCHIVE.unlink(missing_ok=True)
    # The JVM tells which classes it leaves out, and why.
    options = f"{local.JAVA_OPTIONS} -Xlog:disable -XX:ArchiveClassesAtExit={ARCHIVE}"
    settings = {"spark.master": MASTER, "spark.driver.extraJavaOptions": options}
    with (
        tempfile.TemporaryDirectory() as name,
        run_broker() as broker,
        local.run_session(
            name, settings=settings, environment=make_environment()
        ) as spark,
    ):
        there = {"servers": broker.address}
        rows = spark.range(100).selectExpr("string(id) value", "string(id % 3) key")
        rows.write.format("lance").options(**there, topic="in").mode("append").save()
        read = spark.read.format("lance").options(**there, topic="in").load()
        assert read.where("offset >= 0").groupBy("key").count().count() == 3
        stream = spark.readStream.format("lance").options(**there, topic="in")
        writer = stream.option("startingOffsets", "earliest").load().writeStream
        writer = writer.format("lance").options(**there, topic="out")
        writer = writer.option("checkpointLocation", str(Path(name) / "checkpoint"))
        assert writer.trigger(availableNow=True).start().awaitTermination(PATIENCE_S)
        gateway: Any = spark.sparkContext._gateway
    # The JVM ends with its input, and writes before it does.
    gateway.shutdown()
    gateway.proc.stdin.close()
    gateway.proc.wait(PATIENCE_S)


if __name__ == "__main__":
    main()
