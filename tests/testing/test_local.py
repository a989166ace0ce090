"""The small local Spark (lance_spark/spark/local.py), which the fixtures run."""

from __future__ import annotations

import os
import sys
import sysconfig
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from lance_spark.errors import OptionError
from lance_spark.spark import local

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def test_settings_keep_files_in_the_directory(tmp_path: Path) -> None:
    settings = local.make_settings(tmp_path)
    inside = {name for name, text in settings.items() if str(tmp_path) in text}
    assert inside == {"spark.local.dir", "spark.sql.warehouse.dir"}
    assert all(isinstance(text, str) for text in settings.values())


def test_workers_are_this_python_with_its_modules(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    standard = sysconfig.get_path("stdlib")
    missing, here = str(tmp_path / "missing"), str(tmp_path)
    sites = [sysconfig.get_path("purelib"), f"{standard}/lib-dynload"]
    monkeypatch.setattr(sys, "path", [here, standard, *sites, missing, here])
    variables = local.make_environment()
    assert variables["PYSPARK_PYTHON"] == sys.executable
    assert variables["PYTHONPATH"] == str(tmp_path.resolve())


def test_current_directory_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A worker's is another one."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [""])
    assert local.make_environment()["PYTHONPATH"] == str(tmp_path.resolve())


def test_without_pyspark(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # This is how Python remembers that a module is not there.
    monkeypatch.setitem(sys.modules, "pyspark.sql", None)
    with pytest.raises(OptionError, match=r"pip install 'lance-spark\[spark\]'"):
        local.start_session(tmp_path)


def test_session_is_as_asked_for(spark: SparkSession) -> None:
    # What conftest.py asks for, and what is the kit's.
    assert spark.sparkContext.master == "local[2,3]"
    assert spark.conf.get("spark.sql.shuffle.partitions") == "2"
    assert spark.conf.get("spark.sql.session.timeZone") == "UTC"


def test_environment_is_left_as_it_was(spark: SparkSession) -> None:
    """The JVM has it, and nobody else."""
    assert "warm" not in os.environ.get("PYTHONPATH", "")
    java = spark.sparkContext._jvm.System.getenv("PYTHONPATH")
    assert "warm" in java


def test_there_is_one_session(spark: SparkSession, tmp_path: Path) -> None:
    with (
        pytest.raises(OptionError, match="this process has a Spark session already"),
        local.run_session(tmp_path),
    ):
        pass
    assert spark.range(1).count() == 1
