"""The small files of a store: journal, consumer offsets, JSON."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from typing import Any

from lance_spark.cli.show.source import Selection, Source, print_rest
from lance_spark.cli.text import count, format_json, print_table
from lance_spark.errors import StoreError
from lance_spark.store.consumers import parse_consumers
from lance_spark.store.document import decode_document
from lance_spark.store.journal import parse_journal
from lance_spark.store.stage import decode_stage
from lance_spark.store.topic import decode_topic


def show_journal(source: Source, selection: Selection) -> None:
    """Print the entries of a journal.

    Raises:
        LanceError: where something is no entry.
    """
    parsed = parse_journal(source.read_whole())
    if parsed.lost is not None:
        raise source.error(f"{parsed.lost} (byte 0)")
    entries = parsed.entries
    print(f"journal of {count(source.size, 'byte')}, {count(len(entries), 'entry')}")

    def rows() -> Iterator[tuple[str, ...]]:
        shown = entries[selection.skip : selection.end]
        for number, entry in enumerate(shown, selection.skip):
            rest = {k: v for k, v in entry.items() if k != "kind"}
            text = selection.preview.show_text(format_json(rest))
            yield f"{number}", str(entry.get("kind")), text

    print_table(("entry", "kind", "content"), rows(), right=("entry",))
    print_rest(selection, "entries", more=len(entries) > selection.end)
    for fault in parsed.faults:
        raise source.error(f"{fault} (byte 0)")
    for start, end in parsed.damaged:
        raise source.error(f"no entry in the bytes [{start}, {end}) that is whole")
    if parsed.end < source.size:
        raise source.error(f"an entry is not finished at byte {parsed.end}")


def show_consumers(source: Source, selection: Selection) -> None:
    """Print committed offsets, the last one of each consumer and topic.

    Raises:
        LanceError: where an entry is damaged or cut off.
    """
    parsed = parse_consumers(source.read_whole())
    if parsed.lost is not None:
        raise source.error(f"{parsed.lost} (byte 0)")
    offsets = sorted(parsed.offsets.items())
    print(
        f"consumer offsets: {count(len(offsets), 'offset')} in {parsed.entries} entries"
    )
    rows = (
        (f"{key.consumer}", f"{key.topic}", f"{offset}")
        for key, offset in offsets[selection.skip : selection.end]
    )
    print_table(("consumer", "topic", "offset"), rows)
    print_rest(selection, "offsets", more=len(offsets) > selection.end)
    for fault in parsed.faults:
        raise source.error(f"{fault} (byte 0)")
    if parsed.damaged:
        found = count(len(parsed.damaged), "damaged entry")
        raise source.error(f"{found}, the first at byte {parsed.damaged[0][0]}")
    if parsed.torn is not None:
        raise source.error(f"the last entry is cut off at byte {parsed.torn}")


# The JSON files of a store by a key that only they have: what they are, their decoder.
_DOCUMENTS: dict[str, tuple[str, Callable[[bytes], Any] | None]] = {
    "log_start": ("metadata of a topic", decode_topic),
    "opened_ns": ("metadata of a stage", decode_stage),
    "next_topic": ("identity of a store", decode_document),
}


def show_document(source: Source, selection: Selection) -> None:
    """Print a JSON file.

    Raises:
        LanceError: it is not JSON, or not what its keys say.
    """
    data = source.read_whole()
    try:
        text = data.decode()
        document = json.loads(text)
    except UnicodeDecodeError as error:
        raise source.error(f"not UTF-8 at byte {error.start}") from error
    except json.JSONDecodeError as error:
        position = len(text[: error.pos].encode())
        raise source.error(f"not JSON at byte {position}: {error.msg}") from error
    keys = document if isinstance(document, dict) else {}
    known = [entry for key, entry in _DOCUMENTS.items() if key in keys]
    name, decode = known[0] if known else ("JSON", None)
    print(f"{name}, {count(len(data), 'byte')}")
    lines = json.dumps(document, indent=2).splitlines()
    print("\n".join(lines[selection.skip : selection.end]))
    print_rest(selection, "lines", more=len(lines) > selection.end)
    if decode is not None:
        try:
            decode(data)
        except StoreError as error:
            raise source.error(str(error)) from error
