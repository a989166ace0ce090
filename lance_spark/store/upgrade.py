"""From format 1, whose small files have no checksum, to format 2.

`store.json` says format 2 already when this is done, and `upgrading` until all of it
is: a crash in between leaves files of both formats, and the next opening goes on.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from lance_spark.errors import StoreError
from lance_spark.store import stage, topic
from lance_spark.store.context import Context
from lance_spark.store.document import UNCHECKED_FORMAT, decode_document
from lance_spark.store.files import read_file, replace_file


def upgrade_files(context: Context, root: Path) -> None:
    """Give the metadata of all topics and stages a checksum, where it has none.

    A damaged file is left as it is: what it belongs to is closed when it is opened.

    Raises:
        OSError: the disk refused; what is left to do is done by the next opening.
    """
    if not context.identity.upgrading:
        return
    context.identity.prepare()
    for directory, name, convert in (
        ("segments", topic.METADATA, _convert_topic),
        ("stages", stage.METADATA, _convert_stage),
    ):
        for entry in context.files.list(root / directory):
            if entry.is_dir and entry.name.isdecimal():
                _upgrade(context, root / directory / entry.name / name, convert)


def _upgrade(context: Context, path: Path, convert: Callable[[bytes], bytes]) -> None:
    data = read_file(context.files, path)
    try:
        if data is not None and decode_document(data).format == UNCHECKED_FORMAT:
            replace_file(context.files, path, convert(data))
    except StoreError:
        return


def _convert_topic(data: bytes) -> bytes:
    return topic.encode_metadata(topic.decode_metadata(data))


def _convert_stage(data: bytes) -> bytes:
    return stage.encode_metadata(stage.decode_metadata(data))
