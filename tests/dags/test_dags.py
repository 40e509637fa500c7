"""Load and run every DAG in Airflow."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
import structlog
from airflow.dag_processing.processor import DagFileParseRequest, _parse_file
from airflow.exceptions import ParamValidationError
from airflow.sdk import DAG, Asset, Context
from airflow.sdk.definitions._internal.dag_parsing_context import _airflow_parsing_context_manager
from airflow.serialization.serialized_objects import DagSerialization
from airflow.timetables.base import TimeRestriction
from airflow.utils.types import DagRunType
from pyspark.sql import SparkSession

from sluice.engine.run.job_run import JobRun
from sluice.errors import SettingsError
from sluice.examples.orders import totals_of_topic
from sluice.orchestration.cached_facts import facts_of_folder
from sluice.orchestration.dags import pipeline_dags
from sluice.orchestration.operator import POINTS, SluiceOperator
from sluice.orchestration.trigger import KafkaEndOffsetTrigger
from sluice.plan import load_plan
from sluice.settings import settings
from sluice.state.ledger.ledger import Ledger
from sluice.topology.pipeline import RESERVED
from tests.dags.conftest import ROOT, Connections
from tests.support.dag_bags import DagBag

PIPELINES = ("greetings", "orders", "pos", "products", "windows", "words", "words_global")


@pytest.fixture(scope="module")
def bag() -> DagBag:
    return DagBag(ROOT / "dags")


def dag(bag: DagBag, name: str) -> DAG:
    loaded = bag.dags[name]
    assert isinstance(loaded, DAG)
    return loaded


def test_every_dag_loads(bag: DagBag) -> None:
    assert bag.import_errors == {}
    assert set(bag.dags) == {
        *PIPELINES,
        "complete_minutes",
        "produce_sample_orders",
        "sluice_retention",
    }


@pytest.mark.parametrize(
    ("name", "tasks"),
    [
        ("orders", ["main"]),
        ("words", ["main"]),
        ("produce_sample_orders", ["topics", "stores", "orders"]),
        ("sluice_retention", ["retain"]),
    ],
)
def test_a_dag_has_these_tasks_in_order(bag: DagBag, name: str, tasks: list[str]) -> None:
    loaded = dag(bag, name).topological_sort()  # type: ignore[no-untyped-call]
    assert [task.task_id for task in loaded] == tasks


@pytest.mark.parametrize("name", [*PIPELINES, "produce_sample_orders", "sluice_retention"])
def test_one_run_at_a_time_and_no_catchup(bag: DagBag, name: str) -> None:
    loaded = dag(bag, name)
    assert (loaded.max_active_runs, loaded.catchup) == (1, False)
    assert loaded.doc_md
    assert "sluice" in loaded.tags


def test_the_trigger_starts_the_pipeline_for_its_topics(bag: DagBag) -> None:
    schedule = dag(bag, "orders").schedule
    assert isinstance(schedule, list)
    (asset,) = schedule
    assert isinstance(asset, Asset)
    (watcher,) = asset.watchers
    assert isinstance(watcher.trigger, KafkaEndOffsetTrigger)
    assert watcher.trigger.topics == ["orders", "stores"]


def test_runs_are_retried_with_backoff_and_have_a_timeout(bag: DagBag) -> None:
    task = dag(bag, "orders").task_dict["main"]
    assert isinstance(task, SluiceOperator)
    assert task.retries == 2
    assert task.retry_exponential_backoff
    assert task.execution_timeout


def test_the_documentation_shows_the_topology(bag: DagBag) -> None:
    doc = dag(bag, "orders").doc_md
    assert doc is not None
    assert doc.startswith("Retail orders")
    assert "store general_orders_revenue_window" in doc


@pytest.mark.heavy  # `make lint` finds an import of pyspark in sluice.orchestration
def test_loading_dags_needs_no_spark() -> None:
    code = "import runpy, sys; runpy.run_path('dags/pipelines.py'); print('pyspark' in sys.modules)"
    process = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True
    )
    assert process.stdout.splitlines()[-1] == "False"


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("pipeline = 1", "broken.py defines no pipeline."),
        ("import nothing_like_this", "ModuleNotFoundError"),
        ("def", "SyntaxError"),
    ],
)
def test_a_broken_file_gets_a_dag_with_its_error(tmp_path: Path, text: str, why: str) -> None:
    (tmp_path / "broken.py").write_text(text)
    (tmp_path / "orders.py").write_text((ROOT / "spark_jobs" / "orders.py").read_text())
    dags = pipeline_dags(tmp_path)
    assert set(dags) == {"broken", "orders"}
    assert dags["broken"].doc_md is not None
    assert why in dags["broken"].doc_md
    assert "broken" in dags["broken"].tags


GOOD = """
from msgspec import Struct
from sluice import Pipeline
class Sale(Struct):
    shop: str
