"""The operator that runs a pipeline's jobs: spark-submit of one program, `spark_jobs/run.py`."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from airflow.providers.apache.spark.operators.spark_submit import SparkSubmitOperator
from airflow.sdk.exceptions import AirflowFailException

from sluice.errors import SettingsError
from sluice.orchestration.connections import KAFKA, SPARK, kafka_config, spark_master
from sluice.settings import Settings, settings

if TYPE_CHECKING:
    from airflow.sdk import Context

LOOPBACK = "127.0.0.1"


class SluiceJobOperator(SparkSubmitOperator):
    """Submits jobs of one pipeline, all if none is named, to the Spark of one connection with the Kafka of another.

    The jobs take no parameters from whoever triggers a run. What they need to know goes through the environment, where
    no process list shows it.
    """

    template_fields: Sequence[str] = ()

    def __init__(
        self,
        *,
        pipeline: str,
        jobs: Sequence[str] = (),
        kafka_conn_id: str = KAFKA,
        conn_id: str = SPARK,
        **kwargs: Any,
    ) -> None:
        super().__init__(
            application=str(settings().pipelines / "run.py"),
            application_args=[pipeline, *jobs],
            name=".".join(("sluice", pipeline, *jobs)),
            conn_id=conn_id,
            **kwargs,
        )
        self.kafka_conn_id = kafka_conn_id

    def execute(self, context: Context) -> None:
        """Submit, and wait until the jobs have read what there was. What is set up wrongly fails without retries."""
        try:
            master = spark_master(self._conn_id)
            said = environment(settings(), kafka_config(self.kafka_conn_id))
            self.jars = ",".join(str(jar) for jar in connector_jars(settings().jars))
        except SettingsError as error:
            raise AirflowFailException(str(error)) from None
        if master.startswith("local"):
            # The driver's ports are for this machine only.
            said["SPARK_LOCAL_IP"] = LOOPBACK
        # Not the parameter env_vars: for some masters the hook makes arguments of those.
        with added_to_environment(said):
            super().execute(context)


def environment(known: Settings, kafka: Mapping[str, str]) -> dict[str, str]:
    """Write down the settings for the process that is submitted."""
    return {
        "SLUICE_HOME": str(known.home),
        "SLUICE_PIPELINES": str(known.pipelines),
        "SLUICE_LEDGER": known.ledger,
        "SLUICE_SHARDS": known.shards,
        "SLUICE_CHECKPOINTS": known.checkpoints,
        "SLUICE_JARS": str(known.jars),
        "SLUICE_KAFKA": json.dumps(dict(kafka)),
        "SLUICE_SPARK_CONF": json.dumps(known.spark_conf),
        # Unset, Spark's workers pick another Python.
        "PYSPARK_PYTHON": sys.executable,
        "PYSPARK_DRIVER_PYTHON": sys.executable,
        # The hook knows spark-submit by its name only: the one of this Python's pyspark comes first.
        "PATH": os.pathsep.join((str(Path(sys.executable).parent), os.environ.get("PATH", os.defpath))),
    }


def connector_jars(folder: Path) -> list[Path]:
    """List the jars of Spark's Kafka connector; SettingsError if there are none."""
    jars = sorted(folder.glob("*.jar"))
    if not jars:
        raise SettingsError(f"There are no jars in {folder}.", next_step="Run: python -m sluice.provision jars")
    return jars


@contextmanager
def added_to_environment(variables: Mapping[str, str]) -> Iterator[None]:
    """Set variables of this process, and put back what was there."""
    before = {name: os.environ.get(name) for name in variables}
    os.environ.update(variables)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value
