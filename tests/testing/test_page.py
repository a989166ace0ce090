"""docs/testing.md and the example: their tests pass, and what they list is there."""

from __future__ import annotations

import ast
import re
import shutil
from pathlib import Path

import pytest

import lance_spark.testing
from lance_spark.testing import (
    Faults,
    Relay,
    ScratchBroker,
    ScratchTopic,
    plugin,
    run_broker,
)
from tests.test_docs import ROOT, blocks, read, rows_of
from tests.testing.inner import run_tests

PAGE = "docs/testing.md"
EXAMPLE = ROOT / "examples"


def list_tests(source: str) -> set[str]:
    """Name the tests of a file."""
    nodes = ast.walk(ast.parse(source))
    names = [node.name for node in nodes if isinstance(node, ast.FunctionDef)]
    return {name for name in names if name.startswith("test_")}


def listed(heading: str) -> set[str]:
    """Name what the first column of a table has."""
    rows = rows_of(PAGE, heading)
    assert rows and all(all(row) for row in rows.values())
    cells = [name for cell in rows for name in re.split(r"`, `", cell)]
    return {cell.partition("(")[0] for cell in cells}


def public(kind: type) -> set[str]:
    """Name what users may use of a class."""
    return {name for name in vars(kind) if not name.startswith("_")}


@pytest.mark.usefixtures("spark")
def test_the_tests_of_the_page_pass(tmp_path: Path) -> None:
    source = "\n\n".join(text for _, text in blocks(PAGE, "python"))
    (tmp_path / "test_of_the_page.py").write_text(source, encoding="utf-8")
    outcome = run_tests(tmp_path, tmp_path / "test_of_the_page.py")
    assert not outcome.failures, "\n".join(outcome.failures)
    assert outcome.outcomes == dict.fromkeys(list_tests(source), "passed")
    assert len(outcome.outcomes) >= 10


@pytest.mark.usefixtures("spark")
def test_the_tests_of_the_example_pass(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cuts: list[Relay] = []
    monkeypatch.setattr(Relay, "count_cut", lambda relay: cuts.append(relay))
    for name in ("testing_a_job.py", "tests/test_testing_a_job.py"):
        shutil.copy(EXAMPLE / name, tmp_path)
    tests = tmp_path / "test_testing_a_job.py"
    outcome = run_tests(tmp_path, tests)
    assert not outcome.failures, "\n".join(outcome.failures)
    names = list_tests(tests.read_text(encoding="utf-8"))
    assert outcome.outcomes == dict.fromkeys(names, "passed")
    assert len(cuts) == 3, "the faults that it asks for did not happen"


def test_the_example_runs_its_tests(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    called: list[list[str]] = []
    monkeypatch.setattr(pytest, "main", lambda given: called.append(given) or 0)
    names: dict[str, object] = {"__file__": str(EXAMPLE / "testing_a_job.py")}
    source = (EXAMPLE / "testing_a_job.py").read_text(encoding="utf-8")
    exec(compile(source, "testing_a_job.py", "exec"), names)
    assert names["main"]() == 0  # type: ignore[operator]
    assert Path(called[0][-1]).is_file()
    assert "test_testing_a_job.py" in capsys.readouterr().out


def test_the_message_is_what_is_shown() -> None:
    (shown,) = (t for _, t in blocks(PAGE, "text") if t.startswith("AssertionError"))
    with run_broker() as broker, pytest.raises(AssertionError) as told:
        topic = broker.topic("loud")
        topic.fill(["a", "b", "b", "x"])
        topic.assert_holds(["a", "b", "c"])
    assert shown == f"AssertionError: {told.value}\n"


def test_every_fixture_is_listed() -> None:
    table = rows_of(PAGE, "Fixtures")
    fixtures = {name for name in vars(plugin) if name.startswith("lance_")}
    assert set(table) == fixtures
    sessions = {name for name, row in table.items() if row[0] == "session"}
    assert sessions == {name for name in fixtures if name.startswith("lance_spark_")}


def test_every_name_is_listed() -> None:
    assert listed("Without pytest") == set(lance_spark.testing.__all__)
    assert listed("Faults") == public(Faults)
    assert listed("A topic") == public(ScratchTopic) | {"name"}
    # Who makes a broker closes it, and that is `run_broker`.
    there = public(ScratchBroker) - {"close"}
    given = {"address", "direct_address", "faults", "broker", "client"}
    assert listed("A broker") == there | given


def test_python_blocks_are_tests() -> None:
    for _, text in blocks(PAGE, "python"):
        assert list_tests(text), text
    assert "```python" in read(PAGE)
