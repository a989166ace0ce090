"""`make bench-kafka`: what it computes, and what it says where something is missing.

Nothing is fetched and no Kafka runs here: a small program stands in for Java.
"""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks._kafka_setup import Ivy, Kafka, run_kafka
from benchmarks._kafka_side import TUNED_SINK, TUNED_SOURCE
from benchmarks._turns import Took
from benchmarks.kafka import SIDES, Line, add_tables, describe
from benchmarks.plot import PICTURES, draw, parse_quantity, read_tables
from benchmarks.report import Report

ROOT = Path(__file__).parent.parent

# Formats a store, or serves the port that the last argument, a file, says.
BROKER = """\
import os, re, signal, socket, sys
if "kafka.Kafka" in sys.argv:
    path = sys.argv[-1]
    port = re.search(r"PLAINTEXT://127.0.0.1:([0-9]+)", open(path).read())[1]
    open(os.path.join(os.path.dirname(path), "pid"), "w").write(str(os.getpid()))
    listener = socket.create_server(("127.0.0.1", int(port)))
    signal.pause()
"""


def make_java(home: Path, program: str) -> str:
    java = home / "bin" / "java"
    java.parent.mkdir(parents=True)
    java.write_text(f"#!{sys.executable}\n{program}", encoding="utf-8")
    java.chmod(0o755)
    return str(java)


def run_bench(java_home: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "benchmarks.kafka", "--quick"],
        cwd=ROOT,
        env={**os.environ, "JAVA_HOME": str(java_home)},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


# What it computes.


def make_line(what: str, ours_s: float, rows: int | None = None) -> Line:
    walls_s = dict(zip(SIDES, (ours_s, 2.0, 0.5), strict=True))
    return Line(what, {side: Took(s, 3 * s) for side, s in walls_s.items()}, rows)


def test_rates_times_and_ratios() -> None:
    read, batch = make_line("read", 0.25, 1_000_000), make_line("batch", 1.0)
    assert read.list_speeds() == ["read", "4 M", "500 k", "2 M", "8 x", "2 x"]
    assert batch.list_speeds() == [
        *("batch", "1000 ms", "2000 ms", "500 ms"),
        *("2 x", "0.5 x"),
    ]
    assert read.list_seconds() == ["read", "0.25", "0.75", "2", "6", "0.5", "1.5"]


def test_words_say_who_is_ahead() -> None:
    lines = [make_line("a", 0.25), make_line("b", 2.05), make_line("c", 3.0)]
    assert describe([*lines, make_line("d", 1.0)], "Kafka") == (
        "- To Kafka, `lance` is ahead in 2 of 4 (a; d), behind in 1 of 4 (c), "
        "as fast in 1 of 4 (b)."
    )
    assert describe(lines[:1], "tuned Kafka") == (
        "- To tuned Kafka, `lance` is ahead in 1 of 1 (a)."
    )


def test_the_page_says_in_words_what_its_table_says() -> None:
    page = (ROOT / "docs" / "performance.md").read_text(encoding="utf-8")
    head, *rows = next(iter(read_tables(page, "kafka").values()))
    for side in SIDES[1:]:
        column = head.index(f"to {side}")
        (said,) = (x for x in page.splitlines() if x.startswith(f"- To {side}, "))
        for row in rows:
            assert row[0] in said
            ratio = parse_quantity(row[column])
            if abs(ratio - 1) > 0.1:
                before = said[: said.index(row[0])]
                words = ("ahead in", "behind in", "as fast in")
                last = max(words, key=before.rfind)
                assert last == ("ahead in" if ratio > 1 else "behind in"), row


def test_the_picture_is_drawn_from_the_table() -> None:
    report = Report()
    add_tables(report, [make_line("read", 0.25, 1000), make_line("batch", 1.0)])
    page = f"<!-- bench:kafka -->\n\n{report.text}\n\n<!-- /bench -->"
    (picture,) = (picture for picture in PICTURES if picture.name == "kafka")
    drawn = draw(picture, page)
    # The longest bar, 8 x, begins at 262 and has 400; a line marks 1 x.
    assert 'd="M312.0 ' in drawn
    assert [drawn.count(f">{text}<") for text in ("8 x", "2 x", "0.5 x")] == [1, 2, 1]


def test_the_page_has_every_line_and_what_tuned_means() -> None:
    page = (ROOT / "docs" / "performance.md").read_text(encoding="utf-8")
    speeds, seconds = read_tables(page, "kafka").values()
    assert [row[0] for row in speeds] == [row[0] for row in seconds]
    names = " ".join(row[0] for row in speeds)
    for part in ("read, all", "read, `value` only", "write", "stream", "micro-batch"):
        assert part in names
    for name, value in (TUNED_SOURCE | TUNED_SINK).items():
        assert f"\n| `{name}` | `{value}` |" in page
    assert page.count("\n| `kafka.") == len(TUNED_SOURCE) + len(TUNED_SINK)


# What it needs.


def test_without_java_it_says_so(tmp_path: Path) -> None:
    done = run_bench(tmp_path)
    assert done.returncode == 1
    assert done.stderr.startswith("bench-kafka: no Java; ")
    assert done.stderr.count("\n") == 1


def test_without_a_network_it_says_so(tmp_path: Path) -> None:
    make_java(tmp_path, 'print("\\t:: org#name;1: not found")')
    done = run_bench(tmp_path)
    assert done.returncode == 1
    assert "spark-sql-kafka-0-10_2.13:" in done.stderr
    assert ": org#name;1: not found. A network " in done.stderr
    assert "--ivy-settings" in done.stderr
    assert "Traceback" not in done.stderr


def test_packages_are_asked_for_and_found(tmp_path: Path) -> None:
    program = """
import sys
given = dict(zip(sys.argv[3::2], sys.argv[4::2]))
assert given["-settings"] == "mirror.xml"
asked = open(given["-ivy"]).read()
assert '<dependency org="a" name="b" rev="1" conf="default->default"/>' in asked
assert '<override org="c" module="d" rev="2"/>' in asked
print("/x/b-1.jar:/x/d-2.jar", file=open(given["-cachepath"], "w"))
"""
    (tmp_path / "ivy-2.jar").touch()
    java = make_java(tmp_path, program)
    ivy = Ivy(java, tmp_path, Path("mirror.xml"))
    found = ivy.resolve(["a:b:1"], instead=["c:d:2"])
    assert found == [Path("/x/b-1.jar"), Path("/x/d-2.jar")]


# The broker.


def test_the_broker_ends_with_the_block(tmp_path: Path) -> None:
    kafka = Kafka(make_java(tmp_path, BROKER), "4.2.0", (), ())
    with run_kafka(kafka, tmp_path) as address:
        host, _, port = address.partition(":")
        socket.create_connection((host, int(port)), 10).close()
        pid = int((tmp_path / "pid").read_text())
        os.kill(pid, 0)
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)


def test_a_broker_that_does_not_start_is_quoted(tmp_path: Path) -> None:
    java = make_java(tmp_path, 'print("no room on the disk")')
    kafka = Kafka(java, "4.2.0", (), ())
    with (
        pytest.raises(SystemExit, match="does not start: no room on the disk"),
        run_kafka(kafka, tmp_path),
    ):
        pass
