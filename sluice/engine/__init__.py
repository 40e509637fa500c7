"""Runs a plan, on Spark or in a test: read, stateless steps, groups and operators, publish."""

import os
import sys
from pathlib import Path


def _prefer_compiled_pyspark() -> None:
    """Import PySpark from the installed package rather than from Spark's archive `pyspark.zip`.

    Spark puts the archive first on the path of the programs and workers that it starts, and Python
    compiles the modules of an archive again in every process. Does nothing if SPARK_HOME is another
    installation of Spark, whose archive may contain another version of PySpark than the package.
    """
    home = os.environ.get("SPARK_HOME", "")
    if home and Path(home, "__init__.py").is_file() and str(Path(home).parent) in sys.path:
        sys.path[:] = [entry for entry in sys.path if not entry.startswith(f"{home}/python/lib/")]


_prefer_compiled_pyspark()
