"""The arguments and environment of spark-submit, recorded by a fake program."""

from __future__ import annotations

import json
import os
import re
import sys
import time
from collections import defaultdict
from dataclasses import dataclass
from inspect import signature
from pathlib import Path
from threading import Event, Thread
from types import SimpleNamespace
from typing import Any, cast

import pytest
from airflow.providers.apache.spark.operators.spark_submit import SparkSubmitOperator
from airflow.sdk import Asset
from opentelemetry.trace import NonRecordingSpan, SpanContext, TraceFlags, use_span

from sluice.airflow_releases import (
    AirflowException,
    AirflowFailException,
    AirflowSkipException,
)
from sluice.errors import EngineError
from sluice.kafka.brokers import require_brokers
from sluice.orchestration import operator
from sluice.orchestration.operator import SluiceOperator
from sluice.settings import settings
from sluice.spark_submit import APPLICATION
from sluice.state.ledger.failures import Failure
from sluice.state.ledger.ledger import Ledger
from sluice.topology.loading.run_options import RunOptions
from tests.support.ports import free_port
from tests.support.states import States, make_snapshot
from tests.support.tiny_wheels import write_wheel

SECRET = "hunter2-of-kafka"
FINISHES = "open(os.environ['SLUICE_FINISHED'], 'w').close()"
"""What a driver does last."""
KAFKA = {"bootstrap.servers": "kafka:9092", "sasl.password": SECRET, "enable.auto.commit": False}

# The Spark provider does not close the pipe to spark-submit.
pytestmark = pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")


@dataclass(frozen=True)
class Submitted:
    """One call of spark-submit."""

    arguments: list[str]
    environment: dict[str, str]

    def after(self, option: str) -> str:
        return self.arguments[self.arguments.index(option) + 1]


