"""The goals of speed, as ratios to plain Python measured in the same run.

Absolute figures would test the machine. A busy machine can spoil a ratio too, so each
gets several attempts; the figures of a quiet one are in docs/performance.md.
"""

from __future__ import annotations

import sys

import pytest

from benchmarks.columnar import (
    Case,
    count_payloads,
    decode_plainly,
    encode_plainly,
    make_cases,
    measure_plain,
    use_twin,
)
from benchmarks.report import (
    Report,
    format_rate,
    format_ratio,
    time_best_s,
    write_tables,
)
from lance_spark.columnar.decode import decode
from lance_spark.columnar.encode import encode
from lance_spark.kernel import COMPILED

ATTEMPTS = 4


@pytest.fixture(scope="module")
def cases() -> dict[str, Case]:
    return {case.name: case for case in make_cases()}


def time_s(call):
    return time_best_s(call, 0.05)


def is_traced():
    """Say whether a debugger or coverage slows the code of the package down."""
    coverage = sys.modules.get("coverage")
    measured = coverage is not None and coverage.Coverage.current() is not None
    return measured or sys.gettrace() is not None


def reach(goal, measure):
    """Measure until a ratio reaches its goal."""
    if is_traced():
        pytest.skip("traced code is no measure of speed")
    ratios = []
    for _ in range(ATTEMPTS):
        ratios.append(measure())
        if ratios[-1] >= goal:
            return
    pytest.fail(f"goal {goal}, measured {ratios}")


@pytest.mark.skipif(not COMPILED, reason="the kernel was not built")
@pytest.mark.parametrize("name", ["20 bytes, raw", "100 bytes, raw"])
def test_decode_with_the_kernel(cases, name):
    case = cases[name]

    def measure():
        rows = decode(case.data).batch.num_rows
        plain_s, _ = measure_plain(time_s, case)
        return plain_s * rows / time_s(lambda: decode(case.data))

    reach(20, measure)


@pytest.mark.parametrize(
    "name", ["100 bytes, raw", "about 100 bytes, mixed types and sizes"]
)
def test_decode_with_the_twin(cases, name):
    case = cases[name]

    def measure():
        rows = decode(case.data).batch.num_rows
        plain_s, _ = measure_plain(time_s, case)
        with use_twin():
            return plain_s * rows / time_s(lambda: decode(case.data))

    reach(4, measure)


@pytest.mark.parametrize("name", ["20 bytes, raw", "100 bytes, raw"])
def test_encode(cases, name):
    case = cases[name]
    batch = decode(case.data, columns=case.columns).batch

    def measure():
        _, plain_s = measure_plain(time_s, case)
        return plain_s * batch.num_rows / time_s(lambda: count_payloads(batch))

    reach(20, measure)


def test_both_sides_do_the_same_work(cases):
    for case in cases.values():
        assert decode_plainly(case.sample) == decode(case.sample).batch
        batch = decode(case.sample, columns=case.columns).batch
        payloads = [(p.data.to_pybytes(), p.records) for p in encode(batch)]
        assert encode_plainly(batch) == payloads
        assert b"".join(data for data, _ in payloads) == case.sample


class TestReport:
    def test_table(self):
        report = Report(quick=True)
        report.add_table(["a", "b"], [["x", "1"]], "Title:")
        assert report.text == "Title:\n\n| a | b |\n| --- | ---: |\n| x | 1 |"

    def test_numbers(self):
        assert format_rate(12_345_678, "B") == "12.3 MB"
        assert format_rate(12) == "12"
        assert format_ratio(0.0123) == "0.012 x"
        assert format_ratio(123.4) == "123 x"

    def test_tables_go_between_the_marks(self, tmp_path):
        path = tmp_path / "doc.md"
        path.write_text("a\n<!-- bench:x -->\nold\n<!-- /bench -->\nb\n")
        write_tables(path, "x", "new")
        expected = "a\n<!-- bench:x -->\n\nnew\n\n<!-- /bench -->\nb\n"
        assert path.read_text() == expected
        write_tables(path, "x", "new")
        assert path.read_text() == expected

    def test_no_place_for_tables(self, tmp_path):
        path = tmp_path / "doc.md"
        path.write_text("nothing")
        with pytest.raises(ValueError, match="bench:x"):
            write_tables(path, "x", "new")
