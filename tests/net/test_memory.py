from __future__ import annotations

import pytest

from lance_spark.errors import ConnectionLost, Timeout
from lance_spark.net.deadline import Deadline
from lance_spark.net.memory import make_pair
from tests.net.conftest import soon


def test_holds_exactly_its_buffer() -> None:
    left, right = make_pair(buffer_bytes=10)
    left.send([b"12345", b"67890"], Deadline.after(0))
    with pytest.raises(Timeout):
        left.send([b"x"], Deadline.after(0))
    # The other direction has a buffer of its own.
    right.send([b"1234567890"], Deadline.after(0))


def test_what_fits_is_there_after_a_timeout() -> None:
    left, right = make_pair(buffer_bytes=4)
    with pytest.raises(Timeout):
        left.send([b"abc", b"def"], Deadline.after(0))
    buffer = memoryview(bytearray(10))
    assert right.recv_into(buffer, soon()) == 4
    assert bytes(buffer[:4]) == b"abcd"


def test_data_is_copied_when_it_is_sent() -> None:
    left, right = make_pair()
    data = bytearray(b"abc")
    left.send([data], soon())
    data[:] = b"xyz"
    buffer = memoryview(bytearray(3))
    right.recv_into(buffer, soon())
    assert bytes(buffer) == b"abc"


def test_sending_to_a_closed_end() -> None:
    left, right = make_pair()
    right.close()
    with pytest.raises(ConnectionLost, match="other end takes no more"):
        left.send([b"x"], soon())


def test_data_is_there_after_the_sender_has_closed() -> None:
    left, right = make_pair()
    left.send([b"abc"], soon())
    left.close()
    buffer = memoryview(bytearray(10))
    assert right.recv_into(buffer, soon()) == 3
    assert right.recv_into(buffer, soon()) == 0
