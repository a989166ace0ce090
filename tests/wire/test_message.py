"""The base of messages: layouts and fields have to agree."""

from __future__ import annotations

from dataclasses import fields

import pytest

from lance_spark.errors import LocalProtocolError
from lance_spark.wire.lwp import (
    REQUESTS,
    RESPONSES,
    Command,
    GetTopic,
    ListTopics,
    Message,
)
from lance_spark.wire.lwp.message import LayoutMessage

TYPES = sorted({*REQUESTS.values(), *RESPONSES.values()}, key=lambda t: t.__name__)


@pytest.mark.parametrize("message_type", TYPES, ids=lambda t: t.__name__)
def test_declarations(message_type: type[Message]) -> None:
    assert message_type.COMMAND in Command
    assert message_type.NAME.lower() == message_type.NAME
    if issubclass(message_type, LayoutMessage):
        names = fields(message_type)  # type: ignore[arg-type]
        assert len(message_type.LAYOUT) == len(names)


def test_no_fields_no_buffer() -> None:
    assert ListTopics().encode_payload() == []


def test_field_that_does_not_fit() -> None:
    with pytest.raises(LocalProtocolError):
        GetTopic(-1).encode_payload()
