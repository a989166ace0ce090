"""Messages: the vectors, every form by a second codec, and messages of chance."""

from __future__ import annotations

import dataclasses
import random
import tracemalloc
from contextlib import suppress
from dataclasses import FrozenInstanceError

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lance_spark.errors import LanceError, LocalProtocolError, RemoteProtocolError
from lance_spark.wire import kimberlite as wire
from lance_spark.wire.kimberlite import (
    V5,
    WIRES,
    DataClass,
    Peer,
    Push,
    Request,
    Response,
    Timestamp,
)
from tests.columnar.strategies import examples
from tests.wire.kimberlite.reference import (
    DISTINCT,
    Num,
    Raw,
    Some,
    find,
    frame_of,
    parse,
    simplify,
    write,
)
from tests.wire.rustlog.plain import join, list_values, make_records

TOP = 2**64 - 1


def decode(frame, form, is_request):
    return (wire.decode_request if is_request else wire.decode_response)(frame, form)


def there_and_back(message, form=V5):
    frame = parse(join(wire.encode_message(message, form)))
    assert frame.version == form.frame_version
    again = decode(frame, form, isinstance(message, Request))
    assert simplify(again) == simplify(message)
    return frame


@pytest.mark.parametrize("vector", DISTINCT, ids=lambda vector: vector.name)
class TestVectors:
    def test_decodes_and_encodes_back(self, vector):
        frame = parse(vector.data)
        message = decode(frame, vector.wire, vector.is_request)
        assert join(wire.encode_message(message, vector.wire)) == vector.data
        number = getattr(message, "id", getattr(message, "request_id", None))
        assert wire.number_of(frame, vector.wire) == number
        assert (number is None) == isinstance(message, Push)
        # It finds form and direction by itself.
        assert wire.describe(frame).startswith(type(message).__name__)
        assert f"body={type(message.body).__name__}(" in wire.describe(frame)
        for size in range(len(frame.payload)):
            cut = frame_of(frame.payload[:size], frame.version)
            with pytest.raises(RemoteProtocolError):
                decode(cut, vector.wire, vector.is_request)
        # Bytes behind the last field are ignored in answers only.
        longer = frame_of(bytes(frame.payload) + b"\0\1", frame.version)
        if not vector.is_request:
            again = wire.decode_response(longer, vector.wire)
            assert simplify(again) == simplify(message)
        elif not isinstance(message.body, wire.Unknown):
            with pytest.raises(RemoteProtocolError, match="2 bytes are left over"):
                wire.decode_request(longer, vector.wire)

    def test_damage_is_a_message_or_a_clean_error(self, vector):
        frame = parse(vector.data)
        for bit in range(8 * len(frame.payload)):
            damaged = bytearray(frame.payload)
            damaged[bit // 8] ^= 1 << bit % 8
            flipped = frame_of(damaged, frame.version)
            use(flipped, vector.wire, vector.is_request)
        for size in range(len(frame.payload)):
            cut = frame_of(frame.payload[:size], frame.version)
            use(cut, vector.wire, True, False)


def use(frame, form, *directions):
    """Do everything to a frame that can be done, which may fail in one way only."""
    for is_request in directions:
        try:
            message = decode(frame, form, is_request)
        except RemoteProtocolError:
            continue
        there_and_back(message, form)
    if True in directions:
        use_as_server(frame)
    if len(directions) > 1:
        assert wire.describe(frame)
        with suppress(RemoteProtocolError):
            wire.number_of(frame, form)


def use_as_server(frame):
    peer = Peer()
    try:
        request = peer.decode_request(frame)
    except RemoteProtocolError:
        assert peer.wire is None
    else:
        assert peer.wire is not None
        # What is unknown in one form may be known in another, but not fit there.
        if not isinstance(request.body, wire.Unknown):
            there_and_back(request, peer.wire)


def test_noise_of_every_kind():
    chance, forms = random.Random(15), [*WIRES.values()]
    tracemalloc.start()
    try:
        for _ in range(1000):
            vector = chance.choice(DISTINCT)
            damaged = bytearray(parse(vector.data).payload)
            for _ in range(chance.randrange(1, 4)):
                at = chance.randrange(len(damaged) + 1)
                damaged[at : at + chance.randrange(5)] = chance.choice(
                    [b"\xff" * 9 + b"\1", b"\0" * 8, chance.randbytes(3), b""]
                )
            form = vector.wire if chance.random() < 0.8 else chance.choice(forms)
            use(frame_of(damaged, form.frame_version), form, True, False)
        assert tracemalloc.get_traced_memory()[1] < 4 * 1024 * 1024
    finally:
        tracemalloc.stop()


class TestMeaning:
    """What vectors say, as far as two equal mistakes could hide it."""

    def request(self, name):
        return Peer().decode_request(find(name))

    def response(self, name, form=V5):
        return wire.decode_response(find(name), form)

    def test_requests(self):
        for name, body in {
            "pypi_0_9_1_client_1": wire.Handshake(5),
            "pypi_0_9_1_client_13": wire.Handshake(5, "secret-token"),
            "pypi_0_9_1_client_2": wire.CreateStream("events"),
            "pypi_0_9_1_client_3": wire.CreateStream(
                "eu_events", DataClass.PII, "eu-central-1"
            ),
            "pypi_0_9_1_client_4": wire.CreateStream(
                "us", DataClass.PUBLIC, "us-east-1"
            ),
            "pypi_0_9_1_client_9": wire.ReadEvents(42 << 32 | 1, 0, 1024 * 1024),
            "pypi_0_9_1_client_12": wire.Subscribe(42 << 32 | 1, 0, 8),
            "v5_pre_0_8_req_subscribe": wire.Subscribe(100, 0, 128),
            "v5_0_8_and_later_req_sync": wire.Sync(),
            "v5_pre_0_8_req_sync": wire.Sync(),
            "v1_bincode_req_sync": wire.Sync(),
            "v1_bincode_req_create_stream": wire.CreateStream("events"),
            "v1_bincode_req_query": wire.Query(
                "SELECT 1", (None, -5, "hi", True, Timestamp(10**18))
            ),
            "client_8": wire.QueryAt("SELECT 1", (), 3),
        }.items():
            request = self.request(name)
            assert (request.tenant_id, request.body) == (42, body), name

    def test_audit(self):
        request = self.request("client_6")
        assert request.audit == wire.Audit("ada", "why", "cid", "rid")
        assert list_values(request.body.events) == [b"audit"]

    def test_appends(self):
        request = self.request("pypi_0_9_1_client_6")
        assert (request.id, request.body.stream_id) == (6, 42 << 32 | 1)
        assert (list_values(request.body.events), request.body.expected_offset) == (
            [b"event1"],
            2,
        )
        assert self.request("v1_bincode_req_append").body.expected_offset is None

    def test_answers(self):
        for name, body in {
            "accepted_1": wire.HandshakeResponse(
                5, True, ("query", "append", "subscribe")
            ),
            "accepted_2": wire.CreateStreamResponse(42 << 32 | 1),
            "accepted_6": wire.AppendEventsResponse(2, 1),
            "accepted_8": wire.ErrorResponse(5, "stream 99 not found"),
            "accepted_11": wire.QueryResponse(("count", "name"), ((2, "x"),)),
            "accepted_12": wire.SubscribeResponse(777, 0, 8),
            "v5_0_8_and_later_rsp_sync": wire.SyncResponse(True),
        }.items():
            assert self.response(name).body == body, name
        read = self.response("accepted_9")
        assert (read.request_id, read.body.next_offset) == (9, 3)
        assert list_values(read.body.events) == [b"\1\2\3", b"\4\5", b"event1"]
        assert self.response("accepted_10").body.next_offset is None

    def test_pushes(self):
        push = self.response("accepted_18")
        assert isinstance(push, Push)
        events = push.body
        assert (events.subscription_id, events.credits_remaining) == (777, 13)
        assert list_values(events.events) == [b"event1", b"event2", b"event3"]

    def test_pushed_events_know_their_offsets(self):
        body = wire.SubscriptionEvents(1, 2**62 - 1, make_records([b"a", b"b"]), 0)
        frame = parse(join(wire.encode_message(Push(body))))
        records = wire.decode_response(frame).body.events
        assert records.find_positions().tolist() == [2**62 - 1, 2**62]
        far = dataclasses.replace(body, start_offset=2**62)
        frame = parse(join(wire.encode_message(Push(far))))
        with pytest.raises(RemoteProtocolError, match="offset 4611686018427387904"):
            wire.decode_response(frame)

    def test_secrets_are_not_shown(self):
        shown = wire.describe(find("pypi_0_9_1_client_13"))
        assert shown == (
            "Request(id=1 tenant_id=42 body=Handshake(client_version=5 auth_token=…))"
        )
        assert "secret" not in repr(self.request("pypi_0_9_1_client_13"))

    def test_describe(self):
        assert wire.describe(find("accepted_9")) == (
            "Response(request_id=9 body=ReadEventsResponse("
            "events=3 records of 11 bytes next_offset=3))"
        )
        assert wire.describe(frame_of(b"\0\1")).startswith("malformed: ")
        assert wire.describe(frame_of(b"\0\1\1\0\x20abc")) == (
            "Request(id=1 tenant_id=1 body=Unknown(number=32 body=3 bytes))"
        )


# Every message in the forms that have it, written by the second codec: the body, the
# numbers it has in v1-bincode, v1-postcard, v2 to v5-0.6 and v5, and its fields before
# and since version 3.
_RECORDS = make_records([b"one", b"", b"x" * 300])
_LIST = [b"one", b"", b"x" * 300]
_U16 = {True: Raw(b"\5\0"), False: Raw(b"\5")}
_U32 = {True: Raw(b"\x2c\1\0\0"), False: Raw(b"\xac\2")}
_I64 = {True: Raw(b"\xfe" + b"\xff" * 7), False: Raw(b"\3")}


def _table(fixed, has_reason):
    """List messages with the numbers of the four numberings, and their fields."""
    u16, u32, i64 = _U16[fixed], _U32[fixed], _I64[fixed]
    reason = (Some("why"),) if has_reason else ()
    given = "why" if has_reason else None
    values = (None, -2, "ä", True, Timestamp(-2))
    plain = [
        (Num(0),),
        (Num(1), i64),
        (Num(2), "ä"),
        (Num(3), True),
        (Num(4), i64),
    ]
    region = (Num(0), Num(2), "mars")
    deidentified = Num(2) if fixed else Num(1)
    requests = [
        (wire.Handshake(5, "t"), (0, 0, 0, 0), (u16, Some("t"))),
        (
            wire.CreateStream("s", DataClass.DEIDENTIFIED, "mars"),
            (1, 1, 1, 1),
            ("s", deidentified, *region),
        ),
        (
            wire.CreateStream("s", region="ap-southeast-2"),
            (1, 1, 1, 1),
            ("s", Num(0), Num(0), Num(1)),
        ),
        (
            wire.AppendEvents(7, _RECORDS, None if fixed else TOP),
            (2, 2, 2, 2),
            (7, _LIST, *(() if fixed else (TOP,))),
        ),
        (wire.Query("q", values, given), (3, 3, 3, 3), ("q", plain, *reason)),
        (wire.QueryAt("q", (), 9, given), (4, 4, 4, 4), ("q", [], 9, *reason)),
        (wire.ReadEvents(7, 8, TOP), (5, 5, 5, 5), (7, 8, TOP)),
        (wire.StreamInfo(7), (None, None, None, 6), (7,)),
        (wire.Subscribe(7, 8, 300, "g"), (None, 6, 6, 7), (7, 8, u32, Some("g"))),
        (wire.Sync(), (6, 7, 7, 8), ()),
        (wire.SubscribeCredit(7, 300), (None, None, 8, 9), (7, u32)),
        (wire.Unsubscribe(7), (None, None, 9, 10), (7,)),
    ]
    responses = [
        (wire.ErrorResponse(16, "no"), (0, 0, 0, 0), (Num(16), "no")),
        (
            wire.HandshakeResponse(5, False, ("a", "b")),
            (1, 1, 1, 1),
            (u16, False, ["a", "b"]),
        ),
        (wire.CreateStreamResponse(7), (2, 2, 2, 2), (7,)),
        (wire.AppendEventsResponse(7, 300), (3, 3, 3, 3), (7, u32)),
        (wire.QueryResponse(("c",), (values, ())), (4, 4, 4, 4), (["c"], [plain, []])),
        (
            wire.QueryAtResponse((), ((-2,),)),
            (5, 5, 5, 5),
            ([], [[(Num(1), i64)]]),
        ),
        (wire.ReadEventsResponse(_RECORDS, 3), (6, 6, 6, 6), (_LIST, Some(3))),
        (wire.ReadEventsResponse(make_records([])), (6, 6, 6, 6), ([], None)),
        (wire.StreamInfoResponse(7), (None, None, None, 7), (7,)),
        (wire.SubscribeResponse(7, 8, 300), (None, 7, 7, 8), (7, 8, u32)),
        (wire.SyncResponse(), (7, 8, 8, 9), (True,)),
        (wire.SubscriptionAck(7, 300), (None, None, 9, 10), (7, u32)),
    ]
    pushes = [
        (
            wire.SubscriptionEvents(7, 0, _RECORDS, 300),
            (None, None, 0, 0),
            (7, 0, _LIST, u32),
        ),
        (
            wire.SubscriptionClosed(7, wire.CloseReason.BACKPRESSURE_TIMEOUT),
            (None, None, 1, 1),
            (7, Num(3)),
        ),
    ]
    return requests, responses, pushes


_COLUMNS = {"v1-bincode": 0, "v1-postcard": 1, "v5": 3}


@pytest.mark.parametrize("form", [f for f in WIRES.values() if "literal" not in f.name])
def test_every_form_of_every_message(form):
    tables = _table(form.fixed, form.frame_version >= 3)
    column = _COLUMNS.get(form.name, 2)
    for tag, rows in enumerate(tables):
        for body, numbers, fields in rows:
            audit = ()
            if tag == 0:
                message, head = Request(3, 42, body), (3, 42)
                audit = (None,) if form.frame_version >= 3 else ()
            elif tag == 1:
                message, head = Response(3, body), (3,)
            else:
                message, head = Push(body), ()
            number = numbers[column]
            if number is None:
                with pytest.raises(LocalProtocolError, match=type(body).__name__):
                    wire.encode_message(message, form)
                continue
            tagged = (Num(tag),) if form.frame_version >= 2 else ()
            value = (*tagged, *head, *audit, Num(number), *fields)
            expected = write(value, fixed=form.fixed)
            frame = there_and_back(message, form)
            assert bytes(frame.payload) == expected, (form.name, body)


def test_the_form_of_the_specification():
    form = WIRES["v1-literal"]
    options = {"fixed": True, "flag": bytes(4)}
    for body, value in (
        (wire.Handshake(1), (Num(0), Raw(b"\1\0"), None)),
        (wire.Handshake(1, "t"), (Num(0), Raw(b"\1\0"), Some("t"))),
        (wire.CreateStream("events"), (Num(1), "events", Num(0), Num(0))),
        (wire.CreateStream("e", region=""), (Num(1), "e", Num(0), Num(1))),
        (wire.AppendEvents(100, _RECORDS), (Num(2), 100, _LIST)),
        (wire.Subscribe(1, 2, 3), (Num(6), 1, 2, Num(3), None)),
        (wire.Sync(), (Num(7),)),
    ):
        frame = there_and_back(Request(1, 42, body), form)
        assert bytes(frame.payload) == write((1, 42, value), **options)
    answer = wire.ReadEventsResponse(_RECORDS, 3)
    frame = there_and_back(Response(1, answer), form)
    assert bytes(frame.payload) == write((1, Num(6), _LIST, Some(3)), **options)


# What the fields of messages may be.
texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=20)
u64s = st.integers(0, TOP) | st.integers(0, 300)
i64s = st.integers(-(2**63), 2**63 - 1)
values = st.one_of(st.none(), i64s, texts, st.booleans(), i64s.map(Timestamp))


