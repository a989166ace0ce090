"""What servers as in the field share: a socket, connections, and what goes wrong."""

from __future__ import annotations

import threading
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from typing import Any, TypeVar

from lance_spark.errors import LanceError
from lance_spark.net.address import Address
from lance_spark.net.deadline import Deadline
from lance_spark.net.listener import Listener
from lance_spark.net.stream import Stream

PATIENCE_S = 20.0
Lie = Callable[[Any, Any], Iterable[bytes] | None]
_Server = TypeVar("_Server", bound="FieldServerBase")


class FieldServerBase(ABC):
    """One server, on a real socket, that keeps everything in memory."""

    # What is sent before the first request.
    first_words: Sequence[bytes] = ()

    def __init__(self) -> None:
        self.asked: Counter[str] = Counter()
        # How many of the next appends are stored, and never answered …
        self.answers_to_lose = 0
        # … and how many are neither.
        self.appends_to_lose = 0
        # Sends something else than the answer to a request; None for the answer.
        self.lie: Lie | None = None
        self.lock = threading.Lock()
        self._streams: set[Stream] = set()
        self._threads: list[threading.Thread] = []
        self._listener = Listener(Address("127.0.0.1", 0))
        self.address = str(self._listener.address)
        self._start(self._accept)

    def __enter__(self: _Server) -> _Server:
        return self

    def __exit__(self, *error: object) -> None:
        self._listener.stop()
        self.drop()
        for thread in self._threads:
            thread.join(PATIENCE_S)
        self._listener.close()

    def drop(self) -> None:
        """End all connections."""
        with self.lock:
            for stream in self._streams:
                stream.abort()

    @abstractmethod
    def make_parser(self) -> Any:
        """Make the parser of what clients send."""

    @abstractmethod
    def answer_all(self, stream: Stream, parser: Any) -> bool:
        """Answer the frames that are there; false ends the connection."""

    def send(self, stream: Stream, parts: Iterable[Any]) -> None:
        """Send frames, one by one."""
        for part in parts:
            stream.send([part], Deadline.after(PATIENCE_S))

    def _start(self, target: Any, *arguments: Any) -> None:
        thread = threading.Thread(target=target, args=arguments, daemon=True)
        self._threads.append(thread)
        thread.start()

    def _accept(self) -> None:
        while (stream := self._listener.accept()) is not None:
            with self.lock:
                self._streams.add(stream)
            self._start(self._serve, stream)

    def _serve(self, stream: Stream) -> None:
        parser = self.make_parser()
        try:
            with suppress(LanceError):
                self.send(stream, self.first_words)
                while self.answer_all(stream, parser):
                    room = parser.buffer_for_read()
                    size = stream.recv_into(room, Deadline.after(PATIENCE_S))
                    if not size:
                        return
                    parser.bytes_written(size)
        finally:
            with self.lock:
                self._streams.discard(stream)
                stream.close()
