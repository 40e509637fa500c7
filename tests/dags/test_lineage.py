"""What the operator tells Airflow's OpenLineage provider about runs of each kind, through the provider's extractor."""

from __future__ import annotations

import json
from pathlib import Path
from textwrap import dedent
from types import SimpleNamespace
from typing import Any, cast

import pytest
from airflow.providers.openlineage.extractors.base import DefaultExtractor

from sluice.orchestration.lineage import Lineage, store_namespace
from sluice.orchestration.operator import SluiceOperator
from sluice.settings import settings
from sluice.state.ledger.audits import Audit, SourceAudit
from sluice.state.ledger.leases import Holder
from sluice.state.ledger.ledger import Ledger
from sluice.state.model import GenerationInfo, GenerationRef, Snapshot
from tests.support.states import NOON

RUN = "pages/manual__1/main"
KAFKA = "kafka://first:9093"
PIPELINE = """
from sluice import Pipeline
pipeline = Pipeline("pages")
views = pipeline.stream("views", value=str)
views.to("copies")
views.group_by_key().count(store="counts")
"""


@pytest.fixture(autouse=True)
def _pages(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "pages.py").write_text(PIPELINE)
    kafka = {"bootstrap.servers": "SASL_SSL://first:9093,second:9093", "sasl.password": "hunter2"}
    monkeypatch.setenv(
        "AIRFLOW_CONN_KAFKA_DEFAULT", json.dumps({"conn_type": "kafka", "extra": kafka})
    )
    monkeypatch.setenv("SLUICE_PIPELINES", str(tmp_path))
    settings.cache_clear()


def told(action: str, *, failed: bool = False) -> Lineage:
    """The lineage of an ended run."""
    task = SimpleNamespace(dag_id="pages", run_id="manual__1", task_id="main")
    task.get_template_context = lambda: {"ti": task, "params": {"action": action}}
    operator = SluiceOperator(task_id="main", pipeline="pages", databases=["warehouse"])
    extractor = DefaultExtractor(operator)
    extract = extractor.extract_on_failure if failed else extractor.extract_on_complete
    return cast(Lineage, extract(task))


def publish(generation: int, *batches: int, run: str = RUN) -> None:
    """Publish batches of ten records, of which two are dead letters and one is dropped."""
    of: dict[str, Any] = {"pipeline": "pages", "generation": generation}
    ref = GenerationRef(**of)
    with Ledger.open(settings().ledger) as ledger:
        ledger.generations.register(GenerationInfo(**of, workers=(), stores=(), topics=("views",)))
        lease = ledger.leases.take(ref, Holder(host="h", pid=1, process=""), ledger.leases.get(ref))
        assert lease is not None
        for batch in batches:
            begin, end = 10 * batch, 10 * batch + 10
            source = SourceAudit(
                topic="views", partition=0, start=begin, end=end, read=10, applied=7,
                dropped={"null_key": 1}, dead_letters={"utf8": 2},
            )  # fmt: skip
            audit = Audit(
                **of,
                batch=batch,
                run=run,
                epoch=lease.epoch,
                sources=(source,),
                outputs={"copies": 7},
                checksums={},
            )
            snapshot = Snapshot(
                **of,
                batch=batch,
                published_at=NOON,
                positions={"views": {"0": end}},
                stream_times={},
                counts={},
            )
            assert ledger.snapshots.publish(snapshot, audit)


def names(datasets: list[Any]) -> list[tuple[str, str]]:
    return [(dataset.namespace, dataset.name) for dataset in datasets]


@pytest.mark.parametrize("failed", [False, True])
def test_a_run_has_the_sums_of_its_own_audits(*, failed: bool) -> None:
    publish(1, 0, run="pages/earlier/main")
    publish(1, 1, 2)
    lineage = told("run", failed=failed)
    state = store_namespace(settings().ledger)
    assert names(lineage.inputs) == [(KAFKA, "views")]
    assert names(lineage.outputs) == [
        (KAFKA, "copies"),
        (KAFKA, "pages_dead_letters"),
        (state, "pages.counts"),
    ]
    facet: Any = lineage.run_facets["sluice_audit"]
    assert (facet.generation, facet.firstSnapshot, facet.lastSnapshot) == (1, "1.1", "1.2")
    assert (facet.recordsRead, facet.recordsApplied, facet.recordsDropped) == (
        20,
        14,
        {"null_key": 2},
    )
    assert (facet.deadLetters, facet.recordsWritten, facet.balanced) == (
        {"utf8": 4},
        {"copies": 14},
        True,
    )


