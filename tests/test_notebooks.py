"""The notebooks run from clean, are quiet, and show what is committed with them.

Kernels have a JVM each, and run two at a time in processes of their own. Of what they
show, the parts that do not depend on time are compared with what is committed.
"""

from __future__ import annotations

import ast
import base64
import os
import re
import struct
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import nbformat
import pytest

from tests.spark.engine.session import JAVA_OPTIONS, make_warm_environment
from tests.test_docs import run_snippets

ROOT = Path(__file__).parent.parent
NOTEBOOKS = {path.stem: path for path in sorted(ROOT.glob("notebooks/*.ipynb"))}
NAMES = tuple(NOTEBOOKS)
# A deadline, not a measure: all of it takes a minute or two.
DEADLINE_S = 900
AT_ONCE = 2

# Texts that each has to show, whatever the machine.
SHOWN = {
    "01-quickstart": (
        r"<td[^>]*>readings</td><td[^>]*>864</td>",
        r"432 of 864 records start at byte [\d,]+ or later",
    ),
    "02-streaming-dashboard": (
        r"query pages: running, \d+ batches, 31,501 rows",
        r"(?s)clicks</td><td[^>]*>31,501<.*pages</td><td[^>]*>31,501<",
    ),
    "03-exactly-once-under-fire": (
        r"([\d,]+) records in numbers, [\d,]+ different numbers\n\1 records in copies\n"
        r"0 lost\n0 doubled\n0 changed\n",
    ),
    "04-from-kafka-to-lance": (
        "Kafka's source has it, and here it is called topic",
        "did you mean failOnDataLoss",
        r"3 batches, 8,000 rows",
        r"a consumer has read [\d,]+ of 358,890 bytes",
    ),
    "05-one-log-five-protocols": (
        "4,800 orders written by fluvio",
        "all the same",
        "48 hours by lance; kimberlite has the same values: True",
    ),
}

# Of this machine or another: home directories, temporary ones, installed packages.
_MACHINE = re.compile(r"/(?:home|root|Users|work|tmp|var)/|site-packages|\\Users\\")
_NOISE = re.compile(r"\bWARN(?:ING)?\b|Traceback|Deprecat|\[Stage \d")
_PNG = b"\x89PNG\r\n\x1a\n"
_LINK = re.compile(r"\]\(([^)#\s]+)[^)]*\)")


def read(path: Path) -> Any:
    """Read a notebook."""
    return nbformat.read(path, as_version=4)


def code_cells(notebook: Any) -> list[Any]:
    """Return the cells with code."""
    return [cell for cell in notebook.cells if cell.cell_type == "code"]


def kinds(cell: Any) -> set[str]:
    """Say what kinds of output a cell has: streams by name, others by their types."""
    found: set[str] = set()
    for output in cell.outputs:
        found |= {output.name} if "name" in output else {*output.get("data", {})}
    return found


def texts(notebook: Any) -> str:
    """Return all texts that are shown, HTML among them, and no picture."""
    parts = []
    for cell in code_cells(notebook):
        for output in cell.outputs:
            parts.append(output.get("text", ""))
            data = output.get("data", {})
            parts += [data[kind] for kind in data if kind.startswith("text/")]
    return "".join(parts)


def pictures(notebook: Any) -> list[bytes]:
    """Return the pictures that are shown."""
    return [
        base64.b64decode(output.data["image/png"])
        for cell in code_cells(notebook)
        for output in cell.outputs
        if "image/png" in output.get("data", {})
    ]


def find_faults(name: str, notebook: Any) -> list[str]:
    """Say what is wrong with what a notebook shows."""
    faults = []
    for number, cell in enumerate(code_cells(notebook), 1):
        if cell.execution_count != number:
            faults.append(f"cell {number} was run as number {cell.execution_count}")
        if any(output.output_type == "error" for output in cell.outputs):
            faults.append(f"cell {number} has failed")
        if "stderr" in kinds(cell):
            faults.append(f"cell {number} says something on stderr")
    shown = texts(notebook)
    for pattern in (_MACHINE, _NOISE):
        faults += [f"shows {found[0]!r}" for found in pattern.finditer(shown)]
    faults += [f"lacks {text!r}" for text in SHOWN[name] if not re.search(text, shown)]
    if not pictures(notebook):
        faults.append("has no picture")
    return faults


