"""RustLog's protocol without I/O, in both of its dialects.

Frames come out of a `FrameParser`; `decode_request` and `decode_response` turn them
into messages, `encode_message` goes the other way. What is not listed here is private
to the package.
"""

# Names several to a line: this is an index and not code.
# fmt: off
# ruff: noqa: I001

from lance_spark.wire.rustlog.error import code_of
from lance_spark.wire.rustlog.frame import FRAME_BYTES_MAX, FrameParser, is_json
from lance_spark.wire.rustlog.message import (
    REQUESTS, RESPONSES, CreateTopic, CreateTopicResponse, DescribePartition,
    DescribePartitionResponse, DescribeTopic, DescribeTopicResponse, ErrorResponse,
    Fetch, FetchResponse, ListTopics, ListTopicsResponse, Message, MetricsFetch,
    MetricsFetchResponse, OffsetCommit, OffsetCommitResponse, OffsetFetch,
    OffsetFetchResponse, Ping, PingResponse, Produce, ProduceResponse, decode_request,
    decode_response, describe, encode_message, encode_produce, find_memory,
)
from lance_spark.wire.rustlog.record import (
    PIECE_BYTES_MAX, VALUE_BYTES_MAX, read_records, split_records, write_records,
)

__all__ = [
    "FRAME_BYTES_MAX", "PIECE_BYTES_MAX", "REQUESTS", "RESPONSES", "VALUE_BYTES_MAX",
    "CreateTopic", "CreateTopicResponse", "DescribePartition",
    "DescribePartitionResponse", "DescribeTopic", "DescribeTopicResponse",
    "ErrorResponse", "Fetch", "FetchResponse", "FrameParser", "ListTopics",
    "ListTopicsResponse", "Message", "MetricsFetch", "MetricsFetchResponse",
    "OffsetCommit", "OffsetCommitResponse", "OffsetFetch", "OffsetFetchResponse",
    "Ping", "PingResponse", "Produce", "ProduceResponse", "code_of", "decode_request",
    "decode_response", "describe", "encode_message", "encode_produce",
    "find_memory", "is_json", "read_records", "split_records", "write_records",
]