@given(
    st.tuples(u64s, u64s, u64s),
    st.integers(0, 2**32 - 1),
    st.tuples(texts, st.none() | texts, st.none() | texts),
    st.lists(values, max_size=4).map(tuple),
    st.lists(st.binary(max_size=200), max_size=6),
)
@examples(25)
def test_messages_of_chance(numbers, u32, some_texts, row, some_events):
    a, b, c = numbers
    text, group, reason = some_texts
    events = make_records(some_events)
    for form in WIRES.values():
        classes = list(DataClass)[:3] if form.fixed else list(DataClass)[2:]
        region = group if form.name != "v1-literal" else None
        why = reason if form.version >= 3 else None
        bodies = [
            wire.Handshake(u32 % 2**16, group),
            wire.CreateStream(text, classes[a % len(classes)], region),
            wire.AppendEvents(a, events, b if form.version else None),
            wire.Query(text, row, why),
            wire.QueryAt(text, row, a, why),
            wire.ReadEvents(a, b, c),
            wire.StreamInfo(a),
            wire.Subscribe(a, b, u32, group),
            wire.Sync(),
            wire.SubscribeCredit(a, u32),
            wire.Unsubscribe(a),
            wire.ErrorResponse(u32, text),
            wire.HandshakeResponse(u32 % 2**16, bool(a % 2), (text,) * (b % 3)),
            wire.CreateStreamResponse(a),
            wire.AppendEventsResponse(a, u32),
            wire.QueryResponse((text,), (row,) * (a % 3)),
            wire.QueryAtResponse((), (row, ())),
            wire.ReadEventsResponse(events, a if some_events else None),
            wire.StreamInfoResponse(a),
            wire.SubscribeResponse(a, b, u32),
            wire.SyncResponse(bool(a % 2)),
            wire.SubscriptionAck(a, u32),
            wire.SubscriptionEvents(a, b % 2**62, events, u32),
            wire.SubscriptionClosed(a, u32),
        ]
        assert {type(body) for body in bodies} == {*wire.REQUESTS, *wire.RESPONSES}
        for body in bodies:
            message = Response(c, body)
            if isinstance(body, wire.REQUESTS):
                audit = wire.Audit(text, group, reason) if form.version >= 3 else None
                message = Request(b, c, body, audit)
            elif isinstance(body, wire.SubscriptionEvents | wire.SubscriptionClosed):
                message = Push(body)
            try:
                there_and_back(message, form)
            except LocalProtocolError as error:
                assert f"has no {type(body).__name__}" in str(error)
                assert form.version < 6


