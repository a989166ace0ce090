"""The page of options: tables written from the code, errors as they are."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from lance_spark.spark.options import check_options
from lance_spark.spark.setting import OPTIONS, Scope, render_options
from tests.each import each
from tests.spark.given import refused

ROOT = Path(__file__).parent.parent.parent
PAGE = ROOT / "docs" / "options.md"
SCRIPT = ROOT / "scripts" / "write_options.py"

_TABLE = re.compile(r"<!-- options:(\w+) -->\n(.*?)<!-- /options -->", re.DOTALL)


def run_script(page: Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(SCRIPT), str(page)]
    return subprocess.run(command, capture_output=True, text=True, timeout=60)


def test_tables_are_those_of_the_code() -> None:
    found = _TABLE.findall(PAGE.read_text(encoding="utf-8"))
    tables = {name: table.strip() for name, table in found}
    remedy = "run scripts/write_options.py"
    scopes = {
        "all": Scope.ALL,
        "read": Scope.READ,
        "stream": Scope.STREAM_READ,
        "write": Scope.WRITE,
    }
    assert set(tables) == set(scopes)
    for name, table in tables.items():
        assert table == render_options(scopes[name]), remedy


def test_script_writes_the_tables_anew(tmp_path: Path) -> None:
    page = tmp_path / "options.md"
    whole = PAGE.read_text(encoding="utf-8")
    page.write_text(whole.replace("`127.0.0.1:1992`", "`elsewhere`"), encoding="utf-8")
    assert page.read_text(encoding="utf-8") != whole
    done = run_script(page)
    assert (done.returncode, done.stderr) == (0, "")
    assert page.read_text(encoding="utf-8") == whole


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("No table.\n", "no <!-- options:NAME -->"),
        ("<!-- options:al -->\n<!-- /options -->\n", "no table al; there are all"),
    ],
)
def test_script_misses_a_place(tmp_path: Path, text: str, said: str) -> None:
    page = tmp_path / "options.md"
    page.write_text(text)
    done = run_script(page)
    assert done.returncode == 1 and said in done.stderr
    assert page.read_text() == text


def shown_errors() -> list[tuple[str, str]]:
    """Take the table of mistakes apart: what is given, and the error."""
    section = PAGE.read_text(encoding="utf-8").partition("\n## Mistakes\n")[2]
    return re.findall(r"^\| (`.*`) \| (.*) \|$", section, re.MULTILINE)


@each(("given", "said"), shown_errors())
def test_errors_are_as_the_page_shows(given: str, said: str) -> None:
    pairs = [text.partition("=") for text in re.findall(r"`([^`]+)`", given)]
    assert refused(check_options, {name: value for name, _, value in pairs}) == said


def test_page_shows_errors() -> None:
    assert len(shown_errors()) >= 10


def test_prose_names_options_that_there_are() -> None:
    prose = _TABLE.sub("", PAGE.read_text(encoding="utf-8"))
    names = set(re.findall(r"`([a-z]+[A-Z]\w*)`", prose))
    assert names <= {option.name for option in OPTIONS}
