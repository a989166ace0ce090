"""Build the optional compiled kernel; everything else is in pyproject.toml."""

from setuptools import Extension, setup

setup(
    ext_modules=[
        Extension(
            "lance_spark.kernel._kernel",
            ["lance_spark/kernel/_kernel.c"],
            # Without a compiler the Python twins do the same work.
            optional=True,
        )
    ]
)
