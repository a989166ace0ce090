"""Both forms of Fetch and of its answer."""

from __future__ import annotations

import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lance_spark.errors import LocalProtocolError, RemoteProtocolError
from lance_spark.wire.lwp import (
    ExtendedFetchResponse,
    Fetch,
    FetchFlags,
    FetchResponse,
    decode_fetch_response,
    encode_extended_head,
    encode_fetch_head,
)
from tests.wire.messages import extended_fetch_responses
from tests.wire.vectors import join


def test_short_request_unless_options_are_used() -> None:
    assert len(join(Fetch(1, 2, 3).encode_payload())) == 16
    assert len(join(Fetch(1, 2, 3, FetchFlags.SNAP).encode_payload())) == 24
    assert len(join(Fetch(1, 2, 3, max_wait_ms=1).encode_payload())) == 24


def test_long_request_without_options() -> None:
    payload = struct.pack("<IQIII", 1, 2, 3, 0, 0)
    assert Fetch.decode_payload(payload) == Fetch(1, 2, 3)


def test_data_is_not_copied() -> None:
    data = bytearray(b"records")
    for response in (FetchResponse(9, 1, data), ExtendedFetchResponse(2, 9, 9, data)):
        assert response.encode_payload()[-1] is data
    payload = join(FetchResponse(9, 1, data).encode_payload())
    assert decode_fetch_response(payload).data.obj is payload


def test_size_of_data_is_in_bytes() -> None:
    words = memoryview(bytes(12)).cast("I")
    payload = FetchResponse(12, 1, words).encode_payload()
    assert payload[0] == struct.pack("<QII", 12, 12, 1)


@given(extended_fetch_responses())
def test_extended_is_found_by_its_size(response: ExtendedFetchResponse) -> None:
    payload = join(response.encode_payload())
    assert decode_fetch_response(payload, extended=True) == response
    if response.start % 2**32 != 8:
        assert decode_fetch_response(payload) == response


@given(st.integers(0, 2**64 - 1), st.integers(0, 2**32 - 1), st.binary())
def test_short_is_found_by_its_size(offset: int, count: int, data: bytes) -> None:
    response = FetchResponse(offset, count, data)
    payload = join(response.encode_payload())
    assert decode_fetch_response(payload) == response
    assert decode_fetch_response(payload, extended=False) == response


def test_neither_form() -> None:
    for payload in (b"", bytes(15), bytes(17), struct.pack("<QQQ", 5, 4, 9)):
        with pytest.raises(RemoteProtocolError, match="Invalid fetch response payload"):
            decode_fetch_response(payload)


@pytest.mark.parametrize(("start", "end"), [(5, 4), (0, 1), (0, 2**64 - 1)])
def test_offsets_that_do_not_fit_the_data(start: int, end: int) -> None:
    with pytest.raises(RemoteProtocolError, match="0 bytes for"):
        ExtendedFetchResponse.decode_payload(struct.pack("<QQQ", start, end, 9))


@given(st.integers(0, 2**64 - 1), st.integers(0, 2**32 - 1), st.binary(max_size=50))
def test_a_head_and_the_data_behind_it_are_a_response(
    offset: int, count: int, data: bytes
) -> None:
    head = encode_fetch_head(offset, len(data), count)
    assert len(head) == 16
    response = decode_fetch_response(head + data, extended=False)
    assert response == FetchResponse(offset, count, data)


@given(extended_fetch_responses())
def test_an_extended_head_and_the_data(response: ExtendedFetchResponse) -> None:
    mark = response.high_water_mark
    head = encode_extended_head(response.start, response.end, mark)
    assert len(head) == 24
    payload = head + bytes(response.data)
    assert decode_fetch_response(payload, extended=True) == response


def test_heads_that_do_not_fit() -> None:
    with pytest.raises(LocalProtocolError):
        encode_fetch_head(2**64, 0, 0)
    with pytest.raises(LocalProtocolError):
        encode_extended_head(0, -1, 0)