@pytest.mark.parametrize(
    ("message", "form"),
    [
        (Request(TOP + 1, 1, wire.Sync()), V5),
        (Request(1, -1, wire.Sync()), V5),
        (Request(1, 1, wire.Handshake(2**16)), V5),
        (Request(1, 1, wire.Handshake(5, "\ud800")), V5),
        (Request(1, 1, wire.AppendEvents(1, _RECORDS)), V5),
        (Request(1, 1, wire.CreateStream("s", DataClass.NON_PHI)), V5),
        (Request(1, 1, wire.CreateStream("s", DataClass.PCI)), WIRES["v1-bincode"]),
        (Request(1, 1, wire.Query("q", (2**63,))), V5),
        (Request(1, 1, wire.Query("q", (-(2**63) - 1,))), V5),
        (Request(1, 1, wire.Query("q", (1.5,))), V5),
        (Request(1, 1, wire.Query("q", (b"x",))), WIRES["v1-bincode"]),
        (Response(1, wire.ErrorResponse(2**32, "")), V5),
        (Response(1, wire.Sync()), V5),
        (Push(wire.SubscriptionClosed(1, 0)), WIRES["v1-postcard"]),
    ],
)
def test_what_does_not_fit(message, form):
    with pytest.raises(LocalProtocolError):
        wire.encode_message(message, form)


