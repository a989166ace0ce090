"""`lance-spark offsets`: how far a streaming query has come, from its checkpoint."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import click

from lance_spark.cli.checkpoint import Checkpoint, PlannedBatch, SourceOffset
from lance_spark.cli.display import (
    UNKNOWN,
    Cell,
    Row,
    count,
    format_json,
    format_time,
    print_table,
    show_name,
)
from lance_spark.cli.options import (
    NUMBER,
    connected,
    is_server_given,
    option,
    server_options,
)
from lance_spark.cli.summary import Document, summarise_named
from lance_spark.client import ClientConfig
from lance_spark.offset import TopicPlace

_NS_PER_S = 1_000_000_000
_NS_PER_MS = 1_000_000

# A letter alone before the colon is a drive.
_SCHEME = re.compile(r"([A-Za-z][A-Za-z0-9+.-]+):/")

# How much of another source's offset is shown.
_SHOWN_MAX = 80


def _to_path(context: click.Context, parameter: click.Parameter, value: str) -> Path:
    found = _SCHEME.match(value)
    if found is None:
        return Path(value)
    if found[1].lower() == "file":
        raise click.BadParameter(f"{value!r}: give the path alone, without file:")
    raise click.BadParameter(
        f"{value!r} is not on this machine, and only local paths are read: copy the "
        "checkpoint's offsets, commits and metadata here first"
    )


@click.command("offsets")
@click.argument("checkpoint", callback=_to_path)
@option("--batch", NUMBER, "Which batch.  [default: the newest]")
@option("--json as_json", bool, "One JSON object.")
@server_options
def command(
    config: ClientConfig, checkpoint: Path, batch: int | None, as_json: bool
) -> None:
    """Show how far a Spark query has read, by its CHECKPOINT, a local directory.

    With --servers the server is asked, too: how many bytes are behind that, and whether
    the topics are still the same ones. Nothing is changed.
    """
    opened = Checkpoint(checkpoint)
    query_id, found = opened.read_query_id(), opened.read_batch(batch)
    topics = None
    if is_server_given():
        names = {n for s in found.sources if s.offset for n, _ in s.offset.topics}
        with connected(config) as client:
            topics = summarise_named(client, names)
    if as_json:
        print(format_json(_to_document(query_id, found, topics)))
    else:
        _print(query_id, found, topics)


Topics = Mapping[str, Document]


def _judge(place: TopicPlace, topic: Document | None) -> tuple[str, str, int | None]:
    """Compare a place with what the server says: a word, a text for people, the lag."""
    if topic is None:
        return "gone", "the topic is gone", None
    identity = topic["id"], topic["created_at"]
    if not place.same_topic(*identity):
        now = f"id {topic['id']}, created {_show_time(topic['created_at'], _NS_PER_S)}"
        earlier = place.find(*identity)
        if earlier is not None:
            now = f"{now}, which was read up to {earlier.offset} before"
        return "recreated", f"another topic of that name: {now}", None
    start, end = topic["log_start"] or 0, topic["log_end"]
    # No query lags behind what retention has dropped.
    lag = max(0, end - max(place.offset, start))
    if place.offset < start:
        dropped = count(start - place.offset, "byte")
        return "dropped", f"{dropped} dropped before read", lag
    if place.offset > end:
        missing = count(place.offset - end, "byte")
        return "cut", f"{missing} gone from the log's end", lag
    return "same", "the same topic", lag


def _to_document(
    query_id: str | None, batch: PlannedBatch, topics: Topics | None
) -> dict[str, Any]:
    return {
        "query_id": query_id,
        "batch": batch.number,
        "planned_at_ms": batch.planned_ms,
        "committed": batch.is_committed,
        "sources": [_to_source(source, topics) for source in batch.sources],
    }


def _to_source(source: SourceOffset, topics: Topics | None) -> dict[str, Any]:
    # The offset as it stands in the file can be given as `startingOffsets`.
    document = {"lance": source.offset is not None, "offset": source.document}
    if source.offset is None:
        return document
    places = source.offset.topics
    return {**document, "topics": [_to_topic(*place, topics) for place in places]}


def _to_topic(name: str, place: TopicPlace, topics: Topics | None) -> dict[str, Any]:
    mark = place.mark
    document: dict[str, Any] = {
        "topic": name,
        "id": place.topic_id,
        "created_at": place.created_s,
        "offset": place.offset,
        "mark": None if mark is None else mark.to_document(),
    }
    if topics is None:
        return document
    state, _, lag = _judge(place, topics.get(name))
    topic = topics.get(name) or {}
    return {
        **document,
        "log_start": topic.get("log_start"),
        "log_end": topic.get("log_end"),
        "lag_bytes": lag,
        "state": state,
    }


def _print(query_id: str | None, batch: PlannedBatch, topics: Topics | None) -> None:
    planned = UNKNOWN
    if batch.planned_ms is not None:
        planned = _show_time(batch.planned_ms, _NS_PER_MS)
    done = "yes" if batch.is_committed else "no"
    if batch.is_newest and not batch.is_committed:
        done = "no: it is running, or is run when the query starts again"
    print(f"query      {UNKNOWN if query_id is None else show_name(query_id)}")
    print(f"batch      {batch.number}")
    print(f"planned    {planned}")
    print(f"committed  {done}")
    for number, source in enumerate(batch.sources):
        print()
        if source.offset is not None:
            topics_in = count(len(source.offset.topics), "topic")
            print(f"source {number}: lance, {topics_in}")
            places = source.offset.topics
            has_marks = any(place.marks for _, place in places)
            print_table(_show_topic(*at, topics, has_marks=has_marks) for at in places)
        elif source.document is None:
            print(f"source {number}: no offset yet")
        else:
            text = format_json(source.document)
            text = text if len(text) <= _SHOWN_MAX else f"{text[:_SHOWN_MAX]}…"
            print(f"source {number}: not lance, skipped: {text}")


def _show_topic(
    name: str, place: TopicPlace, topics: Topics | None, *, has_marks: bool
) -> Row:
    mark = place.mark
    at = [f"{partition}: {position}" for partition, position in place.positions]
    row: dict[str, Cell] = {
        "topic": show_name(name),
        "id": place.topic_id,
        "offset": place.offset if len(at) == 1 else ", ".join(at),
        "created": _show_time(place.created_s, _NS_PER_S) if place.created_s else None,
    }
    if has_marks:
        row["mark"] = None
        if mark is not None:
            row["mark"] = f"{count(mark.size, 'byte')}, crc32c {mark.crc:08x}"
    if topics is not None:
        _, text, lag = _judge(place, topics.get(name))
        topic = topics.get(name) or {}
        row["log start"], row["log end"] = topic.get("log_start"), topic.get("log_end")
        row |= {"behind": lag, "state": text}
    return row


def _show_time(number: int, unit_ns: int) -> str:
    try:
        return format_time(number * unit_ns)
    # No calendar has such a time; the number is still what the file says.
    except (ValueError, OverflowError, OSError):
        return str(number)