def test_a_replay_has_its_generation_and_changes_no_dataset() -> None:
    publish(1, 0)
    publish(2, 0, 1)
    lineage = told("replay")
    assert names(lineage.inputs) == [(KAFKA, "views")]
    assert lineage.outputs == []
    facet: Any = lineage.run_facets["sluice_audit"]
    assert (facet.generation, facet.recordsRead) == (2, 20)


def test_a_drop_has_no_datasets() -> None:
    lineage = told("drop")
    assert (lineage.inputs, lineage.outputs, lineage.run_facets) == ([], [], {})


def test_a_run_that_failed_before_its_first_snapshot_has_datasets_without_figures() -> None:
    lineage = told("run", failed=True)
    assert names(lineage.inputs) == [(KAFKA, "views")]
    assert lineage.run_facets == {}


def test_the_namespace_of_stores_is_the_ledger_without_its_log_in() -> None:
    assert (
        store_namespace("sqlite:////var/sluice/ledger.sqlite")
        == "sluice:///var/sluice/ledger.sqlite"
    )
    assert (
        store_namespace("postgresql+psycopg://me:hunter2@db:5432/state") == "sluice://db:5432/state"
    )
    assert store_namespace("postgresql://me:hun/ter@db/state?sslpassword=x") == "sluice://db/state"


def test_tables_outside_kafka_are_outputs_without_the_log_in(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tables = """
    counted = views.group_by_key().count(store="seen")
    counted.to(PostgresTable("shop.seen", connection="warehouse", key="page"))
    views.select(page="value").to(PostgresTable("pages", connection="warehouse"))
    views.select(page="value").to(DeltaTable("s3a://lake/shop/pages"))
    counted.to(DeltaTable("/lake/seen", key="page"))
    """
    text = PIPELINE.replace(
        "import Pipeline", "import DeltaTable, Pipeline, PostgresTable"
    ) + dedent(tables)
    (tmp_path / "pages.py").write_text(text)
    state = store_namespace(settings().ledger)
    topics = [(KAFKA, "copies"), (KAFKA, "pages_dead_letters")]
    lake = [("s3://lake", "shop/pages"), ("file", "/lake/seen")]
    stores = [(state, "pages.counts"), (state, "pages.seen"), *lake]
    assert sorted(names(told("run").outputs)) == sorted(
        topics + stores
    )  # nobody knows where the database is
    monkeypatch.setenv(
        "SLUICE_CONNECTION_WAREHOUSE", "postgresql://me:hunter2@db.example/sales?sslmode=require"
    )
    warehouse = "postgres://db.example:5432"
    expected = [(warehouse, "sales.shop.seen"), (warehouse, "sales.public.pages")]
    assert sorted(names(told("run").outputs)) == sorted(topics + stores + expected)


def test_datasets_have_their_fields_and_the_fields_that_they_are_computed_from(
    tmp_path: Path,
) -> None:
    (tmp_path / "pages.py").write_text(
        dedent("""
        from msgspec import Struct
        from sluice import Pipeline
        class View(Struct):
            page: str
            ms: int
        pipeline = Pipeline("pages")
        views = pipeline.stream("views", value=View)
        views.select("page", seconds="ms / 1000").to("times")
        """)
    )
    lineage = told("run")
    (views,), times = lineage.inputs, lineage.outputs[0]
    fields = [(field.name, field.type) for field in cast(Any, views.facets)["schema"].fields]
    assert fields == [("page", "STRING"), ("ms", "BIGINT")]
    facets: Any = times.facets
    assert [field.name for field in facets["schema"].fields] == ["page", "seconds"]
    (read,) = facets["columnLineage"].fields["seconds"].inputFields
    assert (read.namespace, read.name, read.field) == (KAFKA, "views", "ms")
