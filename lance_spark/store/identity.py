"""`store.json`: the format of a data directory, and the ids that were given out.

An id is reserved on disk before it is used, so that none is ever given out twice, also
not after a crash or a deletion.

A directory of format 1 is upgraded when it is opened. This file gets format 2 before
any other, so that a release that knows only format 1 refuses the directory instead of
taking the new files for damage. `upgrading` is true until no file of format 1 is left;
from then on one is damage.
"""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

from lance_spark.errors import DamagedFile, StoreClosed, StoreError
from lance_spark.store.document import (
    FORMAT,
    UNCHECKED_FORMAT,
    Document,
    check_keys,
    check_supported,
    decode_document,
    encode_document,
    integer,
)
from lance_spark.store.files import Files, read_file, replace_file

FILE = "store.json"
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
        self._next_topic = next_topic
        self._next_stage = self._reserved_stage = next_stage
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
            document = decode_document(data, added=_ADDED)
        except StoreError as error:
            raise DamagedFile(path.parent, FILE, str(error)) from error
        try:
            check_supported(document)
        except StoreError as error:
            raise StoreError(f"{path}: {error}") from error
        fields, checked = document.fields, document.format == FORMAT
        try:
            check_keys(fields, _KEYS | _ADDED if checked else _KEYS)
            return cls(
                files,
                path,
                next_topic=integer(fields, "next_topic", FIRST_STAGE_ID),
                next_stage=integer(fields, "next_stage", STAGE_ID_END + _STAGE_BLOCK),
                upgrading=fields.get("upgrading") is not False,
                written=checked,
            )
        except StoreError as error:
            raise DamagedFile(path.parent, FILE, str(error)) from error

    @classmethod
    def derive(cls, files: Files, root: Path, *, is_new: bool) -> Identity:
        """Make ids for a directory without the file, far above all that can be seen."""
        jump = 0 if is_new else _LOST_ID_JUMP
        topics = [0, *_ids(files, root / "segments"), *_ids(files, root / "trash")]
        stages = [FIRST_STAGE_ID - 1, *_ids(files, root / "stages")]
        return cls(
            files,
            root / FILE,
            next_topic=max(topics) + 1 + jump,
            next_stage=max(stages) + 1 + jump,
            upgrading=not is_new,
        )

    def write(self) -> None:
        """Write the file."""
        with self._lock:
            self._write()

    def _write(self) -> None:
        if self._closed:
            raise StoreClosed("the store is closed")
        fields = {
            "next_topic": self._next_topic,
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

    def accept(self, document: Document) -> dict[str, Any]:
        """Take the fields of a file; one of format 1 only while there may be some.

        Raises:
            StoreError: it has no checksum where all files have one.
        """
        check_supported(document)
        if document.format == UNCHECKED_FORMAT and not self.upgrading:
            raise StoreError("it has format 1 and no checksum, in an upgraded store")
        return document.fields

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

    @property
    def next_topic(self) -> int:
        """The lowest id that no topic has had."""
        return self._next_topic

    @property
    def next_stage(self) -> int:
        """The lowest id that no stage has had."""
        return self._next_stage

    def new_topic(self) -> int:
        """Give out a topic's id."""
        return self.new_topics(1)[0]

    def new_topics(self, count: int) -> range:
        """Give out the ids of several topics, with one write for all."""
        with self._lock:
            first = self._next_topic
            if first + count > FIRST_STAGE_ID:
                raise StoreError("no topic id is left")
            self._next_topic += count
            if count:
                self._write()
            return range(first, first + count)

    def new_stage(self) -> int:
        """Give out a stage's id."""
        with self._lock:
            if self._next_stage >= STAGE_ID_END:
                raise StoreError("no stage id is left")
            if self._next_stage == self._reserved_stage:
                self._reserved_stage += _STAGE_BLOCK
                try:
                    self._write()
                except OSError:
                    self._reserved_stage -= _STAGE_BLOCK
                    raise
            stage = self._next_stage
            self._next_stage += 1
            return stage


def _ids(files: Files, directory: Path) -> list[int]:
    return [int(e.name) for e in files.list(directory) if e.name.isdecimal()]
