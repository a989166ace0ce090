"""Messages: the captured ones, and of chance in every version."""

from __future__ import annotations

import dataclasses
import random
import tracemalloc
from dataclasses import FrozenInstanceError

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lance_spark.errors import LanceError, LocalProtocolError, RemoteProtocolError
from lance_spark.model import Bounds
from lance_spark.wire import fluvio
from lance_spark.wire.fluvio import (
    NO_ERROR,
    REQUESTS,
    RESPONSES,
    ErrorCode,
    Fetched,
    Frame,
    Other,
    Role,
    TopicSpec,
)
from lance_spark.wire.fluvio import error as error_module
from lance_spark.wire.fluvio import metadata as metadata_module
from lance_spark.wire.fluvio.frame import LETTERS
from lance_spark.wire.schema import Choice, Cursor, Data, Form, Many, Option, Since
from tests.wire.fluvio.reference import BODIES, FRAMES, PARTS, find, join, parse


def ask(kind, version):
    """Make a request of some kind, of which only the version matters."""
    required = [f for f in dataclasses.fields(kind) if f.default is dataclasses.MISSING]
    return kind(**{field.name: None for field in required}, api_version=version)


def decode(frame, row):
    role = Role(row["role"])
    if row["way"] == ">":
        return fluvio.decode_request(frame, role)
    kind = getattr(fluvio, row["request"])
    return fluvio.decode_response(frame, ask(kind, row["version"]))


# Some differ in numbers only.
SHAPES = {(row["way"], row["request"], len(row["data"])): row for row in FRAMES}


@pytest.mark.parametrize("row", FRAMES, ids=[row["name"] for row in FRAMES])
def test_vectors_decode_and_encode_back(row):
    message = decode(parse(row["data"]), row)
    request = getattr(fluvio, row["request"])
    assert type(message) is (request if row["way"] == ">" else RESPONSES[request])
    assert message.api_version == row["version"]
    assert join(fluvio.encode_message(message)) == row["data"]
    assert fluvio.describe(parse(row["data"])).startswith(f"{type(message).__name__}(")
    # Bytes behind are ignored.
    longer = Frame(memoryview(row["data"][4:] + b"\0\1"))
    assert decode(longer, row) == message


