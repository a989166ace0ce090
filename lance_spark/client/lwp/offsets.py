"""Where consumers remember how far they have come.

A store keeps one offset per consumer and topic: the first byte that the consumer has
not been given yet. Three are here: in memory, in files, on the broker. Files are laid
out so that one process can't overwrite what another one counts on:

    <consumer>@<topic>.offset   `v2`, the offset as a decimal number, the incarnation of
                                the topic if it is known, such as 7@1706918400, and
                                the CRC32C of all that in eight hex digits. Files up
                                to 0.5 have neither the first nor the last.
    <consumer>@<topic>.lock     held by flock from the first use to `close`
    <consumer>@<topic>.tmp      the next offset until it takes the place of the first

Names are percent-encoded, capital letters too, because some file systems take `A` and
`a` for the same. A topic that is given as a number is `#7`, which no name becomes.

An offset means nothing in another topic of the same name. So a consumer says which
topic its offsets belong to (`IncarnationStore`); the stores here that keep offsets by
name keep that beside them, and the consumer compares.

A broker knows a consumer by a number, as LWP has no names for them. The number of a
name must be the same in every process and release, or commits made by one are not found
by the next:

    the first 8 bytes of SHA-256 of the name in UTF-8, as a little-endian integer;
    1 in the place of 0

This rule is fixed for ever.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import re
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from io import FileIO
from pathlib import Path
from typing import NamedTuple, Protocol, runtime_checkable

from lance_spark.checksum import crc32c
from lance_spark.client.lwp.client import LanceClient
from lance_spark.errors import LanceError, OptionError

_ID_BYTES = 8
_OFFSET_MAX = 2**64 - 1
# An offset, perhaps the topic's id and time of creation, and the end of the line.
_CONTENT = re.compile(rb"([0-9]{1,20})(?: ([0-9]{1,10})@([0-9]{1,20}))?\n?")
# No single flipped bit makes a checked one look like one of 0.5, whose first part is a
# number and whose last one has an @ if there are two.
_CHECKED = re.compile(rb"(v2 [0-9@ ]+) ([0-9a-f]{8})\n")
_CONTENT_BYTES_MAX = 3 + 20 + 1 + 10 + 1 + 20 + 1 + 8 + 1

_PLAIN = frozenset(b"abcdefghijklmnopqrstuvwxyz0123456789-_.")
# File systems stop at 255 bytes. A longer name is cut, and a hash tells it apart.
_STEM_BYTES_MAX = 200
_STEM_BYTES_KEPT = 100


# The consumer and the topic.
_Key = tuple[str, "int | str"]


def consumer_id(name: str) -> int:
    """Return the number of a consumer's or group's name, from 1 to 2^64 - 1.

    Raises:
        OptionError: if the name is empty or not text that UTF-8 can hold.
    """
    if not name:
        raise OptionError("a consumer's name can't be empty")
    try:
        encoded = name.encode()
    except UnicodeEncodeError:
        raise OptionError(f"consumer name {name!r} can't be written as UTF-8") from None
    digest = hashlib.sha256(encoded).digest()
    return int.from_bytes(digest[:_ID_BYTES], "little") or 1


class Incarnation(NamedTuple):
    """What tells a topic from another that had, or will have, the same name."""

    topic_id: int
    created_at_s: int


class OffsetStore(Protocol):
    """What a consumer needs to remember offsets; write your own to keep them elsewhere.

    `topic` is what the consumer was given: a name, or the number of a topic. A store
    that keeps nothing but offsets can be used, but then a consumer goes on in the
    middle of a topic that was created anew. An `IncarnationStore` lets it notice that.
    """

    def load(self, consumer: str, topic: int | str) -> int | None:
        """Return the offset that was saved last, None if none was."""

    def save(self, consumer: str, topic: int | str, offset: int) -> None:
        """Remember an offset; it may be lower than the last one."""

    def close(self) -> None:
        """Give up what the store holds; it can't be used afterwards."""


@runtime_checkable
class IncarnationStore(OffsetStore, Protocol):
    """A store that also keeps which topic of a name its offsets belong to."""

    def load_incarnation(self, consumer: str, topic: int | str) -> Incarnation | None:
        """Return what was saved with the last offset; None if nothing was.

        Then the offset is taken for one of the topic that has the name now.
        """

    def identify(
        self, consumer: str, topic: int | str, incarnation: Incarnation
    ) -> None:
        """Say which topic the offsets belong to that are saved from now on."""