@pytest.fixture(autouse=True)
def recorder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A fake spark2-submit (a name the provider allows) that records its calls."""
    record = tmp_path / "record.json"
    program = tmp_path / "bin" / "spark2-submit"
    program.parent.mkdir()
    code = f"json.dump([sys.argv, dict(os.environ)], open({str(record)!r}, 'w')); {FINISHES}"
    program.write_text(f"#!{sys.executable}\nimport json, os, sys\n{code}\n")
    program.chmod(0o755)
    monkeypatch.setattr(operator, "require_brokers", lambda _: None)
    monkeypatch.setenv("PATH", f"{program.parent}{os.pathsep}{os.environ['PATH']}")
    # `sluice check`, which other tests call in this process, sets the variable.
    monkeypatch.delenv("SPARK_LOCAL_IP", raising=False)
    return record


def connect(
    monkeypatch: pytest.MonkeyPatch,
    master: str | None = "local[2]",
    kafka: Any = KAFKA,
    **extra: str,
) -> None:
    spark = {
        "conn_type": "spark",
        "host": master,
        "extra": {"spark-binary": "spark2-submit", **extra},
    }
    for name, connection in {
        "SPARK": master and spark,
        "KAFKA": kafka and {"conn_type": "kafka", "extra": kafka},
    }.items():
        if connection:
            monkeypatch.setenv(f"AIRFLOW_CONN_{name}_DEFAULT", json.dumps(connection))
        else:
            monkeypatch.delenv(f"AIRFLOW_CONN_{name}_DEFAULT", raising=False)


def submit(
    record: Path,
    *,
    given: dict[str, Any] | None = None,
    events: Any = None,
    stores: dict[str, Any] | None = None,
    **arguments: Any,
) -> Submitted:
    """The submission of a run triggered with the parameters `given`."""
    task = SimpleNamespace(dag_id="orders", run_id="manual__1", task_id="main")
    context: dict[str, Any] = {
        "ti": task,
        "params": given or {},
        "dag_run": SimpleNamespace(conf=given or {}, run_id="manual__1"),
        **(stores or {}),
    }
    context["outlet_events"] = events
    operator = SluiceOperator(task_id="main", **({"pipeline": "orders"} | arguments))
    operator.render_template_fields(cast(Any, context))
    operator.execute(cast(Any, context))
    # Each submission has its own temporary folder.
    return Submitted(*json.loads(re.sub(r"sluice-run-\w+", "sluice-run", record.read_text())))


def test_the_urls_of_databases_come_from_connections(
    recorder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    connect(monkeypatch)
    warehouse = {
        "conn_type": "postgres", "host": "db", "port": 5433, "login": "me@work", "password": "se/cret",
        "schema": "shop", "extra": {"sslmode": "require", "cursor": "dictcursor"},
    }  # fmt: skip
    monkeypatch.setenv("AIRFLOW_CONN_WAREHOUSE", json.dumps(warehouse))
    said = submit(recorder, databases=["warehouse", "other-one"])
    url = "postgresql://me%40work:se%2Fcret@db:5433/shop?sslmode=require"
    assert said.environment["SLUICE_CONNECTION_WAREHOUSE"] == url
    assert "SLUICE_CONNECTION_OTHER_ONE" not in said.environment
    assert "cret" not in " ".join(said.arguments)
    assert "SLUICE_CONNECTION_WAREHOUSE" not in os.environ
    monkeypatch.setenv("AIRFLOW_CONN_WAREHOUSE", json.dumps(warehouse | {"conn_type": "mysql"}))
    with pytest.raises(AirflowFailException, match="'warehouse' is of type mysql"):
        submit(recorder, databases=["warehouse"])


def test_a_driver_that_ends_before_it_has_done_everything_fails_the_task(
    recorder: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    connect(monkeypatch)
    program = tmp_path / "bin" / "spark2-submit"
    program.write_text(program.read_text().replace(FINISHES, ""))
    with pytest.raises(AirflowException, match="ended with status 0 before the run was complete"):
        submit(recorder)


def test_arguments_name_the_program_and_the_pipeline_only(
    recorder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    connect(monkeypatch)
    said = submit(recorder)
    assert said.arguments[-2:] == [str(APPLICATION), "orders"]
    assert said.after("--master") == "local[2]"


@pytest.mark.parametrize(
    ("action", "options"),
    [
        ("run", []),
        ("replay", ["--replay"]),
        ("promote", ["--promote"]),
        ("drop", ["--drop"]),
        ("roll_back", ["--roll-back"]),
        ("change", ["--rebuild", "--changed-only", "--then-run"]),
    ],
)
def test_the_action_of_a_run_is_one_of_four(
    recorder: Path, monkeypatch: pytest.MonkeyPatch, action: str, options: list[str]
) -> None:
    connect(monkeypatch)
    program, *rest = submit(recorder, given={"action": action}).arguments[-2 - len(options) :]
    assert (program, rest) == (str(APPLICATION), [*options, "orders"])


def test_a_replay_takes_the_points_between_which_it_reads(
    recorder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    connect(monkeypatch)
    points = {"from": "2026-11-21T08:00:00", "until": "orders/0/12,orders/1/9"}
    given = submit(recorder, given={"action": "replay", **points}).arguments[-5:]
    assert given[1:] == [
        "--replay",
        "--from=2026-11-21T08:00:00",
        "--until=orders/0/12,orders/1/9",
        "orders",
    ]
    plain = submit(recorder, given={"action": "replay", "from": None, "until": ""}).arguments[-2:]
    assert plain == ["--replay", "orders"]


@pytest.mark.attack("S8", "points of a replay that are none, and points of other actions")
@pytest.mark.parametrize(
    ("given", "why"),
    [
        ({"action": "replay", "from": "; rm"}, "from is not a point in the topics"),
        ({"action": "replay", "until": "beginning"}, "the replay would read nothing"),
        ({"action": "replay", "from": ["beginning"]}, "must be text of at most 2,000 characters"),
        (
            {"action": "replay", "from": "a/0/1," * 1_000},
            "must be text of at most 2,000 characters",
        ),
        ({"action": "promote", "from": "beginning"}, "Only a replay takes from"),
    ],
)
def test_any_other_point_fails_at_once(
    recorder: Path, monkeypatch: pytest.MonkeyPatch, given: dict[str, Any], why: str
) -> None:
    connect(monkeypatch)
    with pytest.raises(AirflowFailException, match=why):
        submit(recorder, given=given)
    assert not recorder.exists()


def test_a_run_can_have_batches_and_a_linger_of_its_own(
    recorder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    connect(monkeypatch)
    given = submit(recorder, given={"max_records": 500, "linger_seconds": 90}).environment
    assert (given["SLUICE_MAX_RECORDS"], given["SLUICE_LINGER_MS"]) == ("500", "90000")
    plain = submit(recorder, given={"max_records": None, "linger_seconds": None}).environment
    assert (plain["SLUICE_MAX_RECORDS"], plain["SLUICE_LINGER_MS"]) == ("", "")


def test_the_task_installs_the_libraries_of_its_pipeline(
    recorder: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    connect(monkeypatch)
    write_wheel(tmp_path, "1.0")
    requirements = tmp_path / "requirements.txt"
    requirements.write_text("./tinylib-1.0-py3-none-any.whl\n")
    options = RunOptions(requirements=str(requirements))
    given = submit(recorder, options=options).environment
    libraries = Path(given["SLUICE_LIBRARIES"])
    assert given["PYTHONPATH"].split(os.pathsep)[0] == str(libraries)
    assert (libraries / "tinylib.py").exists()
    assert libraries.is_relative_to(settings().home)
    assert "SLUICE_LIBRARIES" not in os.environ

    requirements.write_text("pyarrow<1\n")
    with pytest.raises(AirflowFailException, match="conflicts with pyarrow"):
        submit(recorder, options=options)


def test_options_say_how_much_memory_a_run_has_and_its_spark_settings(
    recorder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    connect(monkeypatch)
    options = RunOptions(memory="4g", spark_conf={"spark.ui.enabled": "true"})
    given = submit(recorder, options=options).environment
    assert given["SLUICE_MEMORY"] == "4000m"
    assert json.loads(given["SLUICE_SPARK_CONF"])["spark.ui.enabled"] == "true"
    assert submit(recorder).environment["SLUICE_MEMORY"] == "1500m"


@pytest.mark.attack("S8", "numbers of a run out of bounds, and text")
@pytest.mark.parametrize(
    ("name", "value"),
    [("max_records", 0), ("max_records", "7; rm"), ("linger_seconds", 3601), ("max_records", True)],
)
def test_a_number_out_of_its_limits_fails_at_once(
    recorder: Path, monkeypatch: pytest.MonkeyPatch, name: str, value: Any
) -> None:
    connect(monkeypatch)
    with pytest.raises(AirflowFailException, match=f"The run's {name} is not a whole number from"):
        submit(recorder, given={name: value})
    assert not recorder.exists()


@pytest.mark.attack("S8", "another action than the four")
def test_any_other_action_fails_at_once(recorder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    connect(monkeypatch)
    for action in ("--from-topics", "x; rm -rf /", "", ["run"]):
        with pytest.raises(AirflowFailException, match="is not one of run, replay, promote, drop"):
            submit(recorder, given={"action": action})
    assert not recorder.exists()


HOSTILE = {
    "topic": "payroll",
    "path": "../../etc/passwd",
    "application": "/tmp/evil.py",
    "application_args": ["; touch /tmp/evil"],
    "conf": {
        "spark.driver.extraJavaOptions": "-javaagent:/tmp/evil.jar",
        "spark.submit.pyFiles": "/tmp/evil.py",
    },
    "jars": "http://evil.example/evil.jar",
    "packages": "evil:evil:1",
    "py_files": "http://evil.example/evil.py",
    "env_vars": {"LD_PRELOAD": "/tmp/evil.so"},
    "name": "$(touch /tmp/evil)",
    "pipeline": "{{ conn.kafka_default.extra }}",
    "SLUICE_LEDGER": "sqlite:////tmp/evil.sqlite",
}


@pytest.mark.attack(
    "S8", "a run triggered with another topic, path, program, conf, jars, packages, environment"
)
def test_parameters_of_a_run_do_not_change_the_submission(
    recorder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    connect(monkeypatch)
    plain, hostile = submit(recorder), submit(recorder, given=HOSTILE)
    assert hostile == plain
    assert "evil" not in json.dumps([hostile.arguments, hostile.environment])


@pytest.mark.attack("S8", "templates in an operator's arguments")
def test_nothing_of_a_run_is_a_template(recorder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    connect(monkeypatch)
    assert SluiceOperator.template_fields == ()
    assert (
        submit(recorder, pipeline="{{ conn.kafka_default.extra }}").arguments[-1]
        == "{{ conn.kafka_default.extra }}"
    )


@pytest.mark.attack(
    "S8", "shell syntax in the name of a pipeline and in the master of a connection"
)
def test_shell_syntax_is_not_interpreted(
    recorder: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    evil = tmp_path / "evil"
    connect(monkeypatch, f"local[2]; touch {evil}")
    for name in (f"$(touch {evil})", f"`touch {evil}`"):
        assert submit(recorder, pipeline=name).arguments[-1] == name
    assert not evil.exists()


def test_settings_go_through_the_environment(
    recorder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    connect(monkeypatch)
    said = submit(recorder).environment
    assert json.loads(said["SLUICE_KAFKA"]) == {**KAFKA, "enable.auto.commit": "false"}
    assert said["SLUICE_LEDGER"] == settings().ledger
    assert said["PYSPARK_PYTHON"] == sys.executable
    assert said["SLUICE_RUN"] == "orders/manual__1/main", "the same for every try"
    assert "SLUICE_KAFKA" not in os.environ, "the environment of this process is unchanged"


def test_the_span_of_the_task_is_the_parent_of_the_run(
    recorder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    connect(monkeypatch)
    assert "TRACEPARENT" not in submit(recorder).environment
    parent = SpanContext(
        0x4BF92F3577B34DA6A3CE929D0E0E4736, 0xF067AA0BA902B7, False, TraceFlags(TraceFlags.SAMPLED)
    )
    with use_span(NonRecordingSpan(parent)):
        environment = submit(recorder).environment
    assert environment["TRACEPARENT"] == "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"


@pytest.mark.attack("S9", "reading the process list while a run is submitted")
@pytest.mark.parametrize("master", ["local[2]", "spark://host:7077", "yarn"])
def test_no_secret_is_an_argument(
    recorder: Path, monkeypatch: pytest.MonkeyPatch, master: str
) -> None:
    connect(monkeypatch, master)
    said = submit(recorder)
    assert SECRET in said.environment["SLUICE_KAFKA"]
    assert not any(SECRET in argument for argument in said.arguments)


@pytest.mark.attack("S9", "reading the task's log")
def test_no_secret_is_logged(
    recorder: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
    caplog: pytest.LogCaptureFixture,
) -> None:
    connect(monkeypatch)
    submit(recorder)
    assert SECRET not in caplog.text + "".join(capfd.readouterr())


def test_a_local_spark_starts_fast_and_listens_on_loopback(
    recorder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    connect(monkeypatch)
    said = submit(recorder)
    assert said.environment["SPARK_LOCAL_IP"] == "127.0.0.1"
    assert {"--jars", "--driver-class-path"}.isdisjoint(said.arguments), (
        "only Delta tables need more jars than Spark's"
    )
    assert "UseSerialGC" in said.after("--conf")


def test_a_cluster_gets_the_package_and_the_jars_of_delta_lake(
    recorder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    connect(monkeypatch, "spark://host:7077")
    said = submit(recorder, delta=True)
    assert (
        len(said.after("--jars").split(","))
        == len(said.after("--driver-class-path").split(":"))
        == 2
    )
    assert said.after("--files").endswith("/sluice.zip")
    assert "spark.executorEnv.PYTHONPATH=sluice.zip" in said.arguments
    assert "SPARK_LOCAL_IP" not in said.environment


@pytest.mark.parametrize(
    ("connections", "why"),
    [
        ({"master": None}, "There is no connection 'spark_default' with a Spark master."),
        ({"kafka": None}, "There is no connection 'kafka_default'."),
        ({"kafka": {"group.id": "g"}}, "bootstrap.servers"),
        ({"deploy-mode": "cluster"}, "Set the deploy mode to client"),
    ],
)
def test_missing_connections_fail_at_once_with_the_next_step(
    recorder: Path, monkeypatch: pytest.MonkeyPatch, connections: dict[str, Any], why: str
) -> None:
    connect(monkeypatch, **connections)
    with pytest.raises(AirflowFailException, match=why.replace(".", r"\.")):
        submit(recorder)
    assert not recorder.exists(), "nothing was submitted"


def test_the_operator_refuses_the_deploy_mode_cluster(
    recorder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    connect(monkeypatch, "spark://host:7077")
    with pytest.raises(AirflowFailException, match="The operator sets deploy_mode to cluster"):
        submit(recorder, deploy_mode="cluster")
    assert not recorder.exists()


class UnusedStore:
    """Airflow's state of a task, from which the provider would reconnect to a driver."""

    def __getattr__(self, name: str) -> Any:
        raise AssertionError(f"The operator has used {name}.")


