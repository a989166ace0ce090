"""The page for those who come from Kafka: its job runs, its tables are the code's."""

from __future__ import annotations

import re
from pathlib import Path

import click
import pytest

from lance_spark.cli.group import group
from lance_spark.spark.options import _KAFKA
from lance_spark.spark.setting import BY_NAME, OPTIONS
from tests.spark.reading import ROW_COLUMNS
from tests.spark.test_docs import run_and_compare, tidied
from tests.test_docs import blocks, read, walk

PAGE = "docs/kafka.md"
# What Kafka's connector has nothing like.
OURS_ALONE = {"checksum", "connectTimeout", "metadata", "onBadRecord", "splitting"}
_NAME = re.compile(r"`([A-Za-z.*]+)(?:=\w+)?`")

__all__ = ["tidied"]  # A fixture, which pytest finds by its name here.


def cells_of(heading: str) -> list[list[str]]:
    """Return the rows of the table below a heading, without its head."""
    section = read(PAGE).partition(f"\n## {heading}\n")[2].partition("\n## ")[0]
    lines = [line for line in section.splitlines() if line.startswith("| ")]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines[1:]]


@pytest.mark.usefixtures("tidied")
def test_the_job_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    run_and_compare(PAGE)


def test_the_job_is_the_second_half_of_the_difference() -> None:
    [(_, difference)] = blocks(PAGE, "diff")
    lines = difference.splitlines()
    after = [line[1:] for line in lines if line[0] in " +"]
    before = "\n".join(line[1:] for line in lines if line[0] in " -")
    assert "\n".join(after) + "\n" in [text for _, text in blocks(PAGE, "python")]
    assert before.count('.format("kafka")') == 2 and "lance" not in before
    compile(before, "before", "exec")


def test_options_are_those_of_the_code() -> None:
    for heading in ("Options of the source", "Options of the sink", "TLS and logins"):
        for row in cells_of(heading):
            if row[1].startswith(("not there", "the same names", "Rules", "The name")):
                continue
            named = _NAME.findall(row[1])
            assert named and set(named) <= set(BY_NAME), row


def test_every_option_has_a_counterpart_or_is_ours_alone() -> None:
    said = read(PAGE)
    ours = [option.name for option in OPTIONS if option.has_format("lance")]
    names = {name for name in ours if f"`{name}" not in said}
    assert names == OURS_ALONE


def test_old_names_are_told_as_the_page_says() -> None:
    told = {}
    for row in cells_of("Options of the sink") + cells_of("Options of the source"):
        for name in _NAME.findall(row[0]):
            told[name.lower()] = _NAME.findall(row[1])
    assert set(_KAFKA) <= set(told)
    for name, ours in _KAFKA.items():
        assert ours in told[name], name


def test_columns_are_those_of_the_code() -> None:
    ours = {row[1].split()[0].strip("`,:") for row in cells_of("Columns")} - {"not"}
    assert ours == {*ROW_COLUMNS, "next_offset"}


def test_commands_are_those_of_the_command_line() -> None:
    there = dict(walk(group, "lance-spark"))
    for row in cells_of("Commands"):
        for command in re.findall(r"`(lance-spark [^`]+)`", row[1]):
            words = command.split()
            name = max((n for n in there if command.startswith(n)), key=len)
            assert name != "lance-spark", command
            options = {
                text
                for parameter in there[name].params
                if isinstance(parameter, click.Option)
                for text in parameter.opts
            }
            assert {word for word in words if word.startswith("--")} <= options, command
