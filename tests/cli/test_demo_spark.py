"""How the demo runs Spark: lines of a process become steps, its end an error."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from lance_spark.cli.demo_spark import has_spark, run_spark
from lance_spark.errors import LanceError

_SCRIPT = """
import sys, time
servers, topic = sys.argv[1:]
print(f"read\\t{topic} at {servers}", flush=True)
print("\\tand more", flush=True)
"""


@pytest.fixture
def module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Make a place for a module that stands in for the real one."""
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    return tmp_path / "stand_in.py"


def run(*, timeout_s: float = 60.0) -> list[tuple[str, str]]:
    said: list[tuple[str, str]] = []
    run_spark(
        "here:1",
        "events",
        lambda *line: said.append(line),
        module="stand_in",
        timeout_s=timeout_s,
    )
    return said


def test_steps_are_told(module: Path) -> None:
    module.write_text(_SCRIPT)
    assert run() == [("read", "events at here:1"), ("", "and more")]


@pytest.mark.parametrize(
    ("end", "text"),
    [
        ("print('error\\tno such topic'); sys.exit(1)", "no such topic; to see all"),
        ("sys.exit(3)", "it ended with 3"),
    ],
)
def test_its_end_is_the_demos(module: Path, end: str, text: str) -> None:
    module.write_text(f"{_SCRIPT}\n{end}\n")
    with pytest.raises(LanceError, match=text):
        run()


def test_numbers_of_a_moment_are_shown(
    module: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """They are no steps, and those behind them start on a line of their own."""
    names = '"produced": 9, "written": 7, "rate": 3, "batch": 1, "behind_bytes": 20'
    live = f"print('live\\t{{{names}}}', flush=True)"
    module.write_text(f"{_SCRIPT}\n{live}\nprint('compare\\tall there')\n")
    assert run()[2:] == [("compare", "all there")]
    head, line = capsys.readouterr().out.splitlines()
    assert head.startswith("  live") and line.split()[-3:] == ["20", "bytes", "1"]


def test_one_that_hangs_is_ended(module: Path) -> None:
    module.write_text(f"{_SCRIPT}\ntime.sleep(600)\n")
    with pytest.raises(LanceError, match="it ended with -9"):
        run(timeout_s=1.0)


def test_spark_is_looked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    assert has_spark()
    monkeypatch.setitem(sys.modules, "pyspark", None)
    assert not has_spark()
