"""The checksum of bytes whose parts have checksums, without looking at the bytes.

A CRC is linear: the CRC of `a + b` is that of `a`, moved along by as many zero bytes as
`b` has, exclusive or that of `b`. Moving along by 2^k bytes is a fixed linear function
of 32 bits, kept as four tables of 256 numbers, one for each byte of its argument.
"""

from __future__ import annotations

from functools import cache

# CRC32C (Castagnoli), with its bits reversed as all implementations have them.
_POLYNOMIAL = 0x82F63B78
_Tables = tuple[tuple[int, ...], ...]


def combine_crc32c(first: int, second: int, second_bytes: int) -> int:
    """Give the CRC32C of two runs of bytes, one behind the other.

    Args:
        first: CRC32C of the first.
        second: CRC32C of the second.
        second_bytes: how long the second is.
    """
    power = 0
    while second_bytes:
        if second_bytes & 1:
            a, b, c, d = _moving(power)
            first = (
                a[first & 0xFF]
                ^ b[first >> 8 & 0xFF]
                ^ c[first >> 16 & 0xFF]
                ^ d[first >> 24]
            )
        second_bytes >>= 1
        power += 1
    return first ^ second


@cache
def _moving(power: int) -> _Tables:
    """Give the tables that move a CRC along by 2^power zero bytes."""
    matrix = _matrix(power)
    return tuple(
        tuple(_times(matrix, byte << shift) for byte in range(256))
        for shift in (0, 8, 16, 24)
    )


@cache
def _matrix(power: int) -> tuple[int, ...]:
    """Give what becomes of each single bit."""
    if power:
        half = _matrix(power - 1)
        return tuple(_times(half, column) for column in half)
    return tuple(_move_byte(1 << bit) for bit in range(32))


def _move_byte(crc: int) -> int:
    for _ in range(8):
        crc = (crc >> 1) ^ (_POLYNOMIAL if crc & 1 else 0)
    return crc


def _times(matrix: tuple[int, ...], vector: int) -> int:
    product = 0
    for bit, column in enumerate(matrix):
        if vector >> bit & 1:
            product ^= column
    return product
