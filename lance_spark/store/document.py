"""The small JSON files of a store, each with a checksum; and `store.json`, one of them.

    {
      "format": 2,
      …
      "crc32c": "0a1b2c3d"
    }

The checksum is over all bytes before the comma in front of it, and what follows is
compared byte by byte: no flipped bit, no cut and no edit by hand goes unnoticed. All
formats from 2 on end like this, so that a newer format is told from damage.

Format 1, of releases up to 0.5, has no checksum. One flipped bit does not turn a 2 into
a 1, and a file of format 1 has its keys and no others.

`store.json` (`Identity`) has the format of the data directory, and the ids that were
given out. An id is reserved on disk before it is used, so that none is ever given out
twice, also not after a crash or a deletion. A directory of format 1 is upgraded when it
is opened. This file gets format 2 before any other, so that a release that knows only
format 1 refuses the directory instead of taking the new files for damage. `upgrading`
is true until no file of format 1 is left; from then on one is damage.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Mapping, Set
from pathlib import Path
from typing import Any, NamedTuple, Protocol, TypeVar

from lance_spark.checksum import crc32c
from lance_spark.errors import DamagedFile, StoreClosed, StoreError
from lance_spark.store.files import Files, list_ids, read_file, replace_file
from lance_spark.store.stagelog import list_inline_ids

FORMAT = 2
UNCHECKED_FORMAT = 1
_CHECKSUM = "crc32c"


class Document(NamedTuple):
    """The content of a file without format and checksum, and its format.

    A format above `FORMAT` was written by a newer release: the checksum holds.
    """

    fields: dict[str, Any]
    format: int


def encode_document(fields: Mapping[str, Any]) -> bytes:
    """Encode a file's content with format and checksum."""
    text = json.dumps({"format": FORMAT, **fields}, indent=2, ensure_ascii=False)
    body = text.encode()[: -len("\n}")]
    return body + _seal(body)


def _seal(body: bytes) -> bytes:
    return f',\n  "{_CHECKSUM}": "{crc32c(body):08x}"\n}}\n'.encode()


_SEAL_BYTES = len(_seal(b""))


def decode_document(data: bytes, *, added: Set[str] = frozenset()) -> Document:
    """Decode a file's content and verify its checksum.

    Args:
        data: the content.
        added: keys that format 1 does not have.

    Raises:
        StoreError: it is damaged.
    """
    body = data[:-_SEAL_BYTES]
    checked = data[-_SEAL_BYTES:] == _seal(body)
    try:
        fields = json.loads(data, object_pairs_hook=_unique)
    except (ValueError, RecursionError):
        fields = None
    if not isinstance(fields, dict):
        raise StoreError("the checksum does not hold")
    version = integer(fields, "format")
    del fields["format"]
    if checked:
        del fields[_CHECKSUM]
    elif version != UNCHECKED_FORMAT or fields.keys() & {_CHECKSUM, *added}:
        raise StoreError("the checksum does not hold")
    return Document(fields, version)


_NEWER = f"format {{}} is not supported; this is lance_spark's format {FORMAT}"


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    fields = dict(pairs)
    if len(fields) < len(pairs):
        raise ValueError("a key is there twice")
    return fields


def integer(fields: Mapping[str, Any], key: str, most: int = 2**64 - 1) -> int:
    """Take a number from 0 to `most`.

    Raises:
        StoreError: it is something else.
    """
    value = fields.get(key)
    if type(value) is not int or not 0 <= value <= most:
        raise StoreError(f"{key} is {str(value)[:80]}, not a number up to {most}")
    return value


def check_keys(fields: Any, keys: Set[str]) -> None:
    """Refuse anything but an object with these keys.

    Raises:
        StoreError: a key is missing or unknown.
    """
    if not isinstance(fields, dict) or fields.keys() != keys:
        raise StoreError(f"it has other fields than {', '.join(sorted(keys))}")


IDENTITY = "store.json"
_KEYS = frozenset({"next_topic", "next_stage"})
# What format 1 does not have.
_ADDED = frozenset({"upgrading"})
# Stages and topics share one space of ids, so that a stage can be appended to wherever
# a topic can; topics stay below.
FIRST_STAGE_ID = 2**31
STAGE_ID_END = 2**32
# Stages come and go with every task of a job: their ids are reserved by the block.
_STAGE_BLOCK = 1024
# How far ids jump when the file that counts them is lost: none of these was given out.
_LOST_ID_JUMP = 1_000_000


class _HasId(Protocol):
    @property
    def id(self) -> int: ...


_Metadata = TypeVar("_Metadata", bound=_HasId)


