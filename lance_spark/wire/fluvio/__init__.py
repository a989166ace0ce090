"""Fluvio's wire protocol without I/O.

Frames come out of a `FrameParser`; `decode_request` and `decode_response` turn them
into messages, and `encode_message` goes the other way. `read_records`, `read_chunk` and
`write_records` are for the records inside. What is not listed here is private to the
package.
"""

# Names several to a line: this is an index and not code.
# fmt: off
# ruff: noqa: I001

from lance_spark.wire.fluvio.compression import EXPANDED_BYTES_MAX, Codec
from lance_spark.wire.fluvio.record import (
    Batch, Chunk, inspect_batches, read_chunk, read_records, write_records,
)
from lance_spark.wire.fluvio.error import (
    ERROR_CODES, NO_ERROR, OK, ErrorCode, code_of, make_error,
)
from lance_spark.wire.fluvio.frame import (
    HEADER_BYTES, PAYLOAD_BYTES_MAX, Frame, FrameParser, Role, encode_frame,
)
from lance_spark.wire.fluvio.message import (
    READ_COMMITTED, READ_UNCOMMITTED, SC_VERSION, SC_VERSION_MIN, SPU_VERSION, Aborted,
    Age, ApiKey, ApiVersions, Consumed, DerivedStream, Failed, Fetch, FetchAnswer,
    FetchOffsets, FetchPartition, FetchTopic, Fetched, FetchedTopic, ForgottenTopic,
    Header, Lookback, Message, Offsets, OffsetsTopic, Other, Outcome, Parameter,
    PartitionOffsets, Produce, Produced, ProducedTopic, Request, Response, SmartModule,
    StreamFetch, StreamOutcome, Streamed, TopicOffsets, UpdateOffsets, Updated,
    Versions, Write, WriteTopic,
)
from lance_spark.wire.fluvio.metadata import (
    ASSIGNED, COMPUTED, OBJECTS, Change, Create, Deduplication, Endpoint, Ingress, List,
    Listing, Metadata, Partition, PartitionSpec, PartitionStatus, PublicEndpoint,
    ReplicaStatus, Replicas, Spu, SpuSpec, SpuStatus, Status, Storage, Topic, TopicSpec,
    TopicStatus, Watch, Watched,
)
from lance_spark.wire.fluvio.catalog import (
    API_KEYS, REQUESTS, RESPONSES, decode_header, decode_request, decode_response,
    describe, encode_message, number_of,
)

__all__ = [
    "API_KEYS", "ASSIGNED", "COMPUTED", "ERROR_CODES", "EXPANDED_BYTES_MAX",
    "HEADER_BYTES", "NO_ERROR", "OBJECTS", "OK", "PAYLOAD_BYTES_MAX", "READ_COMMITTED",
    "READ_UNCOMMITTED", "REQUESTS", "RESPONSES", "SC_VERSION", "SC_VERSION_MIN",
    "SPU_VERSION", "Aborted", "Age", "ApiKey", "ApiVersions", "Batch", "Change",
    "Chunk", "Codec", "Consumed", "Create", "Deduplication", "DerivedStream",
    "Endpoint", "ErrorCode", "Failed", "Fetch", "FetchAnswer", "FetchOffsets",
    "FetchPartition", "FetchTopic", "Fetched", "FetchedTopic", "ForgottenTopic",
    "Frame", "FrameParser", "Header", "Ingress", "List", "Listing", "Lookback",
    "Message", "Metadata", "Offsets", "OffsetsTopic", "Other", "Outcome", "Parameter",
    "Partition", "PartitionOffsets", "PartitionSpec", "PartitionStatus", "Produce",
    "Produced", "ProducedTopic", "PublicEndpoint", "ReplicaStatus", "Replicas",
    "Request", "Response", "Role", "SmartModule", "Spu", "SpuSpec", "SpuStatus",
    "Status", "Storage", "StreamFetch", "StreamOutcome", "Streamed", "Topic",
    "TopicOffsets", "TopicSpec", "TopicStatus", "UpdateOffsets", "Updated", "Versions",
    "Watch", "Watched", "Write", "WriteTopic", "code_of", "decode_header",
    "decode_request", "decode_response", "describe", "encode_frame", "encode_message",
    "inspect_batches", "make_error", "number_of", "read_chunk", "read_records",
    "write_records",
]
