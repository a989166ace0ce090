"""LWP, the Lance Wire Protocol, without I/O.

Frames come out of a `FrameParser`; `decode_request` and `decode_response` turn control
frames into messages, `encode_message` and the `encode_*` functions go the other way.
docs/codec.md is the guide. What is not listed here is private to the package.
"""

# Names several to a line: this is an index and not code.
# fmt: off
# ruff: noqa: I001

from typing import TYPE_CHECKING

from lance_spark.late import find_late
from lance_spark.model import CommitStatus, StageContent
from lance_spark.wire.assembler import PAYLOAD_BYTES_FIRST
from lance_spark.wire.lwp.catalog import (
    REQUESTS, RESPONSES, decode_request, decode_response, encode_message,
)
from lance_spark.wire.lwp.control import (
    Authenticate, AuthenticateResponse, ClusterStatus, CommitAck, CommitOffset,
    CreateTopic, CreateTopicWithRetention, DeleteTopic, GetClusterStatus, GetTopic,
    ListTopics, SetRetention, Subscribe, SubscribeAck, TopicDeletion, TopicInfo,
    TopicListing, TopicResponse, TopicRetention, Unsubscribe,
)
from lance_spark.wire.lwp.error import ERROR_CODES, ErrorCode, ErrorResponse, code_of
from lance_spark.wire.lwp.extension import (
    LIST_LIMITS, STAGE_ID_MIN, WAIT_POSITIONS_MAX, AbortStages, AssignedTopic,
    AssignmentStrategy, Capability, CommitStages, DeletePartitions, GroupHeartbeat,
    GroupHeartbeatResponse, GroupJoined, GroupLeft, JoinGroup, LeaveGroup, Locate,
    LocateKind, LocateResponse, OpenStage, StageOpened, StagesAborted,
    StagesCommitted, TopicPosition, TopicSpan, Wait, WaitResponse,
)
from lance_spark.wire.lwp.fetch import (
    OFFSET_MAX, CatchingUp, ExtendedFetchResponse, Fetch, FetchFlags, FetchResponse,
    decode_fetch_response, encode_extended_head, encode_fetch_head,
)
from lance_spark.wire.lwp.frame import (
    HEADER_BYTES, PAYLOAD_BYTES_MAX, Checksum, Frame, FrameFlags, FrameParser,
    FrameType, Header, classify, decode_header, encode_ack, encode_backpressure,
    encode_control, encode_frame, encode_header, encode_ingest, encode_keepalive,
    identify_checksum, parse_checksum,
)
from lance_spark.wire.lwp.message import Command, Message
from lance_spark.wire.lwp.record import (
    RECORD_HEADER_BYTES, RECORD_VALUE_BYTES_MAX, Record, RecordType, decode_record,
    decode_records, encode_record,
)

if TYPE_CHECKING:
    from lance_spark.wire.lwp.compression import (
        compress, decompress, decompressed_bytes_max,
    )
    from lance_spark.wire.lwp.tlv import (
        Payload, check_plain_type, check_records, read_records, scan, validate,
        write_batch, write_payloads, write_records,
    )

__all__ = [
    "ERROR_CODES", "HEADER_BYTES", "LIST_LIMITS", "OFFSET_MAX", "PAYLOAD_BYTES_FIRST",
    "PAYLOAD_BYTES_MAX", "RECORD_HEADER_BYTES", "RECORD_VALUE_BYTES_MAX", "REQUESTS",
    "RESPONSES", "STAGE_ID_MIN", "WAIT_POSITIONS_MAX", "AbortStages", "AssignedTopic",
    "AssignmentStrategy", "Authenticate", "AuthenticateResponse", "Capability",
    "CatchingUp", "Checksum", "ClusterStatus", "Command", "CommitAck", "CommitOffset",
    "CommitStages", "CommitStatus", "CreateTopic", "CreateTopicWithRetention",
    "DeletePartitions", "DeleteTopic", "ErrorCode", "ErrorResponse",
    "ExtendedFetchResponse", "Fetch", "FetchFlags", "FetchResponse", "Frame",
    "FrameFlags", "FrameParser", "FrameType",
    "GetClusterStatus", "GetTopic", "GroupHeartbeat", "GroupHeartbeatResponse",
    "GroupJoined", "GroupLeft", "Header", "JoinGroup", "LeaveGroup", "ListTopics",
    "Locate", "LocateKind", "LocateResponse", "Message", "OpenStage", "Payload",
    "Record", "RecordType", "SetRetention", "StageContent", "StageOpened",
    "StagesAborted", "StagesCommitted", "Subscribe", "SubscribeAck", "TopicDeletion",
    "TopicInfo", "TopicListing", "TopicPosition", "TopicResponse", "TopicRetention",
    "TopicSpan", "Unsubscribe", "Wait", "WaitResponse", "check_plain_type",
    "check_records", "classify", "code_of", "compress", "decode_fetch_response",
    "decode_header", "decode_record", "decode_records", "decode_request",
    "decode_response", "decompress", "decompressed_bytes_max", "encode_ack",
    "encode_backpressure", "encode_control", "encode_extended_head",
    "encode_fetch_head", "encode_frame", "encode_header", "encode_ingest",
    "encode_keepalive", "encode_message", "encode_record",
    "identify_checksum", "parse_checksum", "read_records", "scan", "validate",
    "write_batch", "write_payloads", "write_records",
]

# What is done with records needs NumPy, the kernel or LZ4. A client that only asks a
# server for something needs none of them.
_COMPRESSION, _TLV = f"{__name__}.compression", f"{__name__}.tlv"
__getattr__, __dir__ = find_late(__name__, {
    "compress": _COMPRESSION, "decompress": _COMPRESSION,
    "decompressed_bytes_max": _COMPRESSION,
    "Payload": _TLV, "check_plain_type": _TLV, "check_records": _TLV,
    "read_records": _TLV, "scan": _TLV, "validate": _TLV, "write_batch": _TLV,
    "write_payloads": _TLV, "write_records": _TLV,
})
