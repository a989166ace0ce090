"""TLV bytes to Arrow columns and back: the hot path.

Start with `scan` (where records start), `layout` (what is inside them), `decode`
(bytes to Arrow) and `encode` (Arrow to bytes). Nothing here knows of sockets, files,
frames or Spark, and nothing handles one record at a time except the scan.
"""

from lance_spark.columnar.inputs import IGNORED_COLUMNS, WRITE_COLUMNS

__all__ = ["IGNORED_COLUMNS", "WRITE_COLUMNS"]
