"""`store.json`: the format of a data directory, and the ids that were given out.

An id is reserved on disk before it is used, so that none is ever given out twice, also
not after a crash or a deletion.
"""

from __future__ import annotations

import json
import threading
from pathlib import Path

from lance_spark.errors import StoreError
from lance_spark.store.files import Files, read_file, replace_file
from lance_spark.store.stage import FIRST_STAGE_ID, STAGE_ID_END

FILE = "store.json"
FORMAT = 1
# Stages come and go with every task of a job: their ids are reserved by the block.
_STAGE_BLOCK = 1024


class Identity:
    """Gives out ids of topics and stages."""

    def __init__(
        self, files: Files, path: Path, *, next_topic: int, next_stage: int
    ) -> None:
        self._files = files
        self._path = path
        self._lock = threading.Lock()
        self._next_topic = next_topic
        self._next_stage = self._reserved_stage = next_stage

    @classmethod
    def read(cls, files: Files, path: Path) -> Identity | None:
        """Read the file; None if it is not there.

        Raises:
            StoreError: it is of another format, or damaged.
        """
        data = read_file(files, path)
        if data is None:
            return None
        try:
            fields = json.loads(data)
            if fields["format"] != FORMAT:
                raise StoreError(
                    f"{path}: format {fields['format']} is not supported; this is "
                    f"lance_spark's format {FORMAT}"
                )
            topic, stage = int(fields["next_topic"]), int(fields["next_stage"])
        except (ValueError, KeyError, TypeError) as error:
            raise StoreError(f"{path}: can't be read: {error!r}") from error
        return cls(files, path, next_topic=topic, next_stage=stage)

    def write(self) -> None:
        """Write the file."""
        fields = {
            "format": FORMAT,
            "next_topic": self._next_topic,
            "next_stage": self._reserved_stage,
        }
        data = json.dumps(fields, indent=2).encode() + b"\n"
        replace_file(self._files, self._path, data)

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
                self.write()
            return range(first, first + count)

    def new_stage(self) -> int:
        """Give out a stage's id."""
        with self._lock:
            if self._next_stage >= STAGE_ID_END:
                raise StoreError("no stage id is left")
            if self._next_stage == self._reserved_stage:
                self._reserved_stage += _STAGE_BLOCK
                try:
                    self.write()
                except OSError:
                    self._reserved_stage -= _STAGE_BLOCK
                    raise
            stage = self._next_stage
            self._next_stage += 1
            return stage
