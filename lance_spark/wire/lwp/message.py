"""What every message of a control frame can do, and the declarative way to do it.

The messages themselves are in `control`, `fetch`, `topic`, `cluster`, `error` and
`extension`; which command belongs to which of them is in `catalog`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import fields
from typing import ClassVar, TypeVar

from lance_spark.errors import LocalProtocolError
from lance_spark.model import Buffer
from lance_spark.wire.lwp.command import Command
from lance_spark.wire.lwp.field import Field, PayloadReader

M = TypeVar("M", bound="Message")
L = TypeVar("L", bound="LayoutMessage")


class Message(ABC):
    """The payload of a control frame as a value."""

    __slots__ = ()

    COMMAND: ClassVar[Command]
    # As in the texts of LWP §5.10 and §5.11: "Invalid <NAME> payload".
    NAME: ClassVar[str]

    @abstractmethod
    def encode_payload(self) -> list[Buffer]:
        """Return the payload as buffers to be sent one after the other.

        Raises:
            LocalProtocolError: if a field does not fit.
        """

    @classmethod
    @abstractmethod
    def decode_payload(cls: type[M], payload: Buffer) -> M:
        """Read a payload, all of it.

        Raises:
            RemoteProtocolError: if it is not one of this message.
        """


class LayoutMessage(Message):
    """A message that is the fields of its dataclass, in the order of `LAYOUT`."""

    __slots__ = ()

    LAYOUT: ClassVar[tuple[Field, ...]]

    def encode_payload(self) -> list[Buffer]:
        """Return the payload in one piece."""
        # Every subclass is a dataclass, which the type checker can't be told here.
        names = [field.name for field in fields(self)]  # type: ignore[arg-type]
        pairs = zip(self.LAYOUT, names, strict=True)
        try:
            parts = [field.encode(getattr(self, name)) for field, name in pairs]
        except LocalProtocolError as error:
            raise LocalProtocolError(f"{self.NAME}: {error}") from error
        return [b"".join(parts)] if parts else []

    @classmethod
    def decode_payload(cls: type[L], payload: Buffer) -> L:
        """Read a payload."""
        reader = PayloadReader(payload, cls.NAME)
        values = [field.read(reader) for field in cls.LAYOUT]
        reader.finish()
        return cls(*values)
