"""The pages on Spark: snippets run and print what is shown, tables are the code's."""

from __future__ import annotations

import ast
import io
import re
from collections.abc import Iterator
from contextlib import redirect_stdout
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from lance_spark.errors import OptionError
from lance_spark.spark.setting import OPTIONS, Scope, render_options
from tests.test_docs import ROOT, read, rows_of

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

# Fenced blocks of any kind.
_BLOCK = re.compile(r"^```.*?^```$", re.MULTILINE | re.DOTALL)
# A Python block, and what it prints if a text block comes right behind it.
_SHOWN = re.compile(
    r"^```python\n(.*?)^```\n(?:\n```text\n(.*?)^```$)?", re.MULTILINE | re.DOTALL
)


def run_and_compare(page: str) -> None:
    """Run the Python blocks of a page, and compare what they print with the page."""
    names: dict[str, Any] = {}
    for number, (source, shown) in enumerate(_SHOWN.findall(read(page)), 1):
        printed = io.StringIO()
        with redirect_stdout(printed):
            exec(compile(source, f"{page} snippet {number}", "exec"), names)
        if shown:
            assert is_shown(printed.getvalue(), shown), printed.getvalue()


def is_shown(printed: str, shown: str) -> bool:
    """Compare, apart from Spark's numbers of columns; `...` is any number of lines."""
    lines = [re.sub(r"#\d+L?", "#", line).rstrip() for line in printed.splitlines()]
    pattern = "".join(
        r"(?:.*\n)*" if line == "..." else re.escape(line.rstrip()) + r"\n"
        for line in shown.splitlines()
    )
    text = "\n".join(lines).strip("\n")
    return re.fullmatch(pattern, f"{text}\n") is not None


@pytest.fixture
def tidied(spark: SparkSession) -> Iterator[None]:
    """Leave the session that all tests share as it was, without settings and views."""
    before = dict(spark.conf.getAll)
    yield
    for name, value in spark.conf.getAll.items():
        if name not in before:
            spark.conf.unset(name)
        elif before[name] != value:
            spark.conf.set(name, before[name])
    for table in spark.catalog.listTables():
        spark.catalog.dropTempView(table.name)


