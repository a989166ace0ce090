"""The number of a consumer's name."""

from __future__ import annotations

import hashlib

import pytest

from lance_spark.client.lwp.offsets import consumer_id
from lance_spark.errors import OptionError


def test_is_fixed_for_ever() -> None:
    # Computed with sha256sum; a change here loses every offset that was committed.
    assert consumer_id("billing") == 0x971ACEE1ECC7950C
    assert consumer_id("größe") == 0xFFAF671B67A253D3


def test_is_the_start_of_the_hash() -> None:
    digest = hashlib.sha256(b"a").digest()
    assert consumer_id("a") == int.from_bytes(digest[:8], "little")


def test_is_never_zero(monkeypatch: pytest.MonkeyPatch) -> None:
    class Zeros:
        def digest(self) -> bytes:
            return bytes(32)

    monkeypatch.setattr(hashlib, "sha256", lambda data: Zeros())
    assert consumer_id("unlucky") == 1


@pytest.mark.parametrize("name", ["", "\ud800"])
def test_refuses_what_has_no_utf8(name: str) -> None:
    with pytest.raises(OptionError):
        consumer_id(name)
