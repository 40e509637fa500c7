"""Runs a plan, on Spark or in a test's process: read, stateless steps, groups and operators, publish."""

import os
import sys
from pathlib import Path


def _prefer_compiled_pyspark() -> None:
    """Import PySpark from its package rather than from its archive, which Python would compile in every process.

    Spark puts the archive first on the path of the programs and workers that it starts. The package is the same
    PySpark if Spark itself is in it, as in an installation by pip.
    """
    home = os.environ.get("SPARK_HOME", "")
    if home and Path(home, "__init__.py").is_file() and str(Path(home).parent) in sys.path:
        sys.path[:] = [entry for entry in sys.path if not entry.startswith(f"{home}/python/lib/")]


_prefer_compiled_pyspark()
