"""What the benchmarks compute: turns, medians, tables, and processes that measure."""

from __future__ import annotations

import ast
import os
import subprocess
import sys
import time
import zipfile
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pytest

from benchmarks import _spark_source, settings
from benchmarks.__main__ import find_benchmarks
from benchmarks._child import Child
from benchmarks._figures import read_process_s
from benchmarks._spark_source import make_batch, repeat_batch
from benchmarks._turns import Took, collect, measure, take_turns, touch_memory
from benchmarks.plot import parse_quantity, read_tables
from benchmarks.report import Report, format_ms, format_s
from benchmarks.spark import SMALL_ROWS, VALUES
from benchmarks.stream import _LANES, _WHOLE_LANES, _list_times
from tests.each import each

PAGE = Path(__file__).parent.parent / "docs" / "performance.md"


# Turns.


def test_medians_of_turns_that_count() -> None:
    turns: list[str] = []
    # The first of each is the round in which everything is slow.
    walls = {"a": [9.0, 3.0, 1.0, 2.0], "b": [9.0, 6.0, 4.0, 5.0]}

    def call(side: str) -> Took:
        turns.append(side)
        wall_s = walls[side].pop(0)
        return Took(wall_s, 10 * wall_s)

    took = measure({side: lambda side=side: call(side) for side in "ab"}, rounds=3)
    assert took == {"a": Took(2.0, 20.0), "b": Took(5.0, 50.0)}
    assert "".join(turns) == "abbaabba"


def test_what_warms_up_by_itself_counts_from_the_first_round() -> None:
    turns = list(take_turns("ab", 2, warm_up=False))
    assert turns == [("a", True), ("b", True), ("b", True), ("a", True)]
    numbers = iter(range(4))
    calls = {name: lambda: next(numbers) for name in "ab"}
    assert collect(calls, 2, warm_up=False) == {"a": [0, 3], "b": [1, 2]}


def test_memory_is_touched_and_given_back() -> None:
    page = os.sysconf("SC_PAGE_SIZE")

    def count_pages() -> int:
        statm = Path("/proc/self/statm")
        return int(statm.read_text().split()[1]) if statm.exists() else 0

    before = count_pages()
    touch_memory(64 * 1024 * 1024)
    assert (count_pages() - before) * page < 32 * 1024 * 1024


@pytest.mark.skipif(sys.platform != "linux", reason="clocks of processes are Linux's")
def test_processor_time_of_one_process() -> None:
    before_s = read_process_s(os.getpid())
    end_s = time.process_time() + 0.05
    while time.process_time() < end_s:
        pass
    assert read_process_s(os.getpid()) - before_s >= 0.05


# Processes that measure.

CHILD = """
from benchmarks._figures import answer, open_answers
answers = open_answers()
print("what a JVM says")
numbers = iter((1.5, 2.5))
answer(answers, {"a": lambda: next(numbers), "b": lambda: {"c": 3}})
"""


def test_a_child_measures_what_it_is_asked_for() -> None:
    with Child(["-c", CHILD]) as child:
        assert child.read() == ["a", "b"]
        assert [child.ask(name) for name in ("a", "b", "a")] == [1.5, {"c": 3}, 2.5]
        with pytest.raises(SystemExit, match="instead of answering") as ended:
            child.ask("a")
    assert str(ended.value).endswith("\nStopIteration\n")
    assert "what a JVM says" in str(ended.value)


def test_a_child_has_the_directory_and_the_variables_that_it_is_given(
    tmp_path: Path,
) -> None:
    program = "import json, os; print(json.dumps([os.getcwd(), os.environ['SAID']]))"
    with Child(["-c", program], directory=tmp_path, environment={"SAID": "x"}) as child:
        assert child.read() == [str(tmp_path.resolve()), "x"]


# What Spark's API can do at most.


@each("size", (100, 1000, 10_000, 1_000_000))
def test_ready_made_batches_have_columns_and_sizes_of_a_read(size: int) -> None:
    from pyspark.sql.pandas.types import to_arrow_schema
    from pyspark.sql.types import StructType

    from lance_spark.spark.schema import make_row_schema

    schema = to_arrow_schema(make_row_schema(), timezone="UTC")
    assert (
        ", ".join(
            f"{field.name} {field.dataType.simpleString()}"
            for field in make_row_schema()
        )
        == _spark_source.SCHEMA
    )
    assert isinstance(make_row_schema(), StructType)
    batch = make_batch(tuple(schema.names), size)
    batch.validate(full=True)
    for field in schema:
        assert pa.types.is_binary(field.type) or batch.schema.field(
            field.name
        ).type.equals(field.type)
    assert set(map(len, batch["value"].to_pylist())) == {size}
    assert batch["offset"].to_pylist() == list(range(0, batch.num_rows * size, size))
    wanted = 2 * batch.num_rows + 1
    assert [each.num_rows for each in repeat_batch(("value",), size, wanted)] == [
        *(batch.num_rows, batch.num_rows, 1)
    ]


def test_the_floor_imports_nothing_of_ours() -> None:
    tree = ast.parse(Path(_spark_source.__file__).read_text(encoding="utf-8"))

    def list_modules() -> Iterator[str]:
        for node in ast.walk(tree):
            if isinstance(node, ast.Import):
                yield from (alias.name for alias in node.names)
            elif isinstance(node, ast.ImportFrom):
                yield node.module or ""

    modules = set(list_modules())
    assert "pyspark.sql.datasource" in modules
    assert not [name for name in modules if name.startswith(("lance", "benchmarks"))]


