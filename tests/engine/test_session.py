"""How Spark and its Python workers start."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pyspark
import pytest
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from sluice.engine.session import session, settings_errors
from sluice.errors import SettingsError
from sluice.settings import Settings

PACKAGE = Path(pyspark.__file__).parent
ARCHIVE = PACKAGE / "python" / "lib" / "pyspark.zip"


def _imported(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    for _ in batches:
        yield pa.record_batch({"file": [sys.modules["pyspark.worker"].__file__]})


def test_workers_of_tests_import_the_pyspark_that_is_compiled(spark: SparkSession) -> None:
    ((file,),) = spark.range(0, 1, 1, 1).mapInArrow(_imported, "file STRING").collect()
    assert file == str(PACKAGE / "worker.py")


@pytest.mark.usefixtures("spark")
def test_a_setting_that_spark_refuses_is_named() -> None:
    values = Settings.read({"SLUICE_SPARK_CONF": '{"spark.sql.shuffle.partitions": "abc"}'})
    with pytest.raises(
        SettingsError, match=r'Spark does not start: .*"spark\.sql\.shuffle\.partitions"'
    ) as refused:
        session(values, "refused")
    assert "Correct SLUICE_SPARK_CONF" in refused.value.next_step


def test_a_java_that_is_too_new_for_spark_is_named() -> None:
    with pytest.raises(SettingsError) as refused, settings_errors():
        raise PySparkException("getSubject is not supported")
    assert "JAVA_HOME to Java 17" in refused.value.next_step


@pytest.mark.parametrize(
    ("home", "imported"), [(PACKAGE, PACKAGE), (Path("/opt/spark"), ARCHIVE / "pyspark")]
)
def test_the_engine_imports_the_pyspark_that_is_compiled(home: Path, imported: Path) -> None:
    """Spark puts the archive first on the path.

    Another Spark than the package's may have another PySpark.
    """
    variables = {
        **os.environ,
        "SPARK_HOME": str(home),
        "PYTHONPATH": os.pathsep.join([str(ARCHIVE), *sys.path]),
    }
    program = "import sluice.engine, pyspark; print(pyspark.__file__)"
    found = subprocess.run(
        [sys.executable, "-c", program], env=variables, capture_output=True, text=True, check=True
    )
    assert Path(found.stdout.strip()) == imported / "__init__.py"
