"""Build the optional scan kernel; everything else is in pyproject.toml."""

from setuptools import Extension, setup

setup(
    ext_modules=[
        Extension(
            "lance_spark.columnar._scan",
            ["lance_spark/columnar/_scan.c"],
            # Without a compiler the pure-Python twin does the same work.
            optional=True,
        )
    ]
)