pipeline = Pipeline("{name}")
pipeline.stream("sales_{name}", value=Sale).group_by("shop").count(store="n")
"""
BROKEN = {
    "fraud": ("pipeline = Pipeline('fraud'", "fraud.py:1 cannot be imported: SyntaxError"),
    "exits": ("import sys\nsys.exit(1)", "exits.py:2 cannot be imported: SystemExit: 1."),
    "hangs": ("import time\ntime.sleep(600)", "hangs.py:2 is still being imported after 5 s."),
    "spaced": (GOOD.format(name="a b"), "'a b' at spaced.py:6 is not a valid pipeline name."),
    "own": (
        GOOD.format(name="sluice_retention"),
        "'sluice_retention' at own.py:6 is the name of one of Sluice's own",
    ),
    "no plan": (
        "from sluice import Pipeline\npipeline = Pipeline('idle')",
        "idle at no plan.py:2 reads nothing.",
    ),
    "one": (GOOD.format(name="same"), "one.py and two.py both define a pipeline 'same'."),
    "two": (GOOD.format(name="same"), "one.py and two.py both define a pipeline 'same'."),
}


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with one valid pipeline and files that are broken in every way."""
    made = tmp_path / "pipelines"
    made.mkdir()
    (made / "iot.py").write_text(GOOD.format(name="iot"))
    for name, (text, _) in BROKEN.items():
        (made / f"{name}.py").write_text(text)
    monkeypatch.setenv("SLUICE_PIPELINES", str(made))
    monkeypatch.setattr(facts_of_folder, "__defaults__", (5.0,))
    settings.cache_clear()
    return made


