"""Spark's own settings: which of them lower the floor of small queries.

Each is set in a session of its own, in turns with a session that has none of them. A
session runs the same queries from topic to topic, and a few jobs. Only ratios to the
session without settings of the same round count.
"""

from __future__ import annotations

import compileall
import json
import os
import shutil
import subprocess
import sys
import tempfile
import warnings
import zipfile
from dataclasses import dataclass, field
from pathlib import Path
from py_compile import PycInvalidationMode
from statistics import median

from benchmarks.report import Report, format_ratio
from benchmarks.spark import run_broker

_STREAMING = "spark.sql.streaming"
_MANAGER = (
    "org.apache.spark.sql.execution.streaming.checkpointing."
    "FileSystemBasedCheckpointFileManager"
)
# What a session measures, in the order in which it does.
_COLUMNS = (
    *("first query", "next query", "micro-batch"),
    *("small read", "small write", "large write"),
)


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


def _set(key: str, value: str, shown: str | None = None) -> Setting:
    return Setting(f"`{key}={shown or value}`", {key: value})


_DEFAULT = Setting("as Spark is shipped")
_SETTINGS = (
    Setting("bytecode in `pyspark.zip`", has_bytecode=True),
    _set(
        f"{_STREAMING}.checkpointFileManagerClass",
        _MANAGER,
        f"…{_MANAGER.rpartition('.')[2]}",
    ),
    _set(f"{_STREAMING}.checkpoint.fileChecksum.enabled", "false"),
    _set(f"{_STREAMING}.noDataMicroBatches.enabled", "false"),
    _set("spark.python.unix.domain.socket.enabled", "true"),
    _set("spark.sql.adaptive.enabled", "false"),
    _set("spark.sql.execution.arrow.maxRecordsPerBatch", "50000"),
    _set("spark.python.worker.reuse", "false"),
)


def run(report: Report) -> None:
    """Measure."""
    with run_broker() as address, tempfile.TemporaryDirectory() as name:
        directory = Path(name)
        home = make_home(directory / "home")
        order = [_DEFAULT, *_SETTINGS]
        found: dict[str, list[dict[str, float]]] = {each.name: [] for each in order}
        for _ in range(1 if report.quick else 4):
            for each in order:
                place = Path(tempfile.mkdtemp(dir=directory))
                times = _measure(address, place, each, home, quick=report.quick)
                found[each.name].append(times)
                shutil.rmtree(place)
            # What is always last would look best on a machine that gets quieter.
            order.reverse()
    report.add_table(
        ["setting", *_COLUMNS],
        [_list_times(found[_DEFAULT.name])]
        + [_list_ratios(each.name, found) for each in _SETTINGS],
        "Time with a setting, to that of a session without it:",
    )


def _list_times(rounds: list[dict[str, float]]) -> list[str]:
    times = [median(each[column] for each in rounds) for column in _COLUMNS]
    return [_DEFAULT.name, *(f"{each * 1000:.0f} ms" for each in times)]


def _list_ratios(name: str, found: dict[str, list[dict[str, float]]]) -> list[str]:
    pairs = list(zip(found[name], found[_DEFAULT.name], strict=True))
    ratios = [median(one[c] / other[c] for one, other in pairs) for c in _COLUMNS]
    return [name, *map(format_ratio, ratios)]


def _measure(
    address: str, directory: Path, setting: Setting, home: Path, *, quick: bool
) -> dict[str, float]:
    environment = dict(os.environ)
    if setting.has_bytecode:
        environment["SPARK_HOME"] = str(home)
    command = [sys.executable, "-m", "benchmarks._settings_session", address]
    done = subprocess.run(
        [*command, str(directory), str(int(quick)), json.dumps(setting.settings)],
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        check=True,
        timeout=1200,
    )
    times: dict[str, float] = json.loads(done.stdout)
    return times


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
