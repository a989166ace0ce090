"""A server finds out how its client writes."""

from __future__ import annotations

import tracemalloc

import pytest

from lance_spark.errors import RemoteProtocolError
from lance_spark.wire import kimberlite as wire
from lance_spark.wire.kimberlite import V5, WIRES, Peer, Request
from tests.each import each
from tests.wire.kimberlite.reference import VECTORS, find, frame_of, parse, simplify
from tests.wire.rustlog.plain import join, list_values, make_records

TOP = 2**64 - 1
RECORDS = make_records([b"one", b"", b"x" * 300])


class TestPeer:
    def ask(self, peer, body, form, number=1):
        frame = parse(join(wire.encode_message(Request(number, 42, body), form)))
        return peer.decode_request(frame)

    def test_all_vectors(self):
        for vector in VECTORS:
            if vector.is_request:
                peer = Peer()
                request = peer.decode_request(parse(vector.data))
                expected = wire.decode_request(parse(vector.data), vector.wire)
                assert simplify(request) == simplify(expected), vector.name
                # Handshakes and some others are the same before and since 0.8.
                names = {vector.wire.name, vector.wire.name.partition("-0")[0]}
                assert peer.wire is not None and peer.wire.name in names

    @pytest.mark.parametrize("form", WIRES.values(), ids=lambda form: form.name)
    def test_a_client_of_every_form(self, form):
        peer = Peer()
        assert peer.wire is None
        expected = None if form.version < 1 else 0
        bodies = [
            wire.Handshake(form.frame_version, "token"),
            wire.CreateStream("events"),
            wire.AppendEvents(1, RECORDS, expected),
            wire.ReadEvents(1, 0, 100),
            wire.Query("SELECT 1"),
            *([wire.StreamInfo(300)] if form.version >= 6 else []),
            *([wire.Subscribe(1, 0, 5)] if form.numbering >= 1 else []),
            wire.Sync(),
            wire.AppendEvents(1, make_records([bytes(40)]), expected),
        ]
        if form.version >= 2:
            bodies += [wire.SubscribeCredit(1, 5), wire.Unsubscribe(1)]
        for number, body in enumerate(bodies, 1):
            request = self.ask(peer, body, form, number)
            assert simplify(request) == simplify(Request(number, 42, body))
        assert peer.wire is form

    @pytest.mark.parametrize(
        "body",
        [
            wire.Subscribe(1, 0, 5),
            wire.Sync(),
            wire.SubscribeCredit(1, 5),
            wire.Unsubscribe(1),
        ],
    )
    @pytest.mark.parametrize("name", ["v5", "v5-0.6"])
    def test_numbers_of_release_0_8(self, body, name):
        peer = Peer()
        assert self.ask(peer, wire.ReadEvents(1, 2, 3), V5).body.max_bytes == 3
        assert self.ask(peer, body, WIRES[name]).body == body
        assert peer.wire is WIRES[name]
        # It is remembered: what only the other form has is unknown or malformed.
        other = WIRES["v5" if name == "v5-0.6" else "v5-0.6"]
        with pytest.raises(RemoteProtocolError):
            self.ask(peer, wire.Subscribe(1, 0, 5), other)
        assert peer.wire is WIRES[name]

    def test_stream_info_is_not_a_subscription(self):
        for stream in (1, 300, TOP):
            peer = Peer()
            assert self.ask(peer, wire.StreamInfo(stream), V5).body.stream_id == stream
            assert peer.wire is V5

    def test_zeros_are_no_bincode(self):
        # Read as bincode this is a Sync, of exactly as many bytes.
        form, events = WIRES["v1-postcard"], make_records([bytes(10) + b"\6\0\0"])
        body = wire.AppendEvents(3, events, 0)
        frame = parse(join(wire.encode_message(Request(1, 1, body), form)))
        misread = wire.decode_request(frame, WIRES["v1-bincode"])
        assert misread.body == wire.Sync()
        peer = Peer()
        assert list_values(peer.decode_request(frame).body.events) == list_values(
            events
        )
        assert peer.wire is form

    def test_a_peer_of_the_specification_after_ambiguous_requests(self):
        peer = Peer()
        literal = WIRES["v1-literal"]
        assert self.ask(peer, wire.AppendEvents(1, RECORDS), literal)
        assert self.ask(peer, wire.ReadEvents(1, 2, 3), literal)
        assert peer.wire is WIRES["v1-bincode"]
        assert self.ask(peer, wire.CreateStream("events"), literal)
        assert peer.wire is literal

    def test_requests_that_only_others_know(self):
        for number in (11, 22, 2**32 - 1):
            peer = Peer()
            request = self.ask(peer, wire.Unknown(number, b"\1\2"), V5, 7)
            assert simplify(request.body) == (wire.Unknown, number, b"\1\2")
            assert (request.id, peer.wire) == (7, V5)
        # ListTables of 0.6, which has no body, where 0.8 has Unsubscribe.
        request = self.ask(Peer(), wire.Unknown(10), V5)
        assert isinstance(request.body, wire.Unknown)
        # At version 1 everything would be one, in one form or another.
        with pytest.raises(RemoteProtocolError):
            Peer().decode_request(frame_of(b"\1\2\x20", 1))
        peer = Peer()
        postcard = WIRES["v1-postcard"]
        self.ask(peer, wire.Handshake(1), postcard)
        assert self.ask(peer, wire.Unknown(9), postcard).body.number == 9

    def test_what_fails_is_not_remembered(self):
        peer = Peer()
        with pytest.raises(RemoteProtocolError):
            peer.decode_request(frame_of(b"\0\1\1\0\6"))
        assert peer.wire is None
        self.ask(peer, wire.Handshake(1), WIRES["v1-bincode"])
        for wrong in (b"", b"\0", bytes(20)):
            with pytest.raises(RemoteProtocolError):
                peer.decode_request(frame_of(wrong, 1))
        assert peer.wire is WIRES["v1-bincode"]

    def test_the_version_stays(self):
        peer = Peer()
        self.ask(peer, wire.Handshake(5), V5)
        with pytest.raises(RemoteProtocolError, match="version 3, this side speaks v5"):
            self.ask(peer, wire.Handshake(3), WIRES["v3"])

    def test_answers_are_no_requests(self):
        for name in ("accepted_1", "accepted_13"):
            with pytest.raises(RemoteProtocolError, match="another direction"):
                Peer().decode_request(find(name))
        with pytest.raises(RemoteProtocolError, match="another direction"):
            wire.decode_response(find("client_1"))


