"""`Records` to Arrow columns and back: the hot path.

`write_records` builds the columns that are asked for, `read_records` reads the columns
of a write. No record becomes a Python object. No protocol is known here, except for
`decode` and `encode`, which put the two together with those of LWP.
"""

from lance_spark.columnar.columns import (
    DEFAULT_COLUMNS,
    TYPES,
    make_schema,
    write_good_records,
    write_records,
)
from lance_spark.columnar.inputs import (
    IGNORED_COLUMNS,
    WRITE_COLUMNS,
    check_columns,
    read_records,
)

__all__ = [
    "DEFAULT_COLUMNS",
    "IGNORED_COLUMNS",
    "TYPES",
    "WRITE_COLUMNS",
    "check_columns",
    "make_schema",
    "read_records",
    "write_good_records",
    "write_records",
]
