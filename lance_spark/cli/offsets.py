"""`lance-spark offsets`: how far a streaming query has come, from its checkpoint."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
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
    connected_log,
    is_server_given,
    option,
    server_options,
)
from lance_spark.cli.summary import Document, summarise_logs, summarise_named
from lance_spark.client import ClientConfig
from lance_spark.client.config import ConnectionConfig
from lance_spark.offset import LANCE, OffsetMark, TopicPlace

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
    config: ConnectionConfig, checkpoint: Path, batch: int | None, as_json: bool
) -> None:
    """Show how far a Spark query has read, by its CHECKPOINT, a local directory.

    With --servers the server is asked, too: how much is behind that, and whether the
    topics are still the same ones. Nothing is changed.
    """
    opened = Checkpoint(checkpoint)
    query_id, found = opened.read_query_id(), opened.read_batch(batch)
    topics: dict[str, Topics] = {}
    if is_server_given():
        sources = [source for source in found.sources if source.offset]
        others = {source.protocol for source in sources} - {config.protocol}
        if others and len(others) == len({source.protocol for source in sources}):
            raise click.UsageError(
                f"the query reads {', '.join(sorted(others))}, not {config.protocol}: "
                "give --protocol"
            )
        topics[config.protocol] = _ask(config, sources)
    if as_json:
        print(format_json(_to_document(query_id, found, topics)))
    else:
        _print(query_id, found, topics)


# What a server says of topics, by name. In LWP a topic is its only partition.
Topics = Mapping[str, Document]


def _ask(config: ConnectionConfig, sources: Iterable[SourceOffset]) -> Topics:
    mine = [s.offset for s in sources if s.offset and s.protocol == config.protocol]
    names = {name for offset in mine for name, _ in offset.topics}
    if isinstance(config, ClientConfig):
        with connected(config) as client:
            return summarise_named(client, names)
    with connected_log(config) as log:
        found = summarise_logs(log, log.driver.topics(names))
    # Topics without ids are the same as long as their names are.
    return {t["name"]: {**t, "id": 0, "created_at": 0} for t in found}


def _find_log(topic: Document | None, partition: int) -> Document:
    """Give the bounds of a partition; nothing if it is not there."""
    logs = (topic or {}).get("partitions")
    if logs is None:
        return topic or {}
    return next((log for log in logs if log["partition"] == partition), {})


def _judge(
    place: TopicPlace, partition: int, topic: Document | None
) -> tuple[str, str, int | None]:
    """Compare a place with what the server says: a word, a text for people, the lag."""
    log, offset = _find_log(topic, partition), place.position(partition)
    if topic is None or log.get("log_end") is None:
        return "gone", "the topic is gone", None
    identity = topic["id"], topic["created_at"]
    if not place.same_topic(*identity):
        now = f"id {topic['id']}, created {_show_time(topic['created_at'], _NS_PER_S)}"
        earlier = place.find(*identity)
        if earlier is not None:
            now = f"{now}, which was read up to {earlier.offset} before"
        return "recreated", f"another topic of that name: {now}", None
    unit = "record" if "partitions" in topic else "byte"
    start, end = log["log_start"] or 0, log["log_end"]
    # No query lags behind what retention has dropped.
    lag = max(0, end - max(offset, start))
    if offset < start:
        return "dropped", f"{count(start - offset, unit)} dropped before read", lag
    # What was there and not read is gone, too, if the log was longer.
    if (gone := place.seen_end(partition) - end) > 0:
        return "cut", f"{count(gone, unit)} gone from the log's end", lag
    return "same", "the same topic", lag


def _to_document(
    query_id: str | None, batch: PlannedBatch, topics: Mapping[str, Topics]
) -> dict[str, Any]:
    return {
        "query_id": query_id,
        "batch": batch.number,
        "planned_at_ms": batch.planned_ms,
        "committed": batch.is_committed,
        "sources": [_to_source(source, topics) for source in batch.sources],
    }


def _to_source(source: SourceOffset, topics: Mapping[str, Topics]) -> dict[str, Any]:
    # The offset as it stands in the file can be given as `startingOffsets`.
    is_lance = source.offset is not None and source.protocol == LANCE
    document = {"lance": is_lance, "offset": source.document}
    if source.offset is None:
        return document
    if not is_lance:
        document["protocol"] = source.protocol
    found = topics.get(source.protocol)
    places = [
        _to_topic(name, place, partition, found, is_lance=is_lance)
        for name, place in source.offset.topics
        for partition, _ in place.positions
    ]
    return {**document, "topics": places}


def _to_topic(
    name: str,
    place: TopicPlace,
    partition: int,
    topics: Topics | None,
    *,
    is_lance: bool,
) -> dict[str, Any]:
    mark = place.mark_of(partition)
    what = {"id": place.topic_id, "created_at": place.created_s}
    document: dict[str, Any] = {
        "topic": name,
        **(what if is_lance else {"partition": partition}),
        "offset": place.position(partition),
        "mark": None if mark is None else mark.to_document(),
    }
    if topics is None:
        return document
    state, _, lag = _judge(place, partition, topics.get(name))
    log = _find_log(topics.get(name), partition)
    return {
        **document,
        "log_start": log.get("log_start"),
        "log_end": log.get("log_end"),
        "lag_bytes" if is_lance else "lag_records": lag,
        "state": state,
    }


def _print(
    query_id: str | None, batch: PlannedBatch, topics: Mapping[str, Topics]
) -> None:
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
            print(f"source {number}: {source.protocol}, {topics_in}")
            print_table(_show_source(source, topics.get(source.protocol)))
        elif source.document is None:
            print(f"source {number}: no offset yet")
        else:
            text = format_json(source.document)
            text = text if len(text) <= _SHOWN_MAX else f"{text[:_SHOWN_MAX]}…"
            print(f"source {number}: not lance, skipped: {text}")


def _show_source(source: SourceOffset, topics: Topics | None) -> Iterator[Row]:
    """Give a row for each partition."""
    assert source.offset is not None
    places = source.offset.topics
    has_marks = any(place.marks for _, place in places)
    is_lance = source.protocol == LANCE
    has_parts = not is_lance or any(len(place.positions) > 1 for _, place in places)
    for name, place in places:
        created = _show_time(place.created_s, _NS_PER_S) if place.created_s else None
        for partition, offset in place.positions:
            row: dict[str, Cell] = {"topic": show_name(name)}
            if is_lance:
                row["id"] = place.topic_id
            if has_parts:
                row["partition"] = partition
            row["offset"] = offset
            if is_lance:
                row["created"] = created
            if has_marks:
                row["mark"] = _show_mark(place.mark_of(partition), is_lance=is_lance)
            if topics is not None:
                _, text, lag = _judge(place, partition, topics.get(name))
                log = _find_log(topics.get(name), partition)
                row["log start"] = log.get("log_start")
                row |= {"log end": log.get("log_end"), "behind": lag, "state": text}
            yield row


def _show_mark(mark: OffsetMark | None, *, is_lance: bool) -> str | None:
    if mark is None:
        return None
    size = count(mark.size, "byte" if is_lance else "record")
    return f"{size}, crc32c {mark.crc:08x}"


def _show_time(number: int, unit_ns: int) -> str:
    try:
        return format_time(number * unit_ns)
    # No calendar has such a time; the number is still what the file says.
    except (ValueError, OverflowError, OSError):
        return str(number)
