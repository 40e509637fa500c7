"""A changed pipeline is compared with its published topology, without Spark."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from pyspark.sql import SparkSession
from typer.testing import CliRunner, Result

from sluice.commands.cli import app
from sluice.engine.run.compatibility import CompatibilityError
from sluice.local.broker import EmbeddedKafka
from sluice.settings import settings
from sluice.state.ledger.ledger_tables import PLANS
from sluice.topology import load_pipeline
from tests.engine.conftest import Running
from tests.engine.shop import Names
from tests.support.spark_in_process import SparkInProcess

PIPELINE = """
from msgspec import Struct
from sluice import Pipeline

class Item(Struct):
    n: int

def zero() -> int:
    return 0

def add(total: int, item: Item) -> int:
    return total + item.n

pipeline = Pipeline("PREFIX", workers=1)
items = pipeline.stream("PREFIX.items", value=Item)
items.group_by_key().count(store="counts")
items.group_by_key().aggregate(zero, add, store="sums")
items.select(n="n", twice="n * 2").to("PREFIX.out")
"""


class Project:
    """A folder with a pipeline's file, and the pipeline's topics and state."""

    def __init__(self, kafka: EmbeddedKafka, name: str, folder: Path) -> None:
        self.name, self.folder, self.kafka = name, folder, kafka
        kafka.create_topics({f"{name}.items": 1})
        self.write(PIPELINE)

    def write(self, text: str, name: str = "") -> None:
        name = name or self.name
        (self.folder / f"{name}.py").write_text(text.replace("PREFIX", name))

    def change(self, old: str, new: str) -> None:
        file = self.folder / f"{self.name}.py"
        text = file.read_text()
        assert old in text
        file.write_text(text.replace(old, new))

    def running(self) -> Running:
        pipeline = load_pipeline(self.folder, self.name)
        return Running(SparkInProcess.session(), Names(self.name), pipeline, settings(), self.kafka)

    def run(self) -> int:
        running = self.running()
        running.send("items", b'{"n": 1}')
        return running.run()

    def call(self, *arguments: str) -> Result:
        return CliRunner().invoke(app, [*arguments])

    def check(self, *arguments: str) -> Result:
        return self.call("check", "--no-spark", *arguments)

    def notes(self) -> list[str]:
        with self.running().ledger() as ledger:
            return [note.text for note in ledger.notes.all(self.name)]


@pytest.fixture
def project(
    kafka: EmbeddedKafka,
    fresh_name: Callable[[str], str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> Iterator[Project]:
    folder = tmp_path / "pipelines"
    folder.mkdir()
    monkeypatch.setenv("SLUICE_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("SLUICE_PIPELINES", str(folder))
    brokers = json.dumps({"bootstrap.servers": kafka.bootstrap, "log_level": "0"})
    monkeypatch.setenv("SLUICE_KAFKA", brokers)
    settings.cache_clear()
    yield Project(kafka, fresh_name("changed"), folder)
    settings.cache_clear()


def test_a_pipeline_that_has_never_run(project: Project) -> None:
    checked = project.check()
    assert (checked.exit_code, checked.stdout) == (
        0,
        f"{project.name}: 5 steps, nothing is published yet\n",
    )


def test_an_unchanged_pipeline(project: Project) -> None:
    project.run()
    checked = project.check(project.name)
    assert (checked.exit_code, checked.stdout) == (
        0,
        f"{project.name}: 5 steps, no change since snapshot 1.0\n",
    )


def test_a_change_names_the_pipelines_that_read_the_stores(project: Project) -> None:
    project.run()
    row = {"pipeline": "reader", "generation": 1, "number": 0, "begun": 0, "partitions": "{}", "ends": "{}"}  # fmt: skip
    with project.running().ledger() as ledger, ledger.engine.begin() as connection:
        snapshots = json.dumps({project.name: "1.0"})
        connection.execute(PLANS.insert(), row | {"snapshots": snapshots})
    assert "read its stores" not in project.check().stdout
    project.change("return total + item.n", "return total - item.n")
    assert "  Other pipelines read its stores: reader.\n" in project.check().stdout


STOPS = {
    "a store is removed": (
        'items.group_by_key().count(store="counts")',
        "",
        "store counts was removed",
    ),
    "a store is new": (
        "items.select(",
        'items.group_by("n").count(store="by_n")\nitems.select(',
        "store by_n is new",
    ),
    "a store changes": (
        'count(store="counts")',
        'aggregate(store="counts", m="max(n)")',
        "store counts: ",
    ),
    "more workers": ("workers=1", "workers=2", "1 worker became 2"),
    "another topic": ("PREFIX.items", "PREFIX.others", "no longer reads"),
}


@pytest.mark.parametrize("name", STOPS)
def test_a_change_that_stops_runs(project: Project, name: str) -> None:
    old, new, text = STOPS[name]
    project.run()
    project.change(old.replace("PREFIX", project.name), new.replace("PREFIX", project.name))
    checked = project.check()
    assert checked.exit_code == 3
    assert f"  stop: {text}" in checked.stdout
    assert ". A run stops before it reads a record." in checked.stdout
    assert "  next step: " in checked.stdout
    assert "sluice re" in checked.stdout.partition("next step: ")[2]
    project.kafka.create_topics({f"{project.name}.others": 1})
    with pytest.raises(CompatibilityError, match=text.replace(": ", ":")):
        project.run()


WARNINGS = {
    "a required field": (
        "    n: int\n",
        "    n: int\n    vat: float\n",
        "contract of PREFIX.items: the field vat is new and required. From the next run on, "
        "records without it become dead letters, unless the source has another `on_error`.",
    ),
    "an output is removed": (
        'items.select(n="n", twice="n * 2").to("PREFIX.out")',
        "",
        "output PREFIX.out was removed. It keeps its records and gets no more.",
    ),
    "an output lacks a field": (
        'twice="n * 2"',
        'thrice="n * 3"',
        "output PREFIX.out lacks twice. Programs that read",
    ),
    "the type of an output's field": (
        'twice="n * 2"',
        'twice="CAST(n AS STRING)"',
        "output PREFIX.out: twice was BIGINT and is STRING.",
    ),
}


@pytest.mark.parametrize("name", WARNINGS)
def test_a_change_with_other_results(project: Project, name: str) -> None:
    old, new, text = (part.replace("PREFIX", project.name) for part in WARNINGS[name])
    project.run()
    project.change(old, new)
    checked = project.check()
    assert checked.exit_code == 4
    assert f"  warning: {text}" in checked.stdout
    project.run()
    assert [note for note in project.notes() if note.startswith(text)], "the run has noted it"
    assert project.check().exit_code == 0


def test_a_function_changes(project: Project) -> None:
    project.run()
    project.change("total + item.n", "total + item.n * 2")
    checked = project.check()
    assert checked.exit_code == 4
    assert (
        "  warning: the code of add (store sums) has changed. The state that the old code computed "
        "is kept." in checked.stdout
    )


NOTES = {
    "an optional field": (
        "    n: int\n",
        "    n: int\n    vat: float = 0.0\n",
        "the field vat is new and optional.",
    ),
    "an output is new": (
        "items.select(",
        'items.to("PREFIX.more")\nitems.select(',
        "output PREFIX.more is new.",
    ),
    "an output has another field": ('n="n", ', 'n="n", m="n", ', "output PREFIX.out also has m."),
    "an expression changes": (
        'twice="n * 2"',
        'twice="n * 3"',
        "step 'select: n, twice = n * 2' became 'select: n, twice = n * 3'. Later results",
    ),
}


@pytest.mark.parametrize("name", NOTES)
def test_a_change_that_needs_nothing(project: Project, name: str) -> None:
    old, new, text = (part.replace("PREFIX", project.name) for part in NOTES[name])
    project.run()
    project.change(old, new)
    checked = project.check()
    assert checked.exit_code == 0
    assert "  note: " in checked.stdout
    assert text in checked.stdout
    project.run()
    assert project.notes() == []


def test_a_deployment_says_which_expression_has_changed(project: Project) -> None:
    project.run()
    described = project.call("deploy", project.name, "--dry-run").stdout
    assert "Nothing has changed: the steps, their expressions" in described
    project.change("n * 2", "n * 3")
    described = project.call("deploy", project.name, "--dry-run").stdout
    assert "note: step 'select: n, twice = n * 2' became 'select: n, twice = n * 3'" in described
    assert "Nothing has changed:" not in described


def test_the_worst_change_decides_the_status(project: Project) -> None:
    project.run()
    project.change("    n: int\n", "    n: int\n    vat: float\n")
    project.change("workers=1", "workers=2")
    checked = project.check()
    assert checked.exit_code == 3
    weights = [line.split(":")[0].strip() for line in checked.stdout.splitlines()[1:]]
    assert weights == ["stop", "warning", "next step"]


def test_an_error_of_a_file_decides_before_any_change(project: Project) -> None:
    project.run()
    project.change("workers=1", "workers=2")
    (project.folder / "broken.py").write_text("import nothing_like_this\n")
    checked = project.check()
    assert checked.exit_code == 1
    assert "1 worker became 2" in checked.stdout
    assert "broken.py:1 cannot be imported" in checked.stderr


def test_types_that_only_spark_knows_are_not_compared(project: Project) -> None:
    odd = 'store="odd", c="collect_list(soundex(CAST(n AS STRING)))"'
    by_spark = f'items.group_by("n").aggregate({odd})\n'
    project.run()
    project.change("items.select(", f"{by_spark}items.select(")
    checked = project.check()
    assert checked.exit_code == 3
    assert "stop: store odd is new" in checked.stdout
    assert "store counts" not in checked.stdout
    assert "store sums" not in checked.stdout
    assert "Types were not compared, because only Spark knows them: " in checked.stdout
    assert f"Run sluice check {project.name}." in checked.stdout


@pytest.mark.spark
def test_a_pipeline_that_spark_has_computed_is_unchanged(
    project: Project,
    run_session: SparkSession,
) -> None:
    odd = 'store="odd", c="max(soundex(CAST(n AS STRING)))"'
    last = 'store="last_odd", c="last(soundex(CAST(n AS STRING)))"'
    by_n = 'items.group_by("n")'
    steps = f"{by_n}.aggregate({odd})\n{by_n}.aggregate({last})\n"
    project.change("items.select(", f"{steps}items.select(")
    running = project.running()
    running.spark = run_session
    running.send("items", b'{"n": 1}')
    running.run()
    checked = project.check()
    assert checked.exit_code == 0
    assert "no change since snapshot 1.0" in checked.stdout
    assert "Types were not compared" in checked.stdout
    project.change(f"{by_n}.aggregate({last})", f'items.group_by("n + 1").aggregate({last})')
    checked = project.check()
    assert checked.exit_code == 3
    assert "stop: store last_odd: " in checked.stdout
    assert "stop: store odd" not in checked.stdout


def test_two_pipelines_that_write_one_topic(project: Project) -> None:
    project.run()
    other = f"{project.name}_copy"
    copy = PIPELINE.replace('.to("PREFIX.out")', f'.to("{project.name}.out")')
    project.write(copy, other)
    checked = project.check()
    names = f"{project.name} and {other}"
    assert f"warning: {names} both write the topic {project.name}.out. Each" in checked.stdout
    project.kafka.create_topics({f"{other}.items": 1})
    second = Project.__new__(Project)
    second.name, second.folder, second.kafka = other, project.folder, project.kafka
    second.run()
    assert any(note.startswith(f"{names} both write the topic") for note in second.notes())


def test_the_comparison_takes_less_than_two_seconds(project: Project) -> None:
    project.run()
    begun = time.process_time()
    project.check()
    assert time.process_time() - begun < 2