def test_records_with_a_fault_are_not_sent():
    broken = dataclasses.replace(_RECORDS, fault=LanceError("broken"))
    with pytest.raises(LanceError, match="broken"):
        wire.encode_message(Request(1, 1, wire.AppendEvents(1, broken, 0)))


@pytest.mark.parametrize(
    ("payload", "text"),
    [
        ("01 01 05", "message 7|needed"),
        ("01 01 20", "message 32 is unknown"),
        ("02 02", "message 2 is unknown"),
        ("01 01 09 02", "2 is neither false nor true"),
        ("01 01 06 00 02", "2 says neither"),
        ("01 01 06 ffffffffffffffffff01 00", "18446744073709551615 events in 1 bytes"),
        ("01 01 06 02 0161 ffffffffffffffffff01 00", "2 events are announced, 1"),
        ("01 01 04 ffffff7f 00", "268435455 items in 1 bytes"),
        ("01 01 04 00 01 01 05", "type 5 of a value"),
        ("01 01 00 05 ffffffff0f", "4294967295 bytes needed"),
        ("01 01 00 05 02 ff00", "not UTF-8"),
        ("01 01 03 00 ffffffff1f", "more than 32 bits"),
        ("01 ffffffffffffffffff02 09 01", "more than 64 bits"),
    ],
)
def test_malformed_answers(payload, text):
    with pytest.raises(RemoteProtocolError, match=text):
        wire.decode_response(frame_of(bytes.fromhex(payload)))


@pytest.mark.parametrize(
    ("payload", "text"),
    [
        ("00 01 2a 00 01 0161 08 01", "data class 8 is unknown"),
        ("00 01 2a 00 01 0161 00 02 00", "placement 2 in region 0"),
        ("00 01 2a 00 01 0161 00 00 03", "placement 0 in region 3"),
        ("00 01 2a 02", "2 says neither"),
    ],
)
def test_malformed_requests(payload, text):
    with pytest.raises(RemoteProtocolError, match=text):
        wire.decode_request(frame_of(bytes.fromhex(payload)))


def test_no_message_can_be_changed():
    for message in (*wire.REQUESTS, *wire.RESPONSES, wire.Unknown):
        with pytest.raises(FrozenInstanceError):
            message.__new__(message).changed = 0