@pytest.mark.skipif(
    "durable" not in signature(SparkSubmitOperator.__init__).parameters,
    reason="this version of the Spark provider has no `durable`",
)
@pytest.mark.parametrize("master", ["local[2]", "spark://host:7077", "yarn"])
@pytest.mark.parametrize("durable", [True, False])
def test_each_attempt_submits_a_driver_of_its_own(
    recorder: Path, monkeypatch: pytest.MonkeyPatch, master: str, *, durable: bool
) -> None:
    # In client mode, the driver belongs to the attempt's process. The provider's `durable`, which
    # reconnects to a driver in the cluster, must neither be used nor get in the way.
    connect(monkeypatch, master)
    said = submit(recorder, durable=durable, stores={"task_state_store": UnusedStore()})
    assert said.after("--master") == master
    assert said.arguments[-1] == "orders"


def test_a_master_of_kubernetes_needs_airflows_kubernetes_provider(
    recorder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    connect(monkeypatch, "k8s://https://host:6443")
    with pytest.raises(AirflowFailException, match="cncf-kubernetes"):
        submit(recorder)
    assert not recorder.exists()


def test_missing_jars_are_reported(
    recorder: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    connect(monkeypatch)
    monkeypatch.setenv("SLUICE_JARS", str(tmp_path / "nothing"))
    settings.cache_clear()
    with pytest.raises(AirflowFailException, match="There are no jars in"):
        submit(recorder, delta=True)


def test_nothing_is_submitted_while_the_broker_is_down(
    recorder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(operator, "require_brokers", require_brokers)
    address = f"127.0.0.1:{free_port()}"
    connect(monkeypatch, kafka={"bootstrap.servers": address})
    start = time.monotonic()
    with pytest.raises(
        AirflowException, match=f"Kafka at {address} does not answer: .*Connection refused"
    ):
        submit(recorder)
    assert time.monotonic() - start < 10
    assert not recorder.exists()
    assert failures() == [
        ("orders", "orders/manual__1/main", f"Kafka at {address} does not answer")
    ]


def test_a_driver_that_exits_silently_is_a_failed_run(
    recorder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    connect(monkeypatch)
    program = recorder.parent / "bin" / "spark2-submit"
    program.write_text("#!/bin/sh\nexit 137\n")
    with pytest.raises(AirflowException, match="137"):
        submit(recorder)
    assert failures() == [
        ("orders", "orders/manual__1/main", "The driver ended without an error message.")
    ]


def test_the_error_of_an_earlier_try_outlives_the_mark_as_failed(
    recorder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    connect(monkeypatch)
    program, started = recorder.parent / "bin" / "spark2-submit", recorder.parent / "started"
    program.write_text(f"#!/bin/sh\ntouch {started}\nexec sleep 60\n")
    operator_of = SluiceOperator(task_id="main", pipeline="orders")

    def mark_as_failed() -> None:
        while not started.exists():
            time.sleep(0.01)
        # Airflow's hook knows the process a moment after it has started.
        while not is_over.wait(0.1):
            operator_of.on_kill()

    ended = ("orders", "orders/manual__1/main", "Airflow ended the run.")
    earlier = Failure.of(
        EngineError("The warehouse refuses connections."), "orders", run="orders/manual__1/main"
    )
    for recorded, kept in (
        (None, ended),
        (earlier, (*ended[:2], "The warehouse refuses connections.")),
    ):
        with Ledger.open(settings().ledger) as ledger:
            ledger.failures.clear("orders", "run")
            if recorded is not None:
                ledger.failures.keep(recorded)
        started.unlink(missing_ok=True)
        is_over = Event()
        marking = Thread(target=mark_as_failed)
        marking.start()
        with pytest.raises(AirflowException):
            operator_of.execute(
                cast(
                    Any,
                    {"ti": SimpleNamespace(dag_id="orders", run_id="manual__1", task_id="main")},
                )
            )
        is_over.set()
        marking.join()
        assert failures() == [kept]


def failures() -> list[tuple[str, str, str]]:
    with Ledger.open(settings().ledger) as ledger:
        return [
            (failure.pipeline, failure.run, failure.detail.rsplit(": ", 2)[0])
            for failure in ledger.failures.all()
        ]


def test_the_log_omits_javas_warning_about_sparks_module(
    recorder: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
    caplog: pytest.LogCaptureFixture,
) -> None:
    connect(monkeypatch)
    program = recorder.parent / "bin" / "spark2-submit"
    warning = "WARNING: Using incubator modules: jdk.incubator.vector"
    program.write_text(f"#!/bin/sh\necho '{warning}'\necho job done\ntouch $SLUICE_FINISHED\n")
    operator_of = SluiceOperator(task_id="main", pipeline="orders")
    with caplog.at_level("INFO"):
        operator_of.execute(
            cast(Any, {"ti": SimpleNamespace(dag_id="orders", run_id="manual__1", task_id="main")})
        )
    logged = caplog.text + "".join(capfd.readouterr())
    assert "job done" in logged
    assert "incubator" not in logged


def test_a_run_reports_figures_to_airflows_metrics_and_to_its_assets(
    recorder: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    connect(monkeypatch)
    monkeypatch.setattr("sluice.kafka.unread_records.ANSWER_SECONDS", 0.1)
    with Ledger.open(settings().ledger) as ledger:
        states = States(f"sqlite:///{tmp_path}/state")
        ledger.generations.register(states.info())
        counts = {"read": 10, "applied": 7, "dead_letter/contract": 3}
        ledger.snapshots.publish(make_snapshot(0, counts=counts, run="orders/manual__1/main"))
    gauges: list[tuple[str, float, dict[str, str]]] = []
    monkeypatch.setattr(
        operator, "send_gauge", lambda name, value, tags: gauges.append((name, value, tags))
    )
    events: dict[Asset, SimpleNamespace] = defaultdict(lambda: SimpleNamespace(extra={}))
    submit(recorder, events=events, outlets=[Asset("orders.store.totals")])
    assert ("sluice.batch_records", 10, {"pipeline": "orders"}) in gauges
    assert ("sluice.batch_rejected", 3, {"pipeline": "orders", "reason": "contract"}) in gauges
    (event,) = events.values()
    assert event.extra == {
        "run": "orders/manual__1/main",
        "snapshots": ["1.0"],
        "records": 10,
        "applied": 7,
        "late": 0,
        "dead_letters": 3,
    }


def test_a_paused_pipeline_is_skipped_with_the_reason_and_is_no_failure(
    recorder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    connect(monkeypatch)
    with Ledger.open(settings().ledger) as ledger:
        ledger.pauses.pause("orders", "new prices", "ann")
    with pytest.raises(AirflowSkipException, match=r"paused by ann since .*: new prices"):
        submit(recorder)
    assert not recorder.exists(), "nothing was submitted"
    with Ledger.open(settings().ledger) as ledger:
        assert ledger.failures.of("orders") == []
    assert "--replay" in submit(recorder, given={"action": "replay"}).arguments
    with Ledger.open(settings().ledger) as ledger:
        ledger.pauses.resume("orders")
    submit(recorder)


def test_the_task_of_a_continuous_pipeline_waits_until_it_is_resumed(
    recorder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    connect(monkeypatch)
    with Ledger.open(settings().ledger) as ledger:
        ledger.pauses.pause("orders", "new prices", "ann")
    waited: list[float] = []

    def resume(seconds: float) -> None:
        waited.append(seconds)
        if len(waited) == 3:
            with Ledger.open(settings().ledger) as ledger:
                ledger.pauses.resume("orders")

    monkeypatch.setattr("sluice.orchestration.operator.time.sleep", resume)
    submit(recorder, continuous=True)
    assert len(waited) == 3
