"""`Records` to Arrow columns and back: the hot path.

`write_records` builds the columns that are asked for, `read_records` reads the columns
of a write. No record becomes a Python object. No protocol is known here, except for
`decode` and `encode`, which put the two together with those of LWP.
"""

from lance_spark.columnar.columns import DEFAULT_COLUMNS as DEFAULT_COLUMNS
from lance_spark.columnar.columns import TYPES as TYPES
from lance_spark.columnar.columns import make_integers as make_integers
from lance_spark.columnar.columns import make_schema as make_schema
from lance_spark.columnar.columns import write_good_records as write_good_records
from lance_spark.columnar.columns import write_records as write_records
from lance_spark.columnar.inputs import IGNORED_COLUMNS as IGNORED_COLUMNS
from lance_spark.columnar.inputs import WRITE_COLUMNS as WRITE_COLUMNS
from lance_spark.columnar.inputs import check_columns as check_columns
from lance_spark.columnar.inputs import hash_keys as hash_keys
from lance_spark.columnar.inputs import read_records as read_records