@pytest.mark.parametrize(
    "row", SHAPES.values(), ids=[row["name"] for row in SHAPES.values()]
)
class TestDamage:
    def test_every_truncation_is_a_clean_error(self, row):
        frame = parse(row["data"])
        for size in range(len(frame.payload)):
            with pytest.raises(RemoteProtocolError):
                decode(Frame(frame.payload[:size]), row)

    def test_every_flipped_bit_is_a_message_or_a_clean_error(self, row):
        frame = parse(row["data"])
        for bit in range(8 * len(frame.payload)):
            damaged = bytearray(frame.payload)
            damaged[bit // 8] ^= 1 << bit % 8
            use(Frame(memoryview(bytes(damaged))), row)


def use(frame, row):
    """Do everything to a frame that can be done, which may fail in one way only."""
    try:
        message = decode(frame, row)
    except RemoteProtocolError:
        return
    # Other bytes may say the same.
    again = parse(join(fluvio.encode_message(message)))
    assert decode(again, row) == message
    if isinstance(message, fluvio.Produce):
        for topic in message.topics:
            for write in topic.writes:
                records = fluvio.read_records(write.records)
                assert records.fault is None or isinstance(records.fault, LanceError)
    if isinstance(message, fluvio.Streamed):
        fluvio.read_chunk(message.partition.records)


@pytest.mark.parametrize("row", BODIES, ids=[row["name"] for row in BODIES])
def test_bodies_of_the_field(row):
    kind = getattr(fluvio, row["request"])
    form = Form(LETTERS, row["version"])
    cursor = Cursor(row["data"], kind.__name__, form)
    message = kind.read(cursor)
    assert cursor.remaining == 0
    assert join(message.encode(form)) == row["data"]
    (module,) = message.smart_modules
    assert (module.code[0], bytes(module.code[1])) == (1, b"\xde\xad\xbe\xef")
    for size in range(len(row["data"])):
        with pytest.raises(RemoteProtocolError):
            kind.read(Cursor(row["data"][:size], kind.__name__, form))


def test_what_a_body_says():
    rows = {row["name"]: row for row in BODIES}

    def read(name):
        row = rows[name]
        kind = getattr(fluvio, row["request"])
        return kind.read(Cursor(row["data"], "Body", Form(LETTERS, row["version"])))

    named = read("produce_named")
    assert (named.transactional_id, named.isolation) == ("t_id", fluvio.READ_COMMITTED)
    assert (named.timeout_ms, named.smart_modules[0].name) == (1000, "adhoc-test")
    assert read("produce_no_name").smart_modules[0].name is None
    lookback = read("produce_lookback").smart_modules[0].lookback
    assert lookback == fluvio.Lookback(1)
    legacy = read("stream_fetch_legacy")
    assert (legacy.topic, legacy.partition, legacy.derived) == ("one", 3, None)


def test_the_header_of_the_field():
    header = fluvio.decode_header(Frame(memoryview(PARTS["request_header"])))
    assert header == fluvio.Header(18, 1, 1, "consumer-1")
    with pytest.raises(RemoteProtocolError, match="Header"):
        fluvio.decode_header(Frame(memoryview(b"\0\x12\0\1")))


def test_what_a_vector_says():
    request = fluvio.decode_request(parse(find("spu_Produce_request_1")), Role.SPU)
    assert (request.correlation_id, request.client_id) == (1, "fluvio")
    (topic,) = request.topics
    (write,) = topic.writes
    assert (topic.name, write.partition, len(write.records)) == ("t1", 1, 89)
    flush = fluvio.decode_request(parse(find("spu_Produce_request_2")), Role.SPU)
    assert flush.topics == (fluvio.WriteTopic("t1"),)

    def read(name):
        row = next(row for row in FRAMES if row["name"] == name)
        return decode(parse(row["data"]), row)

    (spu,) = read("sc_Watch_response_SPU_1").everything
    assert (spu.name, spu.spec.id, spu.spec.public.port) == (
        "custom-spu-5001",
        5001,
        29010,
    )
    assert (spu.spec.public.host, spu.status.resolution) == ("127.0.0.1", 0)
    (listed,) = read("sc_List_response_Topic_1").objects
    assert (listed.name, listed.spec.partitions) == ("t1", 2)
    assert listed.status.replicas[1] == fluvio.Replicas(1, (5001,))
    parts = read("sc_List_response_Partition_1").objects
    assert [(p.name, p.spec.leader, p.status.leader.end) for p in parts] == [
        ("t1-0", 5001, 0),
        ("t1-1", 5001, 6),
    ]
    create = read("sc_Create_request_1")
    assert (create.kind, create.name, create.spec.partitions) == ("Topic", "newt", 1)
    offsets = read("spu_FetchOffsets_response_1").topics[0].partitions[0]
    assert offsets.bounds == Bounds(0, 5)
    pushed = read("spu_StreamFetch_response_1")
    assert (pushed.topic, pushed.stream_id) == ("t1", 7)
    assert pushed.partition.next_filter_offset == 5


class TestRoles:
    def test_a_key_means_something_else_in_each(self):
        listed = parse(find("sc_List_request_1"))
        assert isinstance(fluvio.decode_request(listed, Role.SC), fluvio.List)
        fetch = parse(find("spu_StreamFetch_request_1"))
        assert isinstance(fluvio.decode_request(fetch, Role.SPU), fluvio.StreamFetch)

    @pytest.mark.parametrize(("role", "key"), [(Role.SC, 1002), (Role.SPU, 1008)])
    def test_what_is_not_known_can_be_answered(self, role, key):
        request = Other(key, b"abc", correlation_id=7, api_version=19, client_id="c")
        frame = parse(join(fluvio.encode_message(request)))
        found = fluvio.decode_request(frame, role)
        assert found == request
        assert found.key == key
        reason = ErrorCode(2, ("no",))
        status = fluvio.Status("t", reason, correlation_id=7, api_version=19)
        for answer, expected in (
            (fluvio.Failed(reason, correlation_id=7, api_version=19), found),
            (status, ask(fluvio.Create, 19)),
        ):
            frame = parse(join(fluvio.encode_message(answer)))
            assert fluvio.number_of(frame) == 7
            assert fluvio.decode_response(frame, expected) == answer

    def test_objects_of_an_older_version(self):
        data = bytearray(find("sc_List_request_1"))
        data[7] = 10
        request = fluvio.decode_request(parse(bytes(data)), Role.SC)
        assert isinstance(request, Other)
        assert (request.key, request.api_version) == (1003, 10)

    @pytest.mark.parametrize("version", [-32768, -1, 0, 26, 99, 32767])
    def test_no_version_is_refused(self, version):
        for role in Role:
            for kind in REQUESTS[role].values():
                if kind.VERSION == fluvio.SC_VERSION and version < 11:
                    continue
                request = SAMPLES[kind](version)
                frame = parse(join(fluvio.encode_message(request)))
                assert fluvio.decode_request(frame, role) == request

    def test_what_a_server_says_of_itself(self):
        for role, keys in fluvio.API_KEYS.items():
            more = {1002} if role is Role.SC else set()
            assert {key.key for key in keys} == set(REQUESTS[role]) | more
        assert fluvio.ApiKey(1003, 11, 19) in fluvio.API_KEYS[Role.SC]
        assert fluvio.ApiKey(1003, 0, 25) in fluvio.API_KEYS[Role.SPU]


SAMPLES = {
    fluvio.ApiVersions: lambda v: fluvio.ApiVersions("1.2.3", api_version=v),
    fluvio.Produce: lambda v: fluvio.Produce(
        topics=(fluvio.WriteTopic("t", (fluvio.Write(1, b"x"),)),), api_version=v
    ),
    fluvio.Fetch: lambda v: fluvio.Fetch(
        topics=(fluvio.FetchTopic("t", (fluvio.FetchPartition(1, offset=9),)),),
        api_version=v,
    ),
    fluvio.FetchOffsets: lambda v: fluvio.FetchOffsets(
        (fluvio.OffsetsTopic("t", (0, 1)),), api_version=v
    ),
    fluvio.StreamFetch: lambda v: fluvio.StreamFetch("t", 1, api_version=v),
    fluvio.UpdateOffsets: lambda v: fluvio.UpdateOffsets(
        (fluvio.Consumed(1, 2),), api_version=v
    ),
    fluvio.Create: lambda v: fluvio.Create(
        "Topic", "t", False, None, TopicSpec(), api_version=v
    ),
    fluvio.List: lambda v: fluvio.List("Topic", ("t",), api_version=v),
    fluvio.Watch: lambda v: fluvio.Watch("SPU", api_version=v),
}


# Messages of chance: a strategy for each field of a layout.

RANGES = {
    **{
        code: (0, 2**bits - 1)
        for code, bits in zip("BHIQ", (8, 16, 32, 64), strict=True)
    },
    **{
        code: (-(2 ** (bits - 1)), 2 ** (bits - 1) - 1)
        for code, bits in zip("bhiq", (8, 16, 32, 64), strict=True)
    },
}
ERRORS = st.sampled_from(
    [NO_ERROR, ErrorCode(6), ErrorCode(2, ("why",)), ErrorCode(71, (5, 10))]
)


def make(code, version, kind=""):
    """Give a strategy for a field, or for one of its kind."""
    if code == "?":
        return st.booleans()
    if code == "s":
        return st.text("ab\u00e9\u20ac", max_size=4)
    if isinstance(code, str):
        return st.integers(*RANGES[code])
    if code is ErrorCode:
        return ERRORS
    if code is metadata_module.Mirror:
        return st.nothing()
    if isinstance(code, type):
        return make_struct(code, version)
    if isinstance(code, Many):
        items = make(code.item, version)
        return st.just(()) if items.is_empty else st.lists(items, max_size=2).map(tuple)
    if isinstance(code, Data):
        return st.binary(max_size=5)
    if isinstance(code, Option):
        return st.none() | make(code.code, version)
    if isinstance(code, Since):
        is_there = code.first <= version < code.end
        return make(code.code, version) if is_there else st.just(code.default)
    if isinstance(code, Choice):
        return st.sampled_from(sorted(code.cases)).flatmap(
            lambda tag: st.tuples(
                st.just(tag), *(make(item, version) for item in code.cases[tag])
            )
        )
    if isinstance(code, metadata_module._Spec):
        return make(TopicSpec, version) if kind == "Topic" else st.binary(max_size=5)
    assert isinstance(code, metadata_module._Objects)
    known = fluvio.OBJECTS.get(kind)
    if known is None:
        return st.just(())
    items = make(known, version)
    if code.changed:
        items = st.builds(fluvio.Change, st.integers(0, 1), items)
    return st.lists(items, max_size=2).map(tuple)


def make_struct(kind, version):
    return st.tuples(*(make(code, version) for code in kind.LAYOUT)).map(
        lambda values: kind(*values)
    )


@st.composite
def make_message(draw, kind):
    version = draw(st.integers(0, 27))
    layout, values = kind.LAYOUT, []
    if (
        kind.VERSION == fluvio.SC_VERSION
        and layout[0] == "s"
        and kind is not fluvio.Status
    ):
        version = draw(st.integers(11, 21))
        values = [draw(st.sampled_from(["Topic", "Partition", "SPU", "Table"]))]
    for code in layout[len(values) :]:
        values.append(draw(make(code, version, values[0] if values else "")))
    number = draw(st.integers(*RANGES["i"]))
    return kind(*values, correlation_id=number, api_version=version)


KINDS = [*SAMPLES, *(answer for ask, answer in RESPONSES.items() if ask is not Other)]


@pytest.mark.parametrize("kind", KINDS)
def test_there_and_back_in_every_version(kind):
    @settings(max_examples=15, deadline=None, database=None, derandomize=True)
    @given(make_message(kind))
    def run(message):
        frame = parse(join(fluvio.encode_message(message)))
        if isinstance(message, fluvio.Request):
            found = [
                fluvio.decode_request(frame, role)
                for role in Role
                if kind in REQUESTS[role].values()
            ]
        else:
            request = next(ask for ask, answer in RESPONSES.items() if answer is kind)
            found = [fluvio.decode_response(frame, ask(request, message.api_version))]
            assert fluvio.number_of(frame) == message.correlation_id
        assert all(one == message for one in found) and found
        assert fluvio.describe(frame)

    run()


@pytest.mark.parametrize(
    ("kind", "version", "size"),
    [
        # The fields that each version adds, by the size of an answer or a request.
        *(
            (fluvio.Produced, v, size)
            for v, size in ((0, 25), (1, 29), (2, 37), (5, 45))
        ),
        *(
            (fluvio.Fetch, v, n)
            for v, n in ((0, 35), (3, 39), (4, 40), (5, 48), (7, 52))
        ),
        *((fluvio.Fetch, v, n) for v, n in ((8, 52), (9, 56), (25, 56))),
        *((fluvio.FetchOffsets, v, n) for v, n in ((22, 19), (23, 20), (24, 19))),
        *((fluvio.StreamFetch, v, n) for v, n in ((10, 20), (11, 24), (16, 26))),
        *((fluvio.StreamFetch, v, n) for v, n in ((18, 30), (19, 24), (23, 25))),
        *((fluvio.Streamed, v, n) for v, n in ((10, 34), (11, 42))),
        *((fluvio.List, v, n) for v, n in ((12, 19), (13, 20))),
    ],
)
def test_fields_of_versions(kind, version, size):
    samples = {
        **SAMPLES,
        fluvio.Produced: lambda v: fluvio.Produced(
            (fluvio.ProducedTopic("t", (fluvio.Outcome(1),)),), api_version=v
        ),
        fluvio.Streamed: lambda v: fluvio.Streamed("t", 1, Fetched(1), api_version=v),
    }
    message = samples[kind](version)
    assert len(join(message.encode(Form(LETTERS, version)))) == size


@pytest.mark.parametrize(
    ("struct", "sizes"),
    [
        (TopicSpec(), {11: 13, 12: 14, 13: 15, 14: 15, 19: 15}),
        (fluvio.TopicStatus(), {11: 5, 13: 5, 14: 7, 19: 7}),
        (fluvio.PartitionSpec(1), {11: 11, 12: 12, 13: 13, 14: 14, 19: 14}),
        (fluvio.PartitionStatus(), {11: 38, 15: 38, 16: 46, 19: 46}),
        (fluvio.SmartModule((0, "")), {19: 6, 20: 7, 24: 7, 25: 8}),
    ],
)
def test_fields_of_versions_inside(struct, sizes):
    found = {v: len(join(struct.encode(Form(LETTERS, v)))) for v in sizes}
    assert found == sizes


def test_lengths_below_0_are_empty():
    body = bytes.fromhex("ffff 8000 0000")
    form = Form(LETTERS, 2)
    assert fluvio.ApiVersions.read(Cursor(body, "", form)).client_version == ""
    # No topics, and no smart modules.
    body = bytes.fromhex("00 0001 000005dc ffffffff 80000000")
    produce = fluvio.Produce.read(Cursor(body, "", form))
    assert (produce.topics, produce.smart_modules) == ((), ())
    # A record set of less than nothing.
    assert (
        bytes(fluvio.Write.read(Cursor(bytes(4) + b"\xff" * 4, "", form)).records)
        == b""
    )


def test_lengths_allocate_nothing():
    chance = random.Random(15)
    tracemalloc.start()
    for _ in range(250):
        row = chance.choice(FRAMES)
        damaged = bytearray(parse(row["data"]).payload)
        for _ in range(chance.randrange(4)):
            at = chance.randrange(len(damaged) + 1)
            damaged[at : at + chance.randrange(5)] = chance.choice(
                [b"\x7f\xff\xff\xff", b"\xff" * 4, b"\0" * 8, chance.randbytes(3), b""]
            )
        noise = Frame(memoryview(bytes(damaged)))
        assert fluvio.describe(noise)
        use(noise, row)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 4 * 1024 * 1024


@pytest.mark.parametrize(
    ("kind", "body", "text"),
    [
        (fluvio.Watch, "0005546f706963 7fffffff", "2147483647 bytes needed"),
        (fluvio.Produce, "7fffffff", "2147483647 items in 0 bytes"),
        (fluvio.UpdateOffsets, "00010000", "65536 items|needed"),
        (fluvio.FetchOffsets, "00000001 0001ff", "UTF-8"),
        (fluvio.Create, "0001 61 0abc", "unknown kind 2748"),
        (fluvio.Create, "0001 61 0000 02", "neither"),
        (fluvio.List, "0005 5461626c65 00000005 00000001 00", "such objects"),
        (
            fluvio.List,
            "0005 546f706963 0000000a 00000001 0001 61 02 0000",
            "there is a mirror",
        ),
    ],
)
def test_malformed_answers(kind, body, text):
    frame = Frame(memoryview(bytes(4) + bytes.fromhex(body)))
    with pytest.raises(RemoteProtocolError, match=text):
        fluvio.decode_response(frame, ask(kind, kind.VERSION))


@pytest.mark.parametrize(
    "message",
    [
        fluvio.ApiVersions("x" * 2**15),
        fluvio.ApiVersions("\ud800"),
        fluvio.ApiVersions(correlation_id=2**31),
        fluvio.ApiVersions(client_id="x" * 2**15),
        fluvio.StreamFetch("t", -1),
        fluvio.StreamFetch("t", offset=2**63),
        fluvio.Versions(ErrorCode(3)),
        fluvio.Watched("Topic", everything=(fluvio.Topic("t", TopicSpec((3, 1))),)),
        fluvio.Listing(
            "Topic",
            (fluvio.Topic("t", TopicSpec((2, metadata_module.Mirror()))),),
        ),
    ],
)
def test_what_does_not_fit(message):
    with pytest.raises(LocalProtocolError):
        fluvio.encode_message(message)


def test_partitions_of_a_topic():
    lists = (fluvio.Replicas(0, (1,)), fluvio.Replicas(1, (1,)))
    assert TopicSpec((fluvio.ASSIGNED, lists)).partitions == 2
    assert TopicSpec((fluvio.COMPUTED, 3, 1, False)).partitions == 3


def test_hosts_of_a_server():
    named = fluvio.Ingress("spu.example", "10.0.0.1")
    address = fluvio.Ingress(None, "10.0.0.1")
    assert fluvio.PublicEndpoint(1, (named,)).host == "spu.example"
    assert fluvio.PublicEndpoint(1, (fluvio.Ingress(), address)).host == "10.0.0.1"
    assert fluvio.PublicEndpoint(1).host is None


def test_describe():
    assert fluvio.describe(parse(find("spu_Produce_request_1"))) == (
        "Produce(correlation_id=1 api_version=24 client_id='fluvio' timeout_ms=1500 "
        "topics=[WriteTopic(name='t1' writes=[Write(partition=1 records=89 bytes)])])"
    )
    broken = Frame(memoryview(b"\1\2\3"))
    assert fluvio.describe(broken) == "unknown: 3 bytes, 010203"


def test_number_of():
    for row in FRAMES:
        frame = parse(row["data"])
        if row["way"] == "<":
            number = decode(frame, row).correlation_id
            assert fluvio.number_of(frame) == number
    with pytest.raises(RemoteProtocolError):
        fluvio.number_of(Frame(memoryview(b"\0\0\0")))


def test_no_message_can_be_changed():
    for message in {*SAMPLES, *RESPONSES.values(), Other}:
        with pytest.raises(FrozenInstanceError):
            message.__new__(message).changed = 0
    assert error_module.NO_ERROR.code == fluvio.OK
