"""Write the frozen checkpoint of 0.6: the same format, with marks that cover more.

    PYTHONPATH=. .venv/bin/python tests/vectors/checkpoint-v1-marks/make.py DIRECTORY

What is in it and how it was made is said in `checkpoint-v1/make.py`. Only offsets of a
plain server have marks; records are padded, so that the head of a log and the bytes
before an offset are not the same ones.
"""

from __future__ import annotations

import runpy
import sys
from pathlib import Path

from tests.spark.engine.session import run_session

FIRST = Path(__file__).parent.parent / "checkpoint-v1" / "make.py"

if __name__ == "__main__":
    where = Path(sys.argv[1])
    with run_session(where / "spark") as session:
        runpy.run_path(str(FIRST))["make"](session, where / "plain", "plain", 2500)
