"""`lance-spark check`: verify a data directory that no process has open, or mend it."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

import click

from lance_spark.broker.access import encode_rule, parse_rule
from lance_spark.cli.display import count, show_progress
from lance_spark.cli.main import FAILED
from lance_spark.cli.options import PATH, OptionType, check_is_store, option, parse_age
from lance_spark.errors import OptionError
from lance_spark.model import Retention
from lance_spark.quantity import format_bytes, parse_size
from lance_spark.store import (
    DEFAULT_TOPIC,
    FIRST_STAGE_ID,
    Answers,
    Severity,
    check_store,
    repairing,
)
from lance_spark.wire.lwp import validate


def _parse_number(text: str) -> int:
    if not text.isdecimal():
        raise OptionError(f"{text!r} is not a number")
    return int(text)


def _parse_retention(text: str) -> Retention:
    if text == "none":
        return Retention()
    age, comma, size = text.partition(",")
    if not comma:
        raise OptionError(f"{text!r} is neither none nor AGE,SIZE as in 168h,10g")
    return Retention(parse_age(age), parse_size(size))


def _parse_rule(text: str) -> dict[str, Any] | None:
    if text == "none":
        return None
    try:
        auth = json.loads(text)
    except ValueError as error:
        raise OptionError(f"{text!r} is neither none nor JSON: {error}") from error
    rule = parse_rule(auth) if isinstance(auth, dict) else None
    if rule is None:
        raise OptionError(f"{text!r} is not an access rule")
    return encode_rule(rule)


def _answer(
    flag: str, name: str, metavar: str, parse: Callable[[str], Any], text: str
) -> Callable[[Any], Any]:
    """Make an option that says something of a topic by its id, and can be repeated."""

    def split(said: str) -> tuple[int, Any]:
        topic, equals, value = said.partition("=")
        if not equals or not topic.isdecimal():
            raise OptionError(f"{said!r} is not {metavar}")
        return int(topic), parse(value)

    kind = OptionType(metavar, split)
    return option(f"{flag} {name}", kind, text, multiple=True, metavar=metavar)


@click.command("check")
@click.argument("data_dir", type=PATH)
@option("--json as_json", bool, "One JSON object per finding.")
@option("--quiet -q", bool, "Findings only: no summary.")
@option("--repair", bool, "Mend damaged store.json, metadata and journal.")
@_answer("--name", "names", "ID=NAME", str, "The topic's name.")
@_answer(
    *("--retention", "retentions", "ID=none|AGE,SIZE", _parse_retention),
    "What may be dropped from the topic; 0 is no limit.",
)
@_answer(
    "--auth", "rules", "ID=none|JSON", _parse_rule, "The topic's access rule (LWP 7.2)."
)
@_answer(
    *("--created", "created", "ID=SECONDS", _parse_number),
    "When the topic was created, by which queries know it.",
)
@_answer(
    *("--partitions", "partitions", "ID=N", _parse_number),
    "How many partitions the topic has that the log belongs to.",
)
@option(
    *("--drop-stage dropped", click.IntRange(min=FIRST_STAGE_ID)),
    "Remove a stage whose job no file tells.",
    multiple=True,
    metavar="ID",
)
@option("--yes -y", bool, "Repair without asking.")
def command(
    data_dir: Path, as_json: bool, quiet: bool, repair: bool, yes: bool, **said: Any
) -> int:
    """Verify every byte of DATA_DIR: checksums, indexes, records, journal.

    Nothing is changed. A note is in order after a crash; the next opening mends it.
    Damage means that something was lost, and makes the exit code 1.

    With --repair, damaged small files are written anew from what other files prove,
    after you have seen what will be done. A name, an access rule and a retention are
    never guessed: say them for each topic, or it stays closed.
    """
    check_is_store(data_dir)
    if repair:
        dropped = frozenset(said.pop("dropped"))
        answers = Answers(**{k: dict(v) for k, v in said.items()}, dropped=dropped)
        return _repair(data_dir, answers, yes=yes)
    if yes or any(said.values()):
        raise click.UsageError("this option goes with --repair only")
    total = sum(map(_find_size, data_dir.glob("*/*/*.lnc"))) or 1
    verified = 0
    with show_progress("checking", hidden=quiet) as update:

        def add(size: int) -> None:
            nonlocal verified
            verified += size
            update(0, verified, verified / total)

        findings = check_store(data_dir, framing=validate, progress=add)
    for finding in findings:
        print(json.dumps(asdict(finding)) if as_json else finding)
    damage = sum(f.severity is Severity.DAMAGE for f in findings)
    if not quiet:
        summary = (
            f"{format_bytes(verified)} verified",
            count(_count_topics(data_dir), "topic"),
            count(len(findings) - damage, "note"),
            f"damage in {count(damage, 'place')}" if damage else "no damage",
        )
        # Standard output is the findings' where a program reads it.
        print(", ".join(summary), file=sys.stderr if as_json else sys.stdout)
    return FAILED if damage else 0


def _find_size(file: Path) -> int:
    try:
        return file.stat().st_size
    except OSError:
        # A broker that still runs has removed it, or it is damage for the check to
        # report. The progress need not be exact.
        return 0


def _repair(data_dir: Path, answers: Answers, *, yes: bool) -> int:
    with repairing(data_dir, answers, framing=validate) as steps:
        if not steps:
            print("nothing to repair")
            return 0
        for step in steps:
            mark = "will repair" if step.run else "needs you"
            print(f"{mark}: {step.file}: {step.text}")
        ready = [(step.file, step.run) for step in steps if step.run is not None]
        if ready and not (yes or click.confirm("Repair this?", default=False)):
            print("nothing was changed")
            return FAILED
        for file, repair in ready:
            repair()
            print(f"repaired: {file}")
    left = len(steps) - len(ready)
    if left:
        print(f"not repaired: {count(left, 'file')}, see above")
    return FAILED if left else 0


def _count_topics(path: Path) -> int:
    """Count the topics; the default one, which always exists, only if it has data."""
    ids = [entry for entry in path.glob("segments/*") if entry.name.isdecimal()]
    default = str(DEFAULT_TOPIC)
    return sum(entry.name != default or any(entry.glob("*.lnc")) for entry in ids)
