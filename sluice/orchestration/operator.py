"""The operator that runs a pipeline's jobs: spark-submit of one program, `spark_jobs/run.py`."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import datetime
from typing import TYPE_CHECKING, Any

from airflow.providers.apache.spark.hooks.spark_submit import SparkSubmitHook
from airflow.providers.apache.spark.operators.spark_submit import SparkSubmitOperator
from airflow.sdk.exceptions import AirflowException, AirflowFailException

from sluice.brokers import require_brokers
from sluice.errors import BrokersUnreachable, PreflightError, SettingsError
from sluice.orchestration.connections import KAFKA, SPARK, kafka_config, spark_master
from sluice.settings import settings
from sluice.state.ledger.run_ends import note_killed, now
from sluice.submission import Submission, is_noise, submission

if TYPE_CHECKING:
    from airflow.sdk import Context


class SluiceJobOperator(SparkSubmitOperator):
    """Submits jobs of one pipeline, all if none is named, to the Spark of one connection with the Kafka of another.

    The jobs take no parameters from whoever triggers a run.
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
        self.pipeline = pipeline
        self.jobs_of_run = list(jobs)

    def execute(self, context: Context) -> None:
        """Submit, and wait until the jobs have read what there was. What is set up wrongly fails without retries."""
        since = now()
        try:
            master = spark_master(self._conn_id)
            kafka = kafka_config(self.kafka_conn_id)
            with submission(settings(), kafka, master) as told:
                require_brokers(kafka)
                self._submit(told, context)
        except (SettingsError, PreflightError) as error:
            self._note(context, since, error.detail)
            raise AirflowFailException(str(error)) from None
        except BrokersUnreachable as error:
            self._note(context, since, error.detail)
            raise AirflowException(str(error)) from None
        except BaseException:
            self._note(context, since, "The driver ended without saying why: see the task's log.")
            raise

    def _get_hook(self) -> SparkSubmitHook:
        hook = super()._get_hook()
        log = hook._process_spark_submit_log

        def without_noise(lines: Iterator[str]) -> None:
            log(line for line in lines if not is_noise(line))

        hook._process_spark_submit_log = without_noise  # type: ignore[assignment]
        return hook

    def _note(self, context: Context, since: datetime, what: str) -> None:
        job = self.jobs_of_run[0] if len(self.jobs_of_run) == 1 else ""
        note_killed(settings(), self.pipeline, job, _run(context), since, what)

    def _submit(self, told: Submission, context: Context) -> None:
        self.jars = told.jars
        self.driver_class_path = told.driver_class_path
        self.conf = {"spark.driver.extraJavaOptions": told.driver_java_options} if told.driver_java_options else {}
        # Not the parameter env_vars: for some masters the hook makes arguments of those.
        with added_to_environment(told.environment | {"SLUICE_RUN": _run(context)}):
            super().execute(context)


def _run(context: Context) -> str:
    """The run and its task, the same for every try: so a try knows the driver that the one before has left behind."""
    task = context["ti"]
    return f"{task.dag_id}/{task.run_id}/{task.task_id}"


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
