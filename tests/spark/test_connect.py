"""Spark Connect: the client has no JVM, and the server finds the data source."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from lance_spark.broker import EmbeddedBroker
from tests.spark.engine import connect_job
from tests.spark.engine.daemon import run_script

ROWS = connect_job.ROWS
OTHERS = ("rustlog", "kimberlite", "fluvio", "tank")


@pytest.fixture(scope="module")
def found(connect: str, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """What a client has found; one does it all, as each takes seconds to start."""
    script = Path(connect_job.__file__)
    directory = tmp_path_factory.mktemp("client")
    listeners = dict.fromkeys(OTHERS, "127.0.0.1:0")
    with EmbeddedBroker(fsync="none", **listeners) as broker:
        others = [f"{name}={broker.address_of(name)}" for name in OTHERS]
        printed = run_script(
            *(script, connect, broker.address, "events", *others), directory=directory
        )
    results: dict[str, Any] = json.loads(printed.splitlines()[-1])
    return results


def test_rows_are_written_and_read(found: dict[str, Any]) -> None:
    assert found["read"] == [ROWS, sum(range(ROWS))]


def test_rows_are_read_by_a_view(found: dict[str, Any]) -> None:
    assert found["viewed"] == [ROWS, sum(range(ROWS))]


def test_other_formats_are_found(found: dict[str, Any]) -> None:
    """Each row is there; a task that Spark runs a copy of writes its rows twice."""
    assert found["others"] == [ROWS] * len(OTHERS)


def test_a_schema_selects_columns(found: dict[str, Any]) -> None:
    assert found["columns"] == ["offset", "value"]
    assert found["first"] == {"offset": 0, "value": "0"}


def test_errors_arrive_with_their_text(found: dict[str, Any]) -> None:
    assert "OptionError" in found["misspelt"]
    assert "did you mean topic" in found["misspelt"]
    assert "'gone'" in found["missing"]
    assert "value" in found["no value"] and "OptionError" in found["no value"]


def test_the_source_can_be_registered(found: dict[str, Any]) -> None:
    assert found["registered"] == ROWS