class Identity:
    """Gives out ids of topics and stages.

    Args:
        files: file operations.
        path: the file.
        next_topic: the lowest id that no topic has had.
        next_stage: the lowest id that was not reserved for stages.
        upgrading: files of format 1 may be there.
        written: the file on disk is of this format, with these ids.
    """

    def __init__(
        self,
        files: Files,
        path: Path,
        *,
        next_topic: int,
        next_stage: int,
        upgrading: bool = False,
        written: bool = False,
    ) -> None:
        self._files = files
        self._path = path
        self._lock = threading.Lock()
        self.next_topic = next_topic
        self.next_stage = self._reserved_stage = next_stage
        self._written = written
        self._closed = False
        self.upgrading = upgrading

    @classmethod
    def read(cls, files: Files, path: Path) -> Identity | None:
        """Read the file; None if it is not there.

        Raises:
            DamagedFile: it is damaged.
            StoreError: it is of a newer format.
        """
        data = read_file(files, path)
        if data is None:
            return None
        try:
            fields, version = decode_document(data, added=_ADDED)
            if version <= FORMAT:
                checked = version == FORMAT
                check_keys(fields, _KEYS | _ADDED if checked else _KEYS)
                return cls(
                    files,
                    path,
                    next_topic=integer(fields, "next_topic", FIRST_STAGE_ID),
                    next_stage=integer(
                        fields, "next_stage", STAGE_ID_END + _STAGE_BLOCK
                    ),
                    upgrading=fields.get("upgrading") is not False,
                    written=checked,
                )
        except StoreError as error:
            raise DamagedFile(path.parent, IDENTITY, str(error)) from error
        raise StoreError(f"{path}: {_NEWER.format(version)}")

    @classmethod
    def derive(cls, files: Files, root: Path, *, is_new: bool) -> Identity:
        """Make ids for a directory without the file, far above all that can be seen."""
        jump = 0 if is_new else _LOST_ID_JUMP
        stages = list_ids(files, root / "stages") + list_inline_ids(files, root)
        topics = list_ids(files, root / "segments") + list_ids(files, root / "trash")
        return cls(
            files,
            root / IDENTITY,
            next_topic=max(topics, default=0) + 1 + jump,
            next_stage=max(stages, default=FIRST_STAGE_ID - 1) + 1 + jump,
            upgrading=not is_new,
        )

    def _write(self) -> None:
        if self._closed:
            raise StoreClosed("the store is closed")
        fields = {
            "next_topic": self.next_topic,
            "next_stage": self._reserved_stage,
            "upgrading": self.upgrading,
        }
        replace_file(self._files, self._path, encode_document(fields))
        self._written = True

    def prepare(self) -> None:
        """Be sure that the file says format 2, before another file has that format."""
        with self._lock:
            if not self._written:
                self._write()

    def accept(self, document: Document) -> None:
        """Refuse a file of format 1, unless there may be some.

        Raises:
            StoreError: it has no checksum where all files have one, or a newer release
                wrote it.
        """
        if document.format > FORMAT:
            raise StoreError(_NEWER.format(document.format))
        if document.format == UNCHECKED_FORMAT and not self.upgrading:
            raise StoreError("it has format 1 and no checksum, in an upgraded store")

    def read_metadata(
        self, path: Path, what: str, decode: Callable[[bytes], _Metadata]
    ) -> _Metadata | None:
        """Read the file of a topic or stage in its directory; None if there is none.

        Raises:
            StoreError: it is damaged, or that of another one.
        """
        data = read_file(self._files, path)
        if data is None:
            return None
        self.accept(decode_document(data))
        metadata = decode(data)
        if str(metadata.id) != path.parent.name:
            raise StoreError(f"it is that of {what} {metadata.id}")
        return metadata

    def finish_upgrade(self) -> None:
        """Say that no file of format 1 is left."""
        if self.upgrading:
            with self._lock:
                self.upgrading = False
                self._write()

    def close(self) -> None:
        """Write nothing more: a caller that is late would take ids from the next owner.

        A topic's id that was given out twice would mix the rows of two topics.
        """
        with self._lock:
            self._closed = True

    def new_topics(self, count: int) -> range:
        """Give out the ids of several topics, with one write for all."""
        with self._lock:
            ids = range(self.next_topic, self.next_topic + count)
            if ids.stop > FIRST_STAGE_ID:
                raise StoreError("no topic id is left")
            self.next_topic = ids.stop
            if count:
                self._write()
            return ids

    def new_stage(self) -> int:
        """Give out a stage's id."""
        with self._lock:
            if self.next_stage >= STAGE_ID_END:
                raise StoreError("no stage id is left")
            if self.next_stage == self._reserved_stage:
                self._reserved_stage += _STAGE_BLOCK
                try:
                    self._write()
                except OSError:
                    self._reserved_stage -= _STAGE_BLOCK
                    raise
            stage = self.next_stage
            self.next_stage += 1
            return stage
