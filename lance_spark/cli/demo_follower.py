"""The demo's consumer: follows a topic in a thread, through a crash of its server."""

from __future__ import annotations

import threading
from typing import NamedTuple

from crc32c import crc32c

from lance_spark.client import LanceClient, RecordReader
from lance_spark.errors import LanceError

# How long the server holds a fetch at the end of the log.
_WAIT_S = 0.1
_FINISH_S = 60.0


class Seen(NamedTuple):
    """What was read of a topic, from its beginning on."""

    records: int = 0
    end: int = 0
    crc: int = 0


class Follower:
    """Reads a topic as it grows, on a connection of its own.

    Args:
        client: says how to reach the server; it stays open.
        topic: the topic's name.
    """

    def __init__(self, client: LanceClient, topic: str) -> None:
        self.seen = Seen()
        self._client = client.dedicated()
        self._topic = topic
        self._end: int | None = None
        self._error: LanceError | None = None
        # A daemon: Ctrl-C may come while it starts, before anybody would end it.
        self._thread = threading.Thread(
            target=self._run, name="demo-follower", daemon=True
        )

    def __enter__(self) -> Follower:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        # Ends whatever the thread waits for.
        self._client.close()
        self._thread.join()

    def finish(self, end: int) -> Seen:
        """Wait until everything before an offset was read, and tell what it was.

        Raises:
            LanceError: it could not be read.
        """
        self._end = end
        self._thread.join(_FINISH_S)
        if self._error is not None:
            raise self._error
        if self.seen.end != end:
            raise LanceError(f"the consumer read up to {self.seen.end} of {end} bytes")
        return self.seen

    def _run(self) -> None:
        try:
            reader = RecordReader(self._client, self._topic, 0)
            while self._end is None or reader.position < self._end:
                chunk = reader.next_chunk(_WAIT_S)
                if chunk is not None:
                    self.seen = Seen(
                        self.seen.records + chunk.records,
                        chunk.end,
                        crc32c(chunk.data, self.seen.crc),
                    )
        except LanceError as error:
            self._error = error