class MemoryOffsetStore:
    """Remembers offsets for as long as the process lives; any thread may use it."""

    def __init__(self) -> None:
        self._offsets: dict[_Key, int] = {}
        self._saved: dict[_Key, Incarnation | None] = {}
        self._incarnations: dict[_Key, Incarnation] = {}

    def load(self, consumer: str, topic: int | str) -> int | None:
        """Return the offset that was saved last, None if none was."""
        return self._offsets.get((consumer, topic))

    def save(self, consumer: str, topic: int | str, offset: int) -> None:
        """Remember an offset."""
        check_u64(offset)
        key = consumer, topic
        self._offsets[key], self._saved[key] = offset, self._incarnations.get(key)

    def load_incarnation(self, consumer: str, topic: int | str) -> Incarnation | None:
        """Return what was known of the topic when the last offset was saved."""
        return self._saved.get((consumer, topic))

    def identify(
        self, consumer: str, topic: int | str, incarnation: Incarnation
    ) -> None:
        """Say which topic the offsets belong to that are saved from now on."""
        self._incarnations[consumer, topic] = incarnation

    def close(self) -> None:
        """Do nothing: what is remembered stays for the next consumer."""


class BrokerOffsetStore:
    """Remembers offsets on the broker, which knows a consumer by `consumer_id`.

    Whether they survive a restart is the server's affair: ours keeps them on disk.
    They belong to the id of a topic: one that is created anew has none.
    """

    def __init__(self, client: LanceClient) -> None:
        self._client = client
        self._incarnations: dict[_Key, Incarnation] = {}

    def load(self, consumer: str, topic: int | str) -> int | None:
        """Return the committed offset, None if there is none."""
        return self._client.committed_offset(topic, consumer_id(consumer))

    def save(self, consumer: str, topic: int | str, offset: int) -> None:
        """Commit an offset.

        Raises:
            TopicNotFound: the topic that the offset belongs to is gone.
        """
        check_u64(offset)
        known = self._incarnations.get((consumer, topic))
        # Under the same name there may be another topic by now.
        meant = topic if known is None else known.topic_id
        self._client.commit_offset(meant, consumer_id(consumer), offset)

    def load_incarnation(self, consumer: str, topic: int | str) -> None:
        """Return none: the broker has offsets of the topic that is there alone."""

    def identify(
        self, consumer: str, topic: int | str, incarnation: Incarnation
    ) -> None:
        """Say which topic the offsets belong to that are saved from now on."""
        self._incarnations[consumer, topic] = incarnation

    def close(self) -> None:
        """Do nothing: the caller closes the client."""


