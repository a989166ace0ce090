"""Types of the compiled kernel, which is documented in `_scan.c`."""

from lance_spark.model import Buffer

def follow(
    data: Buffer, position: int, starts: Buffer, count: int, length_max: int
) -> tuple[int, int]: ...
