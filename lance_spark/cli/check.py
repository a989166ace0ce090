"""`lance-spark check`: verify a data directory that nobody has open."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path

import click

from lance_spark.cli.directory import check_is_store
from lance_spark.cli.main import FAILED
from lance_spark.cli.text import count, format_bytes
from lance_spark.columnar.layout import validate
from lance_spark.store import DEFAULT_TOPIC, Finding, Severity, check_store
from lance_spark.store.check import Progress


@click.command("check")
@click.argument("data_dir", type=click.Path(path_type=Path))
@click.option("--json", "as_json", is_flag=True, help="One JSON object per finding.")
@click.option("--quiet", "-q", is_flag=True, help="Findings only: no summary.")
def command(data_dir: Path, as_json: bool, quiet: bool) -> int:
    """Verify every byte of DATA_DIR: checksums, indexes, records, journal.

    Nothing is changed. A note is in order after a crash; the next opening mends it.
    Damage means that something was lost, and makes the exit code 1.
    """
    check_is_store(data_dir)
    tally = Tally()
    with _progress(data_dir, tally, hidden=quiet) as progress:
        findings = check_store(data_dir, framing=validate, progress=progress)
    for finding in findings:
        print(_encode(finding) if as_json else finding)
    damage = sum(f.severity is Severity.DAMAGE for f in findings)
    if not quiet:
        summary = _summarise(data_dir, tally.bytes, len(findings) - damage, damage)
        # Standard output is the findings' where a program reads it.
        print(summary, file=sys.stderr if as_json else sys.stdout)
    return FAILED if damage else 0


class Tally:
    """Counts the bytes that were verified."""

    def __init__(self) -> None:
        self.bytes = 0

    def add(self, verified: int) -> None:
        """Take note of bytes that were verified."""
        self.bytes += verified


@contextmanager
def _progress(path: Path, tally: Tally, *, hidden: bool) -> Iterator[Progress]:
    if hidden or not sys.stderr.isatty():
        yield tally.add
        return
    total = sum(file.stat().st_size for file in path.glob("*/*/*.lnc"))
    with click.progressbar(length=total, label="checking", file=sys.stderr) as bar:

        def add(verified: int) -> None:
            tally.add(verified)
            bar.update(verified)

        yield add


def _encode(finding: Finding) -> str:
    return json.dumps(asdict(finding))


def _summarise(path: Path, verified: int, notes: int, damage: int) -> str:
    return ", ".join(
        (
            f"{format_bytes(verified)} verified",
            count(_count_topics(path), "topic"),
            count(notes, "note"),
            f"damage in {count(damage, 'place')}" if damage else "no damage",
        )
    )


def _count_topics(path: Path) -> int:
    """Count the topics; the default one, which always exists, only if it has data."""
    ids = [entry for entry in path.glob("segments/*") if entry.name.isdecimal()]
    default = str(DEFAULT_TOPIC)
    return sum(entry.name != default or any(entry.glob("*.lnc")) for entry in ids)
