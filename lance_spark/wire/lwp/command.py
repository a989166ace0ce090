"""The command codes of control frames. What they carry is in other modules.

A command is the whole 64-bit batch id of the frame (LWP §5.1). The server in the field
looks at the low byte only; comparing all bits keeps 0x101 from creating a topic.
"""

from __future__ import annotations

from enum import IntEnum


class Command(IntEnum):
    """Every command and response that this codec knows."""

    CREATE_TOPIC = 0x01
    DELETE_TOPIC = 0x02
    LIST_TOPICS = 0x03
    GET_TOPIC = 0x04
    SET_RETENTION = 0x05
    CREATE_TOPIC_WITH_RETENTION = 0x06
    # 0x07 to 0x09 and 0x12 are not in LWP but in the server in the field.
    GET_CLUSTER_STATUS_FIELD = 0x07
    AUTHENTICATE = 0x08
    AUTHENTICATE_RESPONSE = 0x09
    FETCH = 0x10
    FETCH_RESPONSE = 0x11
    CATCHING_UP = 0x12
    SUBSCRIBE = 0x20
    UNSUBSCRIBE = 0x21
    COMMIT_OFFSET = 0x22
    SUBSCRIBE_ACK = 0x23
    COMMIT_ACK = 0x24
    # The code of LWP §16.5, which the server in the field does not know.
    GET_CLUSTER_STATUS = 0x30
    # 0x40 to 0x55 are ours: docs/wire-extensions.md.
    LOCATE = 0x40
    LOCATE_RESPONSE = 0x41
    OPEN_STAGE = 0x42
    STAGE_OPENED = 0x43
    COMMIT_STAGES = 0x44
    STAGES_COMMITTED = 0x45
    ABORT_STAGES = 0x46
    STAGES_ABORTED = 0x47
    WAIT = 0x48
    WAIT_RESPONSE = 0x49
    JOIN_GROUP = 0x50
    GROUP_JOINED = 0x51
    GROUP_HEARTBEAT = 0x52
    GROUP_HEARTBEAT_RESPONSE = 0x53
    LEAVE_GROUP = 0x54
    GROUP_LEFT = 0x55
    TOPIC_RESPONSE = 0x80
    CLUSTER_STATUS = 0x81
    ERROR_RESPONSE = 0xFF