# What is committed.


def test_all_are_listed() -> None:
    assert set(NAMES) == set(SHOWN)
    listed = (ROOT / "notebooks" / "README.md").read_text(encoding="utf-8")
    for name in NAMES:
        assert f"[{name}]({name}.ipynb)" in listed


@pytest.mark.parametrize("name", NAMES)
def test_what_is_committed_is_a_clean_run(name: str) -> None:
    assert find_faults(name, read(NOTEBOOKS[name])) == []


@pytest.mark.parametrize("name", NAMES)
def test_pictures_are_pictures(name: str) -> None:
    for picture in pictures(read(NOTEBOOKS[name])):
        assert picture.startswith(_PNG)
        width, height = struct.unpack(">II", picture[16:24])
        assert 600 <= width <= 1200 and 200 <= height <= 800
        # What has one colour only takes a few hundred bytes.
        assert len(picture) > 5000


@pytest.mark.parametrize("name", NAMES)
def test_prose_explains_and_links_lead_somewhere(name: str) -> None:
    cells = read(NOTEBOOKS[name]).cells
    assert cells[0].cell_type == "markdown" and cells[0].source.startswith("# ")
    prose = [cell.source for cell in cells if cell.cell_type == "markdown"]
    assert len(prose) >= 6
    for text in prose:
        for link in _LINK.findall(text):
            assert (ROOT / "notebooks" / link).exists(), link


@pytest.mark.parametrize("name", NAMES)
def test_what_is_started_is_stopped(name: str) -> None:
    cells = code_cells(read(NOTEBOOKS[name]))
    for text in ("spark.stop()", "directory.cleanup()", "broker."):
        assert text in cells[-1].source
    for cell in cells:
        ast.parse(cell.source)


@pytest.mark.parametrize(
    ("output", "fault"),
    [
        ({"name": "stderr", "text": "x"}, "stderr"),
        ({"name": "stdout", "text": "in /tm!p/x"}, "shows"),
        ({"name": "stdout", "text": "WARNING: x"}, "shows"),
    ],
)
def test_faults_are_found(output: dict[str, str], fault: str) -> None:
    notebook = read(NOTEBOOKS[NAMES[0]])
    text = output["text"].replace("!", "")
    added = nbformat.v4.new_output("stream", name=output["name"], text=text)
    code_cells(notebook)[0].outputs.append(added)
    (found,) = find_faults(NAMES[0], notebook)
    assert fault in found


def test_a_notebook_that_was_not_run_is_found() -> None:
    notebook = read(NOTEBOOKS[NAMES[0]])
    for cell in code_cells(notebook):
        cell.outputs, cell.execution_count = [], None
    faults = find_faults(NAMES[0], notebook)
    assert "has no picture" in faults and len(faults) > len(code_cells(notebook))


def test_snippets_of_the_page_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    run_snippets("docs/notebooks.md")


# What comes of it when it is run.


def run(name: str, directory: Path) -> Path:
    """Run a notebook from clean, and return where it is with what it shows."""
    # Workers and the JVM start quicker, as in the session that tests share.
    quick = {**make_warm_environment(), "SPARK_SUBMIT_OPTS": JAVA_OPTIONS}
    done = subprocess.run(
        [sys.executable, ROOT / "scripts/run_notebooks.py", "--to", directory, name],
        env={**os.environ, **quick},
        capture_output=True,
        text=True,
        timeout=DEADLINE_S,
    )
    assert done.returncode == 0, done.stderr
    return directory / f"{name}.ipynb"


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Future[Path]]]:
    """Run all notebooks, some at once: they wait for most of their time."""
    directory = tmp_path_factory.mktemp("notebooks")
    with ThreadPoolExecutor(AT_ONCE) as pool:
        yield {name: pool.submit(run, name, directory) for name in NAMES}


@pytest.mark.spark
@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
def test_runs_from_clean(name: str, runs: dict[str, Future[Path]]) -> None:
    notebook = read(runs[name].result(len(NAMES) * DEADLINE_S))
    assert find_faults(name, notebook) == []
    before, after = code_cells(read(NOTEBOOKS[name])), code_cells(notebook)
    assert [cell.source for cell in before] == [cell.source for cell in after]
    assert [kinds(cell) for cell in before] == [kinds(cell) for cell in after]
