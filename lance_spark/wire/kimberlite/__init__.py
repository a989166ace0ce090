"""Kimberlite's wire protocol without I/O, in the forms of all its releases.

Frames come out of a `FrameParser`. A server reads them with a `Peer`, which finds out
how its client writes; a client says it, with one of `WIRES`. `encode_message` goes the
other way. What is not listed here is private to the package.
"""

# Names several to a line: this is an index and not code.
# fmt: off
# ruff: noqa: I001

from lance_spark.wire.kimberlite.envelope import (
    REQUESTS, RESPONSES, Audit, Peer, Push, Request, Response, decode_request,
    decode_response, describe, encode_message, find_memory, number_of,
)
from lance_spark.wire.kimberlite.error import (
    ERROR_CODES, RETRIABLE, code_of, make_error, text_of,
)
from lance_spark.wire.kimberlite.frame import (
    HEADER_BYTES, MAGIC, PAYLOAD_BYTES_MAX, SMALL_FRAME_BYTES_MAX, V5, WIRES,
    DataClass, Frame, FrameParser, Header, Wire, decode_header, encode_frame,
)
from lance_spark.wire.kimberlite.message import (
    AppendEvents, AppendEventsResponse, CloseReason, CreateStream,
    CreateStreamResponse, ErrorResponse, Handshake, HandshakeResponse, Message, Query,
    QueryAt, QueryAtResponse, QueryResponse, ReadEvents, ReadEventsResponse, StreamInfo,
    StreamInfoResponse, Subscribe, SubscribeCredit, SubscribeResponse, SubscriptionAck,
    SubscriptionClosed, SubscriptionEvents, Sync, SyncResponse, Timestamp, Unknown,
    Unsubscribe, Value,
)
from lance_spark.wire.kimberlite.record import (
    APPEND_BYTES_MAX, APPEND_EVENTS_MAX, EVENTS_MAX, EVENT_BYTES_MAX,
    SMALL_READ_BYTES_MAX, cut_records, read_records, split_records, write_records,
)

__all__ = [
    "APPEND_BYTES_MAX", "APPEND_EVENTS_MAX", "ERROR_CODES", "EVENTS_MAX",
    "EVENT_BYTES_MAX", "HEADER_BYTES", "MAGIC", "PAYLOAD_BYTES_MAX", "REQUESTS",
    "RESPONSES", "RETRIABLE", "SMALL_FRAME_BYTES_MAX", "SMALL_READ_BYTES_MAX", "V5",
    "WIRES", "AppendEvents", "AppendEventsResponse", "Audit", "CloseReason",
    "CreateStream", "CreateStreamResponse", "DataClass", "ErrorResponse", "Frame",
    "FrameParser", "Handshake", "HandshakeResponse", "Header", "Message", "Peer",
    "Push", "Query", "QueryAt", "QueryAtResponse", "QueryResponse", "ReadEvents",
    "ReadEventsResponse", "Request", "Response", "StreamInfo", "StreamInfoResponse",
    "Subscribe", "SubscribeCredit", "SubscribeResponse", "SubscriptionAck",
    "SubscriptionClosed", "SubscriptionEvents", "Sync", "SyncResponse", "Timestamp",
    "Unknown", "Unsubscribe", "Value", "Wire", "code_of", "cut_records",
    "decode_header", "decode_request", "decode_response", "describe", "encode_frame",
    "encode_message", "find_memory", "make_error", "number_of", "read_records",
    "split_records", "text_of", "write_records",
]
