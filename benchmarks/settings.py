"""Spark's own settings: which of them lower the floor of small queries.

Those that a session can change are changed in one session, in turns. Each of the others
is set in a session of its own, in turns with sessions that have none of them, round by
round. A session runs the same queries from topic to topic, and a few jobs; every table
has ratios to what Spark does as it is shipped.
"""

from __future__ import annotations

import compileall
import json
import shutil
import tempfile
import warnings
import zipfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from py_compile import PycInvalidationMode
from statistics import median

from benchmarks._child import Child
from benchmarks._session import run_broker, run_session
from benchmarks._settings_session import (
    BATCH,
    FIRST,
    LARGE_READ,
    LARGE_WRITE,
    NEXT,
    READ,
    WRITE,
    Session,
)
from benchmarks._turns import collect
from benchmarks.report import Report, format_ms, format_ratio
from lance_spark.client import LanceClient

_STREAMING = "spark.sql.streaming"
_MANAGER = (
    "org.apache.spark.sql.execution.streaming.checkpointing."
    "FileSystemBasedCheckpointFileManager"
)
# What is measured, in the order of the table's columns.
COLUMNS = (NEXT, BATCH, READ, WRITE, LARGE_READ, LARGE_WRITE)

# Seconds, by what was measured.
_Seconds = Mapping[str, float]


@dataclass(frozen=True)
class Setting:
    """What is set in a session.

    Attributes:
        name: what the table calls it.
        settings: of the session.
        has_bytecode: whether the archive that Spark's Python processes import pyspark
            from has bytecode.
    """

    name: str
    settings: dict[str, str] = field(default_factory=dict)
    has_bytecode: bool = False

    @classmethod
    def of(cls, key: str, value: str) -> Setting:
        """Make one that sets a value; a class goes by its name in the table."""
        shown = f"…{value.rpartition('.')[2]}" if "." in value else value
        return cls(f"`{key}={shown}`", {key: value})


DEFAULT = Setting("as Spark is shipped")
_CHECKPOINTS = (
    Setting.of(f"{_STREAMING}.checkpointFileManagerClass", _MANAGER),
    Setting.of(f"{_STREAMING}.checkpoint.fileChecksum.enabled", "false"),
)
# A query takes these from its session when it starts.
CHANGED = (
    *_CHECKPOINTS,
    Setting(
        "both of them",
        {key: value for each in _CHECKPOINTS for key, value in each.settings.items()},
    ),
    Setting.of("spark.sql.adaptive.enabled", "false"),
    Setting.of("spark.sql.execution.arrow.maxRecordsPerBatch", "50000"),
)
# These hold for a JVM and the Python processes that it starts.
STARTED = (
    Setting("bytecode in `pyspark.zip`", has_bytecode=True),
    Setting.of("spark.python.unix.domain.socket.enabled", "true"),
    Setting.of("spark.buffer.size", "1048576"),
    Setting.of("spark.python.worker.reuse", "false"),
)


def run(report: Report) -> None:
    """Measure."""
    title = "Time of queries and jobs, with a setting that {}, to that without it:"
    with run_broker() as broker, tempfile.TemporaryDirectory() as name:
        # Even, so that each order comes as often as the other.
        rounds = 1 if report.quick else 2
        bench = _Bench(broker.address, Path(name), quick=report.quick)
        report.add_table(
            ["setting", *COLUMNS],
            list_ratios(COLUMNS, bench.compare_changed(rounds)),
            title.format("a session can change"),
        )
        columns = (FIRST, *COLUMNS)
        report.add_table(
            ["setting", *columns],
            list_ratios(columns, bench.compare_started(rounds)),
            title.format("a session starts with"),
        )


def list_ratios(
    columns: Sequence[str], found: Mapping[str, Sequence[_Seconds]]
) -> list[list[str]]:
    """Write times of the default, and ratios of the others to it, round by round."""
    default = found[DEFAULT.name]
    times = [median(each[column] for each in default) for column in columns]
    rows = [[DEFAULT.name, *map(format_ms, times)]]
    for name in [name for name in found if name != DEFAULT.name]:
        pairs = list(zip(found[name], default, strict=True))
        ratios = [median(one[c] / other[c] for one, other in pairs) for c in columns]
        rows.append([name, *map(format_ratio, ratios)])
    return rows


@dataclass(frozen=True)
class _Bench:
    address: str
    directory: Path
    quick: bool

    def compare_changed(self, rounds: int) -> dict[str, list[_Seconds]]:
        """Compare settings in one session."""
        with LanceClient(self.address) as client, run_session() as spark:
            session = Session(spark, client, self.directory, quick=self.quick)

            def measure(setting: Setting) -> _Seconds:
                for key, value in setting.settings.items():
                    spark.conf.set(key, value)
                try:
                    return session.measure()
                finally:
                    for key in setting.settings:
                        spark.conf.unset(key)

            every = (DEFAULT, *CHANGED)
            calls = {each.name: partial(measure, each) for each in every}
            return collect(calls, rounds)

    def compare_started(self, rounds: int) -> dict[str, list[_Seconds]]:
        """Compare settings in sessions of their own."""
        home = make_home(self.directory / "home")

        def measure(setting: Setting) -> _Seconds:
            arguments = ["-m", "benchmarks._settings_session", self.address]
            arguments += [str(self.directory), str(int(self.quick))]
            arguments += [json.dumps(setting.settings)]
            environment = {"SPARK_HOME": str(home)} if setting.has_bytecode else {}
            with Child(arguments, environment=environment) as child:
                (everything,) = child.read()
                times: _Seconds = child.ask(everything)
                return times

        measure(DEFAULT)  # What the system reads for the first time does not count.
        every = (DEFAULT, *STARTED)
        calls = {each.name: partial(measure, each) for each in every}
        # Each session warms up by itself.
        return collect(calls, rounds, warm_up=False)


def make_home(home: Path) -> Path:
    """Make a home of Spark like the one that is installed, with bytecode in its zip."""
    import pyspark

    installed = Path(pyspark.__file__).parent
    library = home / "python" / "lib"
    library.mkdir(parents=True)
    for part in installed.iterdir():
        if part.name in ("bin", "jars", "sbin", "data"):
            (home / part.name).symlink_to(part)
    for archive in (installed / "python" / "lib").iterdir():
        if archive.name == "pyspark.zip":
            add_bytecode(archive, library / archive.name)
        else:
            (library / archive.name).symlink_to(archive)
    return home


def add_bytecode(archive: Path, to: Path) -> None:
    """Copy an archive of modules, and put the bytecode of each beside it."""
    with tempfile.TemporaryDirectory() as directory:
        with zipfile.ZipFile(archive) as packed:
            packed.extractall(directory)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", SyntaxWarning)  # Of pyspark's own tests.
            # Beside the source and never compared with it: an archive does not change.
            compileall.compile_dir(
                directory,
                quiet=1,
                legacy=True,
                invalidation_mode=PycInvalidationMode.UNCHECKED_HASH,
            )
        shutil.make_archive(str(to.with_suffix("")), "zip", directory)