# Tables.


def test_times_are_written_with_ratios_to_the_floor() -> None:
    lanes = {
        "JVM to noop": [50.0] * 9,
        "trivial to trivial": [100.0] * 9,
        "topic to topic": [110.0] * 9,
        "topic to nowhere": [],
    }
    assert _list_times(lanes) == [
        ["JVM to noop", "50 ms", "50 to 50 ms", "0.5 x"],
        ["trivial to trivial", "100 ms", "100 to 100 ms", "1 x"],
        ["topic to topic", "110 ms", "110 to 110 ms", "1.1 x"],
    ]
    assert (format_ms(0.1234), format_s(1.23456)) == ("123 ms", "1.23")


def test_settings_have_ratios_to_the_session_of_the_same_round() -> None:
    found = {
        settings.DEFAULT.name: [{"a": 1.0, "b": 3.0}, {"a": 2.0, "b": 3.0}],
        "other": [{"a": 0.5, "b": 3.0}, {"a": 2.0, "b": 6.0}],
    }
    assert settings.list_ratios(("a", "b"), found) == [
        [settings.DEFAULT.name, "1500 ms", "3000 ms"],
        ["other", "0.75 x", "1.5 x"],
    ]


def test_settings_are_named_as_they_are_set() -> None:
    every = (*settings.CHANGED, *settings.STARTED)
    assert len({each.name for each in every}) == len(every)
    for setting in every:
        if len(setting.settings) == 1:
            ((key, value),) = setting.settings.items()
            assert setting.name.startswith(f"`{key}=")
            assert setting.name.endswith(f"{value.rpartition('.')[2]}`")


def test_an_archive_with_bytecode_needs_no_source(tmp_path: Path) -> None:
    with zipfile.ZipFile(tmp_path / "a.zip", "w") as packed:
        packed.writestr("package/__init__.py", "")
        packed.writestr("package/module.py", "SAID = 'x'")
    settings.add_bytecode(tmp_path / "a.zip", tmp_path / "b.zip")
    with (
        zipfile.ZipFile(tmp_path / "b.zip") as both,
        zipfile.ZipFile(tmp_path / "c.zip", "w") as compiled,
    ):
        assert "package/module.py" in both.namelist()
        for name in both.namelist():
            if name.endswith(".pyc"):
                compiled.writestr(name, both.read(name))
    said = subprocess.run(
        [sys.executable, "-c", "from package.module import SAID; print(SAID)"],
        env={**os.environ, "PYTHONPATH": str(tmp_path / "c.zip")},
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
    )
    assert said.stdout == "x\n"


@each("name", sorted(find_benchmarks()))
def test_the_page_has_a_place_for_each_benchmark(name: str) -> None:
    read_tables(PAGE.read_text(encoding="utf-8"), name)


def test_the_page_begins_with_what_else_one_would_use_and_ends_with_the_codec() -> None:
    page = PAGE.read_text(encoding="utf-8")
    places = {name: page.index(f"<!-- bench:{name} -->") for name in find_benchmarks()}
    order = sorted(places, key=places.__getitem__)
    assert page.index("<!-- bench:kafka -->") < places[order[0]]
    assert order[:2] == ["spark", "stream"]
    assert order[-1] == "columnar"


def list_rows(bench: str) -> set[str]:
    tables = read_tables(PAGE.read_text(encoding="utf-8"), bench).values()
    return {row[0] for _, *rows in tables for row in rows}


def test_the_page_has_the_rows_of_spark() -> None:
    rows = list_rows("spark")
    for what in VALUES:
        for verb in ("read, all columns", "read, `value` only", "write"):
            assert f"{verb}, {what}" in rows
    for verb in ("read", "write"):
        assert f"{verb} of {SMALL_ROWS} rows" in rows
    assert {"read, all columns", "write", "stream, `AvailableNow`"} < rows
    assert {"64 MiB", "4096 MiB"} < rows


def test_the_page_has_the_rows_of_streams() -> None:
    rows = list_rows("stream")
    assert {*_LANES, *_WHOLE_LANES} < rows


def test_the_page_has_the_rows_of_settings() -> None:
    tables = [*read_tables(PAGE.read_text(encoding="utf-8"), "settings").values()]
    for table, set_ in zip(tables, (settings.CHANGED, settings.STARTED), strict=True):
        names = [settings.DEFAULT.name, *(setting.name for setting in set_)]
        assert [row[0] for row in table[1:]] == names


def test_ten_times_the_rows_take_at_most_ten_and_a_half_times_the_time() -> None:
    tables = read_tables(PAGE.read_text(encoding="utf-8"), "spark")
    (growth,) = (rows for title, rows in tables.items() if "ten times" in title)
    for row in growth[1:]:
        assert parse_quantity(row[-2]) <= 10.5, row


def test_a_table_is_read_as_it_was_written() -> None:
    report = Report()
    report.add_text("Some words.")
    report.add_table(["what", "speed"], [["one", "5 MB"]], "A title:")
    page = f"<!-- bench:some -->\n\n{report.text}\n\n<!-- /bench -->"
    assert read_tables(page, "some") == {
        "A title:": [["what", "speed"], ["one", "5 MB"]]
    }