def test_broken_files_get_import_errors_and_remove_no_dag(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Parse dags/pipelines.py as Airflow's DAG processor does."""
    monkeypatch.setenv("_AIRFLOW_PROCESS_CONTEXT", "client")
    bundle = ROOT / "dags"
    request = DagFileParseRequest(
        file=str(bundle / "pipelines.py"), bundle_path=bundle, bundle_name="dags"
    )
    parsed = _parse_file(request, structlog.get_logger())
    assert parsed is not None
    assert {dag.dag_id for dag in parsed.serialized_dags} == {
        "iot", "fraud", "exits", "hangs", "spaced", "own", "idle", "same",
    }  # fmt: skip
    assert parsed.import_errors is not None
    assert parsed.import_errors.keys() == {f"{name}.py" for name in BROKEN} - {"two.py"}
    for name, (_, error) in BROKEN.items():
        assert error in parsed.import_errors.get(f"{name}.py", error)
    with Ledger.open(settings().ledger) as ledger:
        known = {failure.pipeline: failure for failure in ledger.failures.all()}
    assert known.keys() == {"fraud", "exits", "hangs", "spaced", "own", "idle", "same"}
    assert known["fraud"].kind == "file"
    assert known["fraud"].detail.startswith(BROKEN["fraud"][1])

    # Once the files are fixed, the errors are gone.
    for name in BROKEN:
        (folder / f"{name}.py").unlink()
    assert set(pipeline_dags(folder)) == {"iot"}
    with Ledger.open(settings().ledger) as ledger:
        assert ledger.failures.all() == []


def test_pipelines_that_write_one_topic_are_told_so(tmp_path: Path) -> None:
    for name in ("ours", "theirs", "other"):
        topic = "totals" if name != "other" else "others"
        (tmp_path / f"{name}.py").write_text(
            f'from sluice import Pipeline\npipeline = Pipeline("{name}")\n'
            f'pipeline.stream("t", value=str).to("{topic}", value=str)\n'
        )
    documented = {name: dag.doc_md or "" for name, dag in pipeline_dags(tmp_path).items()}
    warning = "**Warning:** ours and theirs both write the topic totals."
    for name in ("ours", "theirs"):
        assert documented[name].startswith(warning)
    assert "Warning" not in documented["other"]


def test_other_airflow_programs_see_no_import_error_dags(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("_AIRFLOW_PROCESS_CONTEXT", raising=False)
    for dag in pipeline_dags(folder).values():
        assert DagSerialization.to_dict(dag)


def test_a_task_only_imports_the_file_of_its_pipeline(folder: Path) -> None:
    (folder / "iot.py").write_text(GOOD.format(name="iot"))
    (folder / "loud.py").write_text(
        "import pathlib; pathlib.Path(__file__ + '.ran').touch()" + GOOD.format(name="loud")
    )
    with _airflow_parsing_context_manager(dag_id="iot", task_id="main"):
        assert set(pipeline_dags(folder)) == {"iot"}
    assert not (folder / "loud.py.ran").exists()


def test_no_pipeline_can_replace_another_dag(bag: DagBag) -> None:
    # The DAG of deadlines exists only if a pipeline has one.
    assert set(bag.dags) - set(PIPELINES) == RESERVED - {"sluice_deadlines"}


@pytest.mark.attack("S8", "parameters of a DAG: text, and numbers out of bounds")
@pytest.mark.parametrize("conf", [{"count": 0}, {"count": 10**9}, {"stores": "; rm"}, {"seed": -1}])
def test_parameters_are_checked(bag: DagBag, conf: dict[str, object]) -> None:
    params = dag(bag, "produce_sample_orders").params
    with pytest.raises((ParamValidationError, ValueError)):
        params.update(conf)


@pytest.mark.attack("S8", "every parameter of every DAG")
def test_every_parameter_is_a_number_with_bounds_one_of_a_few_words_or_a_point(bag: DagBag) -> None:
    takes: dict[str, Any] = {name: dag(bag, name).params for name in bag.dags}
    params = {
        (name, key): param.schema for name, found in takes.items() for key, param in found.items()
    }
    pipelines = {name for name in takes if "pipeline" in dag(bag, name).tags}
    assert {name for name, _ in params} == {"produce_sample_orders", "sluice_retention", *pipelines}
    for (name, key), schema in params.items():
        if name in pipelines and key == "action":
            assert schema["enum"]
            continue
        if name in pipelines and key in POINTS:
            assert {"maxLength", "pattern"} <= schema.keys()
            continue
        assert schema["type"] == (["null", "integer"] if name in pipelines else "integer")
        assert {"minimum", "maximum"} <= schema.keys()


@pytest.fixture
def sample_orders(bag: DagBag, connections: Connections, airflow_database: None) -> None:
    """The topics as the DAG fills them."""
    made = dag(bag, "produce_sample_orders").test(run_conf={"count": 300, "stores": 5, "seed": 3})
    assert made.state == "success"


@pytest.mark.usefixtures("sample_orders")
def test_sample_orders_from_the_ui_are_in_the_topic_and_retention_succeeds(
    bag: DagBag, connections: Connections
) -> None:
    assert totals_of_topic(connections.kafka).read == 300
    assert dag(bag, "sluice_retention").test().state == "success"


@pytest.mark.heavy  # tests/integration/test_end_to_end.py runs the DAG orders, with a Spark of its own
@pytest.mark.usefixtures("sample_orders")
def test_sample_orders_from_the_ui_are_read_by_the_pipeline(
    bag: DagBag, connections: Connections, spark: SparkSession
) -> None:
    job = load_plan(settings().pipelines, "orders").job
    JobRun(spark, job, replace(settings(), kafka=connections.kafka)).run()
    with Ledger.open(settings().ledger) as ledger:
        snapshot = ledger.snapshots.latest("orders")
        positions = ledger.positions("orders")
    assert snapshot is not None
    assert snapshot.counts["read"] == 305
    assert sum(positions["orders"].values()) == 300

    assert dag(bag, "sluice_retention").test().state == "success"


@pytest.mark.parametrize(
    ("written", "schedule"),
    [
        ("None", None),
        ('"continuous"', "@continuous"),
        ('"@hourly"', "@hourly"),
        ('"0 4 * * 1-5"', "0 4 * * 1-5"),
    ],
)
def test_a_pipeline_says_when_it_runs(tmp_path: Path, written: str, schedule: str | None) -> None:
    (tmp_path / "p.py").write_text(
        f'from sluice import Pipeline\npipeline = Pipeline("p", schedule={written})\n'
        'pipeline.stream("t", value=str).to("u", value=str)\n'
    )
    found: Any = pipeline_dags(tmp_path)["p"].schedule
    assert found == schedule


def test_a_run_updates_an_asset_for_each_store_and_topic(bag: DagBag) -> None:
    task = dag(bag, "words").task_dict["main"]
    names = {asset.name for asset in task.outlets}
    assert {"words.store.letters_count", "words.topic.words_clean"} < names


@pytest.mark.attack("S8", "points of a replay with characters that no point has")
def test_a_point_has_only_characters_of_points(bag: DagBag) -> None:
    params = dag(bag, "orders").params
    params.update({"from": "my.topic-1_x/0/12, t/1/0", "until": "2026-11-21T08:00:00+01:00"})
    for text in ("$(touch /tmp/evil)", "a\nb", "x" * 2_001, 7):
        with pytest.raises((ParamValidationError, ValueError)):
            params.update({"from": text})


def test_a_run_triggered_by_hand_reads_by_default(bag: DagBag) -> None:
    parameter = dag(bag, "orders").params.get_param("action")
    assert (parameter.value, parameter.schema["enum"]) == (
        "run",
        ["run", "replay", "promote", "drop", "roll_back", "change"],
    )


VISITS = """
from sluice import Pipeline
pipeline = Pipeline("{name}")
pipeline.stream("visits", value=str).group_by_key().count(store="{name}_visits")
"""


@pytest.fixture
def two_teams(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with the pipeline `audit`, and the pipeline `orders` of the team shop."""
    folder = tmp_path / "pipelines"
    (folder / "shop").mkdir(parents=True)
    (folder / "audit.py").write_text(VISITS.format(name="audit"))
    (folder / "shop" / "orders.py").write_text(VISITS.format(name="orders"))
    (folder / "shop" / "sluice.toml").touch()
    configuration = replace(settings(), home=tmp_path, pipelines=folder)
    monkeypatch.setattr("sluice.orchestration.dags.settings", lambda: configuration)
    return folder


def main_task(loaded: DAG) -> SluiceOperator:
    (task,) = loaded.tasks
    assert isinstance(task, SluiceOperator)
    return task


def test_a_teams_file_says_how_its_pipelines_run(two_teams: Path) -> None:
    (two_teams / "shop" / "sluice.toml").write_text(
        """
        [defaults]
        owner = "shop"
        tags = ["web"]
        pool = "shop"
        queue = "spark"
        priority = 7
        retries = 4
        timeout = "6 hours"
        spark_connection = "spark_large"
        on_failure = "tests.dags.test_dags.note_failure"
        """
    )
    dags = pipeline_dags(two_teams)
    assert {*dags} == {"audit", "orders"}
    task = main_task(dags["orders"])
    assert dags["orders"].tags == {"sluice", "pipeline", "web"}
    assert (task.owner, task.pool, task.queue, task.priority_weight) == ("shop", "shop", "spark", 7)
    assert (task.retries, task.execution_timeout) == (4, timedelta(hours=6))
    assert task._conn_id == "spark_large"
    (callback,) = task.on_failure_callback
    callback(Context(run_id="manual__1"))
    assert failures == [{"run_id": "manual__1"}]
    others = main_task(dags["audit"])
    assert (others.owner, others.pool, others.retries) == ("sluice", settings().pool, 2)
    DagSerialization.to_dict(dags["orders"])


failures: list[object] = []


def note_failure(context: object) -> None:
    failures.append(context)


def test_a_pipeline_that_exceeds_a_limit_is_broken_and_no_other(two_teams: Path) -> None:
    (two_teams / "sluice.toml").write_text('[limits]\nmemory = "2g"')
    (two_teams / "shop" / "sluice.toml").write_text('[defaults]\nmemory = "4g"')
    dags = pipeline_dags(two_teams)
    assert "broken" in dags["orders"].tags
    assert "the memory 4g, but at most 2g is allowed" in (dags["orders"].doc_md or "")
    assert "pipeline" in dags["audit"].tags


def test_a_broken_pipeline_has_the_owner_and_the_tags_of_its_team(two_teams: Path) -> None:
    (two_teams / "sluice.toml").write_text('[limits]\nmemory = "2g"')
    (two_teams / "shop" / "sluice.toml").write_text(
        '[defaults]\nowner = "shop"\ntags = ["web"]\n[pipelines.orders]\nmemory = "4g"'
    )
    (two_teams / "shop" / "wrong.py").write_text("raise ValueError")
    dags = pipeline_dags(two_teams)
    for name in ("orders", "wrong"):
        (task,) = dags[name].tasks
        assert task.owner == "shop"
        assert dags[name].tags == {"sluice", "broken", "web"}


def test_a_dag_file_of_a_team_has_only_the_teams_dags(two_teams: Path) -> None:
    (two_teams / "sluice.toml").write_text('[defaults]\nowner = "all"\n[limits]\nretries = 3')
    (two_teams / "audit.py").write_text("raise ValueError")
    (two_teams / "shop" / "sluice.toml").write_text('[defaults]\npool = "shop"')
    (two_teams / "shop" / "slow.py").write_text(
        VISITS.format(name="slow").replace('"slow")', '"slow", deadline="10 minutes")', 1)
    )
    dags = pipeline_dags(two_teams / "shop")
    assert {*dags} == {"orders", "slow", "sluice_deadlines_shop"}
    task = main_task(dags["orders"])
    assert (task.owner, task.pool) == ("all", "shop")
    with _airflow_parsing_context_manager(dag_id="orders", task_id="main"):
        assert set(pipeline_dags(two_teams / "shop")) == {"orders"}

    # A team cannot escape the platform's limits by a DAG file of its own.
    (two_teams / "shop" / "sluice.toml").write_text("[pipelines.orders]\nretries = 4")
    dags = pipeline_dags(two_teams / "shop")
    assert "broken" in dags["orders"].tags
    assert "pipeline" in dags["slow"].tags


def test_a_dag_file_of_a_team_does_not_report_other_teams_files_as_gone(
    two_teams: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    noted: list[tuple[set[str], set[str]]] = []

    def note(_settings: object, broken: dict[str, object], loaded: set[str]) -> None:
        noted.append(({*broken}, loaded))

    monkeypatch.setattr("sluice.orchestration.dags.note_files", note)
    (two_teams / "broken.py").write_text("raise ValueError")
    pipeline_dags(two_teams / "shop")
    assert noted == [({"broken"}, {"audit", "orders"})]


def test_links_do_not_let_a_dag_file_escape_the_limits(two_teams: Path, tmp_path: Path) -> None:
    (two_teams / "sluice.toml").write_text("[limits]\nretries = 3")
    (two_teams / "shop" / "sluice.toml").write_text("[defaults]\nretries = 4")
    linked = tmp_path / "linked"
    linked.symlink_to(two_teams)
    (two_teams / "shop").rename(tmp_path / "shop_of_git")
    (two_teams / "shop").symlink_to(tmp_path / "shop_of_git")
    for folder in (two_teams / "shop", linked / "shop"):
        dags = pipeline_dags(folder)
        assert {*dags} == {"orders"}
        assert "broken" in dags["orders"].tags


def test_a_dag_file_of_a_folder_without_a_file_is_an_error(two_teams: Path) -> None:
    (two_teams / "web").mkdir()
    with pytest.raises(SettingsError, match="web is not a team's folder"):
        pipeline_dags(two_teams / "web")


def test_a_cron_expression_follows_the_clocks_of_a_zone(tmp_path: Path) -> None:
    (tmp_path / "p.py").write_text(
        "from sluice import Pipeline\n"
        'pipeline = Pipeline("p", schedule="0 8 * * *", schedule_zone="Europe/Berlin")\n'
        'pipeline.stream("t", value=str).group_by_key().count(store="n")\n'
    )
    serialized = DagSerialization.from_dict(DagSerialization.to_dict(pipeline_dags(tmp_path)["p"]))
    after: Any = datetime(2026, 3, 27, 12, tzinfo=UTC)
    runs: list[str] = []
    for _ in range(3):
        restriction = TimeRestriction(earliest=after, latest=None, catchup=True)
        info = serialized.timetable.next_dagrun_info(
            last_automated_data_interval=None, restriction=restriction
        )
        assert info is not None
        runs.append(info.run_after.isoformat())
        after = info.run_after + timedelta(seconds=1)
    # Summer time begins on 29 March.
    assert [run[:16] for run in runs] == [
        "2026-03-28T07:00",
        "2026-03-29T06:00",
        "2026-03-30T06:00",
    ]


@pytest.mark.parametrize("schedule", ["on_records", "continuous", "0 8 * * *", None])
def test_no_run_is_for_a_past_date(tmp_path: Path, schedule: str | None) -> None:
    (tmp_path / "p.py").write_text(
        f"from sluice import Pipeline\npipeline = Pipeline('p', schedule={schedule!r})\n"
        'pipeline.stream("t", value=str).group_by_key().count(store="n")\n'
    )
    made = pipeline_dags(tmp_path)["p"]
    assert not made.catchup
    assert made.allowed_run_types is not None
    assert DagRunType.BACKFILL_JOB not in {*map(str, made.allowed_run_types)}
    serialized = DagSerialization.from_dict(DagSerialization.to_dict(made))
    assert DagRunType.BACKFILL_JOB not in {*map(str, serialized.allowed_run_types or ())}
    assert serialized.allowed_run_types


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("max_records", "7"), ("max_records", 0), ("max_records", 1.5), ("max_records", True),
        ("linger_seconds", 3_601), ("linger_seconds", "soon"), ("action", "dropp"), ("action", 1),
    ],
)  # fmt: skip
def test_the_form_refuses_a_mistyped_parameter(bag: DagBag, name: str, value: Any) -> None:
    params = dag(bag, "orders").params
    with pytest.raises((ParamValidationError, ValueError)):
        params.update({name: value})
    assert params.get_param(name).description


def test_a_pipeline_with_connections_of_its_own_is_watched_and_run_with_them(
    tmp_path: Path,
) -> None:
    (tmp_path / "sluice.toml").write_text(
        '[pipelines.orders]\nkafka_connection = "shop_kafka"\n'
        'executor_config = {"pod_template_file" = "/shop/pod.yaml"}\n'
    )
    (tmp_path / "orders.py").write_text(
        "from msgspec import Struct\nfrom sluice import Pipeline\n"
        "class Sale(Struct):\n    shop: str\n"
        'pipeline = Pipeline("orders")\n'
        'pipeline.stream("sales", value=Sale).group_by("shop").count(store="n")\n'
    )
    dag = pipeline_dags(tmp_path)["orders"]
    task = dag.get_task("main")
    assert isinstance(task, SluiceOperator)
    assert task.kafka_conn_id == "shop_kafka"
    assert task.executor_config == {"pod_template_file": "/shop/pod.yaml"}
    schedule = dag.schedule
    assert isinstance(schedule, list)
    (watcher,) = schedule[0].watchers
    assert isinstance(watcher.trigger, KafkaEndOffsetTrigger)
    assert watcher.trigger.serialize()[1]["kafka_config_id"] == "shop_kafka"
