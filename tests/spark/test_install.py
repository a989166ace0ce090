"""What `pip install` gives: Spark finds the source, and pays nothing for it unused."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import zipfile
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

import lance_spark
from lance_spark.broker import EmbeddedBroker
from lance_spark.spark.source import SOURCES, LogDataSource
from tests.spark.engine.session import ROOT

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_FORMATS = [source.protocol for source in SOURCES]
_PACKAGES = ("lance_spark", *(f"pyspark_{name}" for name in _FORMATS))

# What Spark runs in a worker when a session meets its first data source; the answer to
# the JVM is left out.
_LOOK_UP = """
import io, json, sys
from pyspark.sql.worker.lookup_data_sources import _main
before, answer = set(sys.modules), io.BytesIO()
_main(io.BytesIO(), answer)
source = sys.modules["lance_spark.spark.source"]
print(json.dumps({
    "is_found": all(name.encode() in answer.getvalue() for name in sys.argv[1:]),
    "file": source.__file__,
    "loaded": sorted(set(sys.modules) - before),
}))
"""


def look_up(directory: Path, **variables: str) -> dict[str, object]:
    """Look for data sources as Spark does, in a process of its own."""
    done = subprocess.run(
        [sys.executable, "-c", _LOOK_UP, *_FORMATS],
        cwd=directory,
        env={**os.environ, **variables},
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    found: dict[str, object] = json.loads(done.stdout)
    return found


# The source is looked up in every session of a machine that has it, used or not.
def test_looking_it_up_imports_next_to_nothing(tmp_path: Path) -> None:
    found = look_up(tmp_path, PYTHONPATH=str(ROOT))
    assert found["is_found"]
    assert found["loaded"] == [
        "lance_spark",
        "lance_spark.spark",
        "lance_spark.spark.source",
        *sorted(_PACKAGES[1:]),
    ]


def test_an_editable_install_is_found_from_anywhere(tmp_path: Path) -> None:
    # A module that can be imported is not enough: Spark lists the path's directories.
    assert look_up(tmp_path, PYTHONPATH="")["is_found"]


@pytest.mark.parametrize("source", SOURCES)
def test_the_module_has_what_spark_looks_for(source: type[LogDataSource]) -> None:
    module = import_module(f"pyspark_{source.protocol}")
    assert module.DefaultSource is source
    assert source.name() == source.protocol


def test_the_format_is_there_without_a_call(
    spark: SparkSession, broker: EmbeddedBroker, topic: str
) -> None:
    # Sessions share nothing that is registered by hand.
    session = spark.newSession()
    check_round_trip(session, broker, topic)
    listeners = {"rustlog": "127.0.0.1:0", "tank": "127.0.0.1:0"}
    with EmbeddedBroker(fsync="none", **listeners) as other:
        for name in listeners:
            check_round_trip(session, other, f"{topic}-{name}", name)


def test_the_format_can_be_registered(
    spark: SparkSession, broker: EmbeddedBroker, topic: str
) -> None:
    session = spark.newSession()
    lance_spark.register(session)
    check_round_trip(session, broker, topic)


def test_the_format_can_have_another_name(
    spark: SparkSession, broker: EmbeddedBroker, topic: str
) -> None:
    # Not in a session beside it: Spark looks names up in the one that is active.
    lance_spark.register(spark, name="another-name")
    check_round_trip(spark, broker, topic, "another-name")


def check_round_trip(
    session: SparkSession, broker: EmbeddedBroker, topic: str, name: str = "lance"
) -> None:
    """Write a row and read it."""
    is_lance = name not in ("rustlog", "tank")
    servers = broker.address if is_lance else broker.address_of(name)
    there = {"servers": servers, "topic": topic}
    rows = session.sql("select 'one' as value")
    rows.write.format(name).mode("append").options(**there).save()
    found = session.read.format(name).options(**there).load()
    assert [row["value"] for row in found.collect()] == [b"one"]


@pytest.mark.slow
def test_a_wheel_is_found(tmp_path: Path) -> None:
    # From a copy: the checkout may hold what earlier builds left.
    source, site = tmp_path / "source", tmp_path / "site"
    ignored = shutil.ignore_patterns("__pycache__", "*.so")
    for package in _PACKAGES:
        shutil.copytree(ROOT / package, source / package, ignore=ignored)
    for name in ("pyproject.toml", "setup.py", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, source)
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "wheel", "-q"]
    # The environment has what the build needs, so that no network is.
    pip += ["--no-build-isolation", "--no-deps", "-w", str(tmp_path), str(source)]
    subprocess.run(pip, check=True, capture_output=True, timeout=300)
    (wheel,) = tmp_path.glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        tops = {name.split("/")[0] for name in archive.namelist()}
        assert {top for top in tops if ".dist-info" not in top} == set(_PACKAGES)
        # A wheel of pure Python, or of a platform, is but unpacked.
        archive.extractall(site)
    found = look_up(tmp_path, PYTHONPATH=str(site))
    assert found["is_found"]
    assert str(found["file"]).startswith(str(site))