@pytest.mark.usefixtures("tidied")
@pytest.mark.parametrize(
    "page",
    [
        "README.md",
        "docs/index.md",
        "docs/reading.md",
        "docs/writing.md",
        "docs/streaming.md",
        "docs/protocols.md",
        "docs/rustlog.md",
        "docs/kimberlite.md",
        "docs/tank.md",
    ],
)
def test_spark_snippets_run_and_print_what_is_shown(
    page: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # This is not where the JVM is: snippets name no relative path to it.
    monkeypatch.chdir(tmp_path)
    run_and_compare(page)


def section_of(page: str, heading: str) -> str:
    """Return what is below a heading of the second level."""
    return read(page).partition(f"\n## {heading}\n")[2].partition("\n## ")[0]


@pytest.mark.parametrize(
    ("page", "name"), [("docs/reading.md", "read"), ("docs/writing.md", "write")]
)
def test_option_tables_are_those_of_the_code(page: str, name: str) -> None:
    table = section_of(page, "Options").partition(f"<!-- options:{name} -->\n")[2]
    table = table.partition("<!-- /options -->")[0].strip()
    assert table == render_options(Scope[name.upper()])


@pytest.mark.parametrize("page", ["docs/reading.md", "docs/writing.md"])
def test_prose_names_options_that_there_are(page: str) -> None:
    prose = _BLOCK.sub("", read(page))
    options = {option.name: option for option in OPTIONS}
    named = set(re.findall(r"`([a-z]+[A-Z]\w*)`", prose)) - {"foreachBatch"}
    assert named and named <= set(options)
    given = re.findall(r"`(\w+)=([\w-]+)`", prose)
    assert given
    for name, value in given:
        options[name].read(value)


def test_columns_of_a_read_are_those_of_the_code() -> None:
    from pyspark.sql.types import StructType

    from lance_spark.spark.schema import TOPICS_SCHEMA, project
    from tests.spark.reading import ROW_COLUMNS

    table = rows_of("docs/reading.md", "Columns")
    with pytest.raises(OptionError) as told:
        project(StructType())
    listed = ", ".join(f"{name} {row[0]}" for name, row in table.items())
    assert str(told.value) == f"the schema names no column; there are {listed}"
    assert tuple(table)[: len(ROW_COLUMNS)] == ROW_COLUMNS
    topics = rows_of("docs/reading.md", "Topics as rows")
    assert list(topics) == TOPICS_SCHEMA.names
    for field in TOPICS_SCHEMA:
        kind = field.dataType.simpleString().partition("<")[0]
        assert topics[field.name][0] == kind


def test_columns_of_a_write_are_those_of_the_code() -> None:
    from pyspark.sql.types import StringType, StructType

    from lance_spark.spark.schema import check_write_schema

    table = list(rows_of("docs/writing.md", "Columns of a write"))
    with pytest.raises(OptionError) as told:
        check_write_schema(StructType().add("x", StringType()), topic_option=True)
    listed = ", ".join(table[:-1])
    assert str(told.value).endswith(f"the columns of a write are {listed}")
    for name in table[-1].split("`, `"):
        row = StructType().add("value", StringType()).add(name, StringType())
        check_write_schema(row, topic_option=True)


# Where an f-string has a value.
_HOLE = "\0"


@lru_cache
def find_texts() -> frozenset[str]:
    """Give all texts of the package, with holes where values are put in."""
    texts = set()
    for path in (ROOT / "lance_spark").rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.JoinedStr):
                parts = [
                    str(part.value) if isinstance(part, ast.Constant) else _HOLE
                    for part in node.values
                ]
                texts.add("".join(parts))
            elif isinstance(node, ast.Constant) and isinstance(node.value, str):
                texts.add(node.value)
    return frozenset(texts)


@pytest.mark.parametrize(
    ("page", "heading"),
    [
        ("docs/reading.md", "Troubleshooting"),
        ("docs/writing.md", "Errors"),
        ("docs/streaming.md", "Errors"),
    ],
)
def test_error_texts_are_those_of_the_code(page: str, heading: str) -> None:
    table = section_of(page, heading).partition("| text |")[2].partition("\n\n")[0]
    shown = re.findall(r"^\| `([^`]+)` \|", table, re.MULTILINE)
    assert len(shown) >= 8
    known = find_texts()
    for text in shown:
        pattern = re.compile(re.escape(text).replace("…", ".*"), re.DOTALL)
        assert any(map(pattern.search, known)), text


def test_failures_of_streams_have_texts_of_the_code() -> None:
    """What is seen is in the second column; Spark says the rest itself."""
    rows = section_of("docs/streaming.md", "What happens when").splitlines()[4:]
    seen = [row.split(" | ")[1] for row in rows if row.count(" | ") == 2]
    assert len(seen) >= 15
    texts = [text for cell in seen for text in re.findall(r"`([^`]+)`", cell)]
    shown = [text for text in texts if " " in text]
    assert len(shown) >= 10
    known = find_texts()
    for text in shown:
        # A reason is put into the text of a loss: its parts are texts of their own.
        for part in filter(None, map(str.strip, text.split("…"))):
            assert any(part in one for one in known), text


def test_progress_fields_are_those_of_the_code() -> None:
    from lance_spark.spark.watch import Lag

    section = section_of("docs/streaming.md", "Progress")
    names = re.findall(r"^\| (`.*?) \|", section, re.MULTILINE)
    listed = re.findall(r"`(\w+)`", " ".join(names))
    given = Lag(1).to_document(None, lost=0)
    assert listed == ["partitions", *given]
