"""What `sluice check --master` finds on executors, without a cluster."""

from __future__ import annotations

import socket
import subprocess
import sys
from collections.abc import Mapping
from importlib import metadata
from pathlib import Path

from sluice.engine.executor_probe import Finding, Probe, Report
from sluice.engine.run.executor_check import PACKAGES, _clock, _lines, _reason, without_own_daemon
from sluice.settings import Settings
from tests.support.ports import free_port

NO_BROKER = {"bootstrap.servers": "127.0.0.1:1", "sasl.password": "hunter2"}


def found(probe: Probe) -> Mapping[str, Finding]:
    return {finding.check: finding for finding in probe.report().findings}


def probe(packages: Mapping[str, str] | None = None, **more: object) -> Probe:
    return Probe(packages or {"numpy": metadata.version("numpy")}, NO_BROKER, **more)  # type: ignore[arg-type]


def test_every_check_is_made_even_if_one_fails() -> None:
    checks = found(probe(databases={"db": f"postgresql://127.0.0.1:{free_port()}/x"}))
    results = {name: finding.result for name, finding in checks.items()}
    assert results == {
        "packages": "ok",
        "Python": "ok",
        "Sluice": "ok",
        "Kafka": "failed",
        "shards": "failed",
    }
    assert "Kafka at 127.0.0.1:1 does not answer" in checks["Kafka"].error


def test_a_missing_package_is_named() -> None:
    finding = found(probe({"numpy": metadata.version("numpy"), "no-such-package": "1.2"}))
    assert finding["packages"].error == "no-such-package 1.2 is missing"


def test_another_version_is_shown_and_another_spark_is_an_error() -> None:
    other = found(probe({"numpy": "0.1"}))["packages"]
    assert (other.result, other.detail) == (
        "differs",
        f"numpy {metadata.version('numpy')}, the driver has 0.1",
    )
    spark = found(probe({"pyspark": "3.0.0"}))["packages"]
    assert spark.error == f"pyspark {metadata.version('pyspark')}, the driver has 3.0.0"


def test_state_servers_accept_connections() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        address = listener.getsockname()
        assert found(probe(servers=[address]))["state servers"].result == "ok"
    closed = found(probe(servers=[address]))["state servers"]
    assert closed.error.startswith(f"127.0.0.1:{address[1]}: ")


def test_the_probe_itself_needs_no_package() -> None:
    code = (
        "import sys; from importlib.abc import MetaPathFinder\n"
        "class Nothing(MetaPathFinder):\n"
        "    def find_spec(self, name, path, target=None):\n"
        f"        if name.replace('_', '-') in {PACKAGES!r}: raise ModuleNotFoundError(name)\n"
        "sys.meta_path.insert(0, Nothing())\n"
        "from sluice.engine.executor_probe import Probe\n"
        "print([(f.check, f.error) for f in Probe({}, {}).report().findings if f.error])\n"
    )
    process = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    )
    assert "('Sluice', 'pyarrow')" in process.stdout


def test_a_clock_may_be_off_by_the_time_that_the_task_took_and_five_seconds() -> None:
    def result(time: float) -> str:
        return _clock(Report("h", (), time), began=100.0, ended=110.0).result

    assert [result(time) for time in (100.0, 110.0, 114.0, 95.5)] == ["ok"] * 4
    assert [result(time) for time in (115.5, 94.0)] == ["failed"] * 2


def test_the_error_of_an_executors_python_is_one_line() -> None:
    text = """An error occurred while calling o1.collect.
: org.apache.spark.SparkException: Job aborted due to stage failure:
Traceback (most recent call last):
  File "worker.py", line 1
ModuleNotFoundError: No module named 'sluice'

\tat org.apache.spark.api.python
"""
    assert _reason(text) == "ModuleNotFoundError: No module named 'sluice'"
    assert _reason("nothing known\nmore") == "nothing known"


def test_the_table_has_a_row_for_each_check() -> None:
    rows = [Finding("driver", "ledger", "db"), Finding("host-1", "Kafka", "", "no answer")]
    assert [*_lines("spark://m:7077", rows)] == [
        "executors of spark://m:7077",
        "where   check   result",
        "driver  ledger  ok      db",
        "host-1  Kafka   failed  no answer",
    ]


def test_spark_starts_its_own_daemon() -> None:
    home = Path("/nowhere")
    settings = Settings.read({"SLUICE_HOME": str(home), "SLUICE_SPARK_CONF": '{"a": "b"}'})
    assert without_own_daemon(settings).spark_conf == {
        "a": "b",
        "spark.python.daemon.module": "pyspark.daemon",
    }
