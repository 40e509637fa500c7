"""The settings of a Spark session, when Spark compiles a query's expressions, and what a killed JVM leaves."""

from __future__ import annotations

import json
import logging
import socket
import struct
import time
from types import SimpleNamespace
from typing import Any

import pytest
from py4j.protocol import Py4JNetworkError  # type: ignore[import-untyped]
from pyspark import SparkContext
from pyspark.accumulators import _start_update_server

from sluice.engine.run.query_errors import query_errors
from sluice.engine.session import (
    FEW_RECORDS,
    INTERPRETED,
    configuration,
    jvm_errors,
    let_jvm_end,
    prepare_for,
    stop,
)
from sluice.errors import EngineError
from sluice.settings import Settings

FILES = "spark.sql.streaming.checkpointFileManagerClass"
WHOLE_STAGE = "spark.sql.codegen.wholeStage"
ROWS_AT_ONCE = "spark.sql.execution.arrow.maxRecordsPerBatch"


@pytest.mark.parametrize(
    "error", [Py4JNetworkError("Error while sending."), ConnectionRefusedError(111, "refused")]
)
def test_a_jvm_that_was_killed_is_named_with_what_to_do(error: Exception) -> None:
    nothing: Any = None
    with (
        pytest.raises(EngineError, match="JVM has ended"),
        jvm_errors(),
        query_errors(nothing, nothing, nothing),
    ):
        raise error


def test_a_jvm_that_was_killed_leaves_no_traceback_of_pyspark(
    capsys: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
    secret = "secret"
    server: Any = _start_update_server(secret, is_unix_domain_sock=False)
    spark: Any = SimpleNamespace(_accumulatorServer=server)
    let_jvm_end(spark)
    # The server handles one connection after the other: the second is answered when the first has
    # ended.
    for _ in range(2):
        with socket.create_connection(server.server_address) as jvm:
            jvm.sendall(secret.encode() + struct.pack("!i", 0))
            assert jvm.recv(1) == b"\1"
    server.shutdown()
    assert capsys.readouterr().err == ""
    for error in (Py4JNetworkError("Error while sending."), ValueError("another error")):
        try:
            raise error
        except (Py4JNetworkError, ValueError):
            logging.exception("Exception while sending command.")
    assert [str(record.exc_info[1]) for record in caplog.records if record.exc_info] == [
        "another error"
    ]


def test_a_session_stops_without_waiting_for_updates_of_accumulators(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(SparkContext, "_active_spark_context", None)
    secret = "secret"
    server: Any = _start_update_server(secret, is_unix_domain_sock=False)
    context: Any = SimpleNamespace(_accumulatorServer=server)
    let_jvm_end(context)
    spark: Any = SimpleNamespace(sparkContext=context, stop=lambda: SparkContext.stop(context))
    with socket.create_connection(server.server_address) as jvm:
        jvm.sendall(secret.encode() + struct.pack("!i", 0))
        assert jvm.recv(1) == b"\1"
        # The server now waits a second for the next update.
        begun = time.monotonic()
        stop(spark)
        assert time.monotonic() - begun < 0.2
    server.shutdown()


def settings_after(
    records: int, configured: dict[str, str], *, computes_sql: bool = True
) -> dict[str, str]:
    """The session's settings after a run has learnt how many records are unread."""
    conf = dict(configured)
    of_submit = SimpleNamespace(_conf=SimpleNamespace(contains=configured.__contains__))
    spark: Any = SimpleNamespace(sparkContext=of_submit, conf=SimpleNamespace(set=conf.__setitem__))
    prepare_for(spark, computes_sql=computes_sql, records=records)
    return conf


@pytest.mark.parametrize(
    ("records", "compiled"), [(0, "false"), (FEW_RECORDS - 1, "false"), (FEW_RECORDS, "true")]
)
def test_only_a_run_over_many_records_compiles(records: int, compiled: str) -> None:
    assert settings_after(records, {})[WHOLE_STAGE] == compiled
    assert settings_after(records, {}, computes_sql=False)[WHOLE_STAGE] == "false"


def test_spark_gets_thousands_of_records_at_once_but_few_row_batches() -> None:
    assert settings_after(5, {})[ROWS_AT_ONCE] == "20000"
    assert settings_after(5, {}, computes_sql=False)[ROWS_AT_ONCE] == "4"


def test_a_setting_of_the_user_takes_precedence() -> None:
    own = {WHOLE_STAGE: "true", ROWS_AT_ONCE: "7"}
    assert settings_after(5, own) == settings_after(5, own, computes_sql=False) == INTERPRETED | own


def test_checkpoints_are_renamed_without_other_programs() -> None:
    assert "FileSystemBased" in configuration(Settings.read({}))[FILES]
    assert (
        configuration(Settings.read({"SLUICE_SPARK_CONF": json.dumps({FILES: "mine"})}))[FILES]
        == "mine"
    )
