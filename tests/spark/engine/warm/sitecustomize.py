"""Has Spark's Python processes start quickly.

They take Spark's own modules from where pip has put them, and not from the archive
beside them that Spark has them look into first: from that one, each process compiles
all of them anew. And daemons import what their workers need before they fork any.
A worker ends with each error, and the next one would import it all anew, which takes
longer than most tests. Python runs this file where its directory is on PYTHONPATH: in
the JVM of the session that tests share and of queries that are killed all the time, and
nowhere else. Clusters and Connect have workers as users have them.
"""

from __future__ import annotations

import importlib
import os
import sys
from pathlib import Path

_READER, _WRITER = "lance_spark.spark.reader", "lance_spark.spark.writer"
_STREAM_READER = "lance_spark.spark.stream_reader"
# What the workers of a module load when they work.
_LOADED = {
    "pyspark.worker": ("pandas", _READER, _WRITER, _STREAM_READER),
    "pyspark.sql.worker.create_data_source": ("lance_spark.spark.schema",),
    "pyspark.sql.worker.plan_data_source_read": ("pandas", _READER, _STREAM_READER),
    "pyspark.sql.worker.data_source_pushdown_filters": (_READER,),
    "pyspark.sql.worker.write_into_data_source": (_WRITER,),
    "pyspark.sql.worker.commit_data_source_write": (_WRITER,),
    "pyspark.sql.worker.python_streaming_sink_runner": (_WRITER,),
}
# With these, nothing below starts a thread; a process with threads must not fork.
_SINGLE = {
    "OPENBLAS_NUM_THREADS": "1",
    "JE_ARROW_MALLOC_CONF": "background_thread:false",
}


def _warm_up() -> None:
    if sys.orig_argv[1:3] != ["-m", "pyspark.daemon"]:
        return
    worker = sys.orig_argv[3]
    os.environ.update(_SINGLE)
    for name in (*_LOADED.get(worker, ()), worker):
        importlib.import_module(name)
    tasks = Path("/proc/self/task")
    if tasks.exists() and len(list(tasks.iterdir())) > 1:
        # Without a daemon Spark fails, and shows what it has said. An exception here
        # would be a crash of the interpreter.
        sys.stderr.write(f"imports of {worker} have started a thread: see {__file__}\n")
        sys.stderr.flush()
        os._exit(1)


def _leave_archives() -> None:
    sys.path[:] = [path for path in sys.path if not path.endswith("/pyspark.zip")]


def _run_other() -> None:
    """Run the file of this name that would have run without us, if there is one."""
    here = str(Path(__file__).parent)
    sys.path[:] = [path for path in sys.path if path != here]
    mine = sys.modules.pop("sitecustomize", None)
    try:
        import sitecustomize  # noqa: F401  # What it does is done by the import.
    except ModuleNotFoundError as error:
        if error.name != "sitecustomize":
            raise
        if mine is not None:
            sys.modules["sitecustomize"] = mine


_run_other()
_leave_archives()
_warm_up()