MANY = 300_000
# One character that takes four bytes makes all of a text take four bytes each.
WIDE = "\U0001f600" + "x" * MANY
LARGE = {
    "events": (wire.AppendEvents(1, make_records([b""] * MANY), 0), None),
    "SQL": (wire.Query(WIDE), None),
    "SQL at a position": (wire.QueryAt(WIDE, ("x",), 3), None),
    "parameter": (wire.Query("SELECT $1", (WIDE,)), None),
    "name": (wire.CreateStream(WIDE), None),
    "region": (wire.CreateStream("s", region=WIDE), None),
    "token": (wire.Handshake(5, WIDE), None),
    "group": (wire.Subscribe(1, 0, 5, WIDE), None),
    "audit": (wire.Sync(), wire.Audit(None, WIDE, WIDE)),
}


@each("name", LARGE)
def test_what_a_request_takes_is_known_before(name):
    body, audit = LARGE[name]
    request = Request(1, 42, body, audit)
    frame = parse(join(wire.encode_message(request, V5)))
    tracemalloc.start()
    try:
        known = wire.find_memory(frame)
        if name in ("events", "SQL", "SQL at a position", "parameter"):
            assert known >= MANY
            assert type(Peer().decode_request(frame).body) is type(body)
        else:
            with pytest.raises(RemoteProtocolError, match="65536 are the most here"):
                Peer().decode_request(frame)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < known + 100_000


@each("form", WIRES.values(), ids=[form.name for form in WIRES.values()])
def test_memory_in_every_form(form):
    """A form that is not the client's adds nothing to what an append takes."""
    expected = None if form.version < 1 else 0
    body = wire.AppendEvents(1, make_records([b"x" * 50] * 1000), expected)
    frame = parse(join(wire.encode_message(Request(1, 42, body), form)))
    assert wire.find_memory(frame) == 16 * 1000
    query = parse(join(wire.encode_message(Request(1, 42, wire.Query(WIDE)), form)))
    assert MANY < wire.find_memory(query) < 6 * (MANY + 100)
    assert Peer().decode_request(query).body == wire.Query(WIDE)
    assert wire.find_memory(frame_of(b"", form.frame_version)) == 0
