"""The versions with which Sluice is tested, and what happens with others: docs/versions.md.

A version that is too old raises an error, because it lacks names that Sluice uses. A version that
is newer
gets a warning.
"""

from __future__ import annotations

import re
import sys
import warnings
from dataclasses import dataclass
from functools import cache
from importlib.util import find_spec
from pathlib import Path

from sluice.errors import PreflightError
from sluice.provision.machine_checks import find_spark

Release = tuple[int, int]


class UntestedVersion(UserWarning):
    """A program has a version with which this version of Sluice has not been tested."""


@dataclass(frozen=True)
class Range:
    """The releases of a program with which Sluice is tested, from the first to the last."""

    program: str
    first: Release
    last: Release

    def __str__(self) -> str:
        return f"{_text(self.first)} to {_text(self.last)}"

    def check(self, installed: str) -> None:
        """Warn if the installed version is newer than the range.

        Raises PreflightError if it is older.
        """
        release = release_of(installed)
        if release < self.first:
            raise PreflightError(
                f"{self.program} {installed} is too old: Sluice needs {self}.",
                next_step=f"Install {self.program} {_text(self.first)} or newer.",
            )
        if release > self.last:
            warnings.warn(
                f"Sluice has not been tested with {self.program} {installed}, only with {self}. "
                f"If something fails, install {self.program} {_text(self.last)} "
                "or a newer version of Sluice.",
                UntestedVersion,
                stacklevel=3,
            )


PYTHON = Range("Python", (3, 11), (3, 13))
AIRFLOW = Range("Airflow", (3, 1), (3, 3))
SPARK = Range("Spark", (4, 0), (4, 3))
RANGES = (PYTHON, AIRFLOW, SPARK)


def release_of(text: str) -> Release:
    """Return the first two numbers of a version: (4, 2) for 4.2.0 and 4.2.0.dev1."""
    numbers = re.findall(r"\d+", text)
    return int(numbers[0]), int(numbers[1]) if len(numbers) > 1 else 0


def _text(release: Release) -> str:
    return f"{release[0]}.{release[1]}"


def check_python() -> None:
    """Warn if this Python is newer than those with which Sluice is tested."""
    PYTHON.check(".".join(map(str, sys.version_info[:3])))


@cache
def check_spark() -> None:
    """Check PySpark's version without importing it, and that its Python code and jars fit together.

    Airflow's Spark provider needs the package pyspark-client, which has the same Python files as
    pyspark. The package that is installed last overwrites the files of the other.

    Warns of a version that is too new. Raises PreflightError if PySpark is missing or too old, or
    if its files are of different versions.
    """
    spec, spark = find_spec("pyspark"), find_spark()
    if spec is None or spec.origin is None:
        # In a driver, Spark's own folder is on Python's path.
        if spark is not None:
            return
        raise PreflightError(
            "This command needs the package pyspark, which is not installed.",
            next_step="Run: pip install 'sluice-streams[spark]'",
        )
    python = _version_in(Path(spec.origin).with_name("version.py"))
    jars = _version_of_jars(spark) if spark else ""
    if python:
        SPARK.check(python)
    if not jars:
        raise PreflightError(
            "There are no jars of Spark beside PySpark's Python code in "
            f"{Path(spec.origin).parent}.",
            next_step=(
                "Only pyspark-client is installed: run pip install 'sluice-streams[spark]' "
                f"pyspark=={python}. Or set SPARK_HOME."
            ),
        )
    if python and release_of(python) != release_of(jars):
        raise PreflightError(
            f"PySpark's Python code is of version {python}, "
            f"but Spark's jars are of version {jars}.",
            next_step=f"Run {_reinstall(jars)}, or correct SPARK_HOME.",
        )
    if _is_overwritten(Path(spec.origin).parents[1], python):
        raise PreflightError(
            f"The package pyspark-client has overwritten files of PySpark {jars} with files of "
            "another version.",
            next_step=f"Run {_reinstall(jars)}.",
        )


def installed_spark() -> str:
    """Return the version of the installed PySpark, or of Spark's jars; empty if there is neither.

    Does not import PySpark.
    """
    spec, spark = find_spec("pyspark"), find_spark()
    python = _version_in(Path(spec.origin).with_name("version.py")) if spec and spec.origin else ""
    return python or (_version_of_jars(spark) if spark else "")


def _reinstall(spark: str) -> str:
    return f"pip install --force-reinstall --no-deps pyspark=={spark}"


def _is_overwritten(packages: Path, spark: str) -> bool:
    """Return whether a folder's pyspark files have the sizes of another pyspark-client's files."""
    clients = [folder.name for folder in packages.glob("pyspark_client-*.dist-info")]
    if not clients or clients == [f"pyspark_client-{spark}.dist-info"]:
        return False
    for record in packages.glob("pyspark-*.dist-info/RECORD"):
        for line in record.read_text().splitlines():
            name, _, size = line.rsplit(",", 2)
            if name.endswith(".py") and size and not _has_size(packages / name, int(size)):
                return True
    return False


def _has_size(file: Path, size: int) -> bool:
    try:
        return file.stat().st_size == size
    except OSError:
        return False


def _version_in(file: Path) -> str:
    try:
        found = re.search(r"""__version__[^=]*= *["']([^"']+)""", file.read_text())
    except OSError:
        return ""
    return found[1] if found else ""


def _version_of_jars(spark: Path) -> str:
    """Return the version in the name of Spark's main jar, such as spark-core_2.13-4.2.0.jar."""
    for jar in (spark / "jars").glob("spark-core_*.jar"):
        return jar.stem.rpartition("-")[2]
    return ""
