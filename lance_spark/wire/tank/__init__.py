"""TANK's wire protocol without I/O.

Frames come out of a `FrameParser`; `decode_request` and `decode_response` turn them
into messages, and `encode_message` goes the other way. `read_records`, `read_chunk` and
`write_records` are for the records inside. What is not listed here is private to the
package.
"""

# Names several to a line: this is an index and not code.
# fmt: off
# ruff: noqa: I001

from lance_spark.wire.tank.record import (
    EXPANDED_BYTES_MAX, KEY_BYTES_MAX, SEQ_FIRST, Bundle, Chunk, find_long_key,
    inspect_bundle, read_chunk, read_records, write_records,
)
from lance_spark.wire.tank.error import ERROR_CODES, code_of, make_error
from lance_spark.wire.tank.frame import (
    HEADER_BYTES, PAYLOAD_BYTES_MAX, Frame, FrameParser, Kind, decode_header,
    encode_frame,
)
from lance_spark.wire.tank.message import (
    OK, OTHER_LEADER, OUT_OF_RANGE, READ_ONLY, REQUESTS, RESPONSES, SEQ_END, SPARSE,
    UNKNOWN, Consume, Consumed, CreateTopic, Created, DiscoverPartitions,
    DiscoverTopics, DiscoverTopology, Fetch, FetchTopic, Fetched, FetchedTopic,
    GetStatus, Message,
    Outcome, Partitions, PartitionState, Ping, Produce, ProduceAt, Produced, ReloadConf,
    Reloaded, Status, TopicEntry, Topics, Topology, Write, WriteTopic, decode_request,
    decode_response, describe, encode_message, number_of,
)

__all__ = [
    "ERROR_CODES", "EXPANDED_BYTES_MAX", "HEADER_BYTES", "KEY_BYTES_MAX", "OK",
    "OTHER_LEADER", "OUT_OF_RANGE", "PAYLOAD_BYTES_MAX", "READ_ONLY", "REQUESTS",
    "RESPONSES", "SEQ_END", "SEQ_FIRST", "SPARSE", "UNKNOWN", "Bundle", "Chunk",
    "Consume", "Consumed", "CreateTopic", "Created", "DiscoverPartitions",
    "DiscoverTopics", "DiscoverTopology", "Fetch", "FetchTopic", "Fetched",
    "FetchedTopic", "Frame", "FrameParser", "GetStatus", "Kind", "Message", "Outcome",
    "PartitionState", "Partitions", "Ping", "Produce", "ProduceAt", "Produced",
    "ReloadConf", "Reloaded", "Status", "TopicEntry", "Topics", "Topology", "Write",
    "WriteTopic", "code_of", "decode_header", "decode_request", "decode_response",
    "describe", "encode_frame", "encode_message", "find_long_key", "inspect_bundle",
    "make_error", "number_of", "read_chunk", "read_records", "write_records",
]