class LockFileOffsetStore:
    """Remembers offsets in files of a directory, each used by one store at a time.

    Any thread may use it. A saved offset survives a loss of power.

    Args:
        directory: made if it is not there.
    """

    def __init__(self, directory: Path | str) -> None:
        self._directory = Path(directory)
        self._mutex = threading.Lock()
        self._locks: dict[str, FileIO] = {}
        self._incarnations: dict[_Key, Incarnation] = {}
        self._closed = False

    def load(self, consumer: str, topic: int | str) -> int | None:
        """Return the offset that was saved last, None if none was.

        Raises:
            OptionError: if another store uses the file, or the directory is no good.
            LanceError: if the file holds something else.
        """
        found = self._read(consumer, topic)
        return None if found is None else found[0]

    def load_incarnation(self, consumer: str, topic: int | str) -> Incarnation | None:
        """Return what the file has beside the offset; raises as `load` does."""
        found = self._read(consumer, topic)
        return None if found is None else found[1]

    def identify(
        self, consumer: str, topic: int | str, incarnation: Incarnation
    ) -> None:
        """Say which topic the offsets belong to that are saved from now on."""
        self._incarnations[consumer, topic] = incarnation

    def _read(
        self, consumer: str, topic: int | str
    ) -> tuple[int, Incarnation | None] | None:
        with self._mutex, _errors_named(self._directory, "read an offset in"):
            path = self._directory / f"{self._claim(consumer, topic)}.offset"
            try:
                with path.open("rb") as file:
                    content = file.read(_CONTENT_BYTES_MAX + 1)
            except FileNotFoundError:
                return None
        return _parse_content(content, path)

    def save(self, consumer: str, topic: int | str, offset: int) -> None:
        """Remember an offset.

        Raises:
            OptionError: if another store uses the file, or the directory is no good.
        """
        check_u64(offset)
        with self._mutex, _errors_named(self._directory, "save an offset in"):
            stem = self._claim(consumer, topic)
            fresh = self._directory / f"{stem}.tmp"
            with fresh.open("wb") as file:
                known = self._incarnations.get((consumer, topic))
                file.write(_make_content(offset, known))
                file.flush()
                os.fsync(file.fileno())
            fresh.replace(self._directory / f"{stem}.offset")
            _sync_directory(self._directory)

    def close(self) -> None:
        """Let others use the files."""
        with self._mutex:
            self._closed = True
            for lock in self._locks.values():
                lock.close()
            self._locks.clear()

    def __enter__(self) -> LockFileOffsetStore:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _claim(self, consumer: str, topic: int | str) -> str:
        """Return the stem of a consumer's files, locked until `close`."""
        if self._closed:
            raise LanceError(f"the offset store {self._directory} is closed")
        stem = _make_stem(consumer, topic)
        if stem in self._locks:
            return stem
        self._directory.mkdir(parents=True, exist_ok=True)
        path = self._directory / f"{stem}.lock"
        # The file stays behind when it is released: to remove it would let a third
        # store lock a new one while a second still waits for the old.
        lock = FileIO(path, "ab")
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            lock.close()
            raise OptionError(
                f"offsets of consumer {consumer!r} in topic {topic!r} are in use by "
                f"another process or store ({path}): close that one, or give this "
                "consumer another name"
            ) from None
        except BaseException:
            lock.close()
            raise
        self._locks[stem] = lock
        return stem


def _make_stem(consumer: str, topic: int | str) -> str:
    """Name the files of a consumer and topic; no two pairs share a name."""
    second = f"#{topic}" if isinstance(topic, int) else _encode_name(topic)
    stem = f"{_encode_name(consumer)}@{second}"
    if len(stem) <= _STEM_BYTES_MAX:
        return stem
    digest = hashlib.sha256(stem.encode()).hexdigest()
    return f"{stem[:_STEM_BYTES_KEPT]}+{digest}"


def _encode_name(name: str) -> str:
    if not name:
        raise OptionError("an offset store needs a consumer's and a topic's name")
    encoded = name.encode(errors="surrogatepass")
    return "".join(chr(b) if b in _PLAIN else f"%{b:02x}" for b in encoded)


def _make_content(offset: int, incarnation: Incarnation | None) -> bytes:
    content = b"v2 %d" % offset
    if incarnation is not None:
        content += b" %d@%d" % incarnation
    return content + b" %08x\n" % crc32c(content)


def _parse_content(content: bytes, path: Path) -> tuple[int, Incarnation | None]:
    said, checked = content, _CHECKED.fullmatch(content)
    if checked and int(checked[2], 16) == crc32c(checked[1]):
        said = checked[1].removeprefix(b"v2 ")
    match = _CONTENT.fullmatch(said)
    if match and int(match[1]) <= _OFFSET_MAX:
        incarnation = Incarnation(int(match[2]), int(match[3])) if match[2] else None
        return int(match[1]), incarnation
    raise LanceError(
        f"{path} holds {content[:40]!r}, which is damaged or not an offset: write the "
        "right one there as a decimal number, or delete the file to start where "
        "offset_reset says"
    )


def check_u64(value: int, what: str = "an offset") -> None:
    """Refuse with an OptionError what LWP has no 64 bits for."""
    if not isinstance(value, int) or not 0 <= value <= _OFFSET_MAX:
        raise OptionError(f"{value} is not {what}: it must be 0 to {_OFFSET_MAX}")


def _sync_directory(directory: Path) -> None:
    descriptor = os.open(directory, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


@contextmanager
def _errors_named(directory: Path, what: str) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise OptionError(
            f"can't {what} {directory}: {error}; "
            "give the offset store a directory that it may write"
        ) from error
