"""`sluice check` and `sluice deploy` refuse a change that takes away what other pipelines read."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from sluice import Pipeline
from sluice.commands.cli import app
from sluice.driver import naming_owners
from sluice.engine.run.broken_readers import BreaksReadersError, stores_read
from sluice.engine.run.check_without_spark import description_now
from sluice.errors import TopologyError
from sluice.plan import plan
from sluice.settings import settings
from sluice.state.ledger.ledger import Ledger
from sluice.state.model import GenerationInfo
from sluice.topology import load_pipeline
from sluice.values.interfaces import Breach, Reader

pytestmark = pytest.mark.unit

CUSTOMERS = """
from msgspec import Struct
from sluice import Pipeline

class Customer(Struct):
    id: str
    name: str
    age: int

pipeline = Pipeline("customers")
customers = pipeline.stream("raw", value=Customer, key="id")
customers.to_table(store="by_id")
customers.select("id", "name", "age").to("clean")
"""
READS_STORE = """
from msgspec import Struct
from sluice import Pipeline

class Name(Struct):
    name: str

class Order(Struct):
    customer: str

pipeline = Pipeline("orders")
names = pipeline.store_of("customers", "by_id", value=Name)
pipeline.stream("placed", value=Order).lookup_in(names, key="customer").to("named")
"""
READS_TOPIC = """
from msgspec import Struct
from sluice import Pipeline

class Clean(Struct):
    id: str
    age: int

pipeline = Pipeline("reports")
pipeline.stream("clean", value=Clean).group_by("age").count(store="by_age")
"""


class Platform:
    """A platform with a pipeline of customers, and a team `shop` that reads from it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        (folder / "shop").mkdir(parents=True)
        (folder / "shop" / "sluice.toml").write_text('[defaults]\nowner = "shop"\n')
        (folder / "customers.py").write_text(CUSTOMERS)

    def read_by(self, name: str, text: str) -> None:
        (self.folder / "shop" / f"{name}.py").write_text(text)

    def change(self, old: str, new: str) -> None:
        file = self.folder / "customers.py"
        assert old in file.read_text()
        file.write_text(file.read_text().replace(old, new))

    def publish(self, name: str) -> None:
        """Register a pipeline as its run does."""
        job = plan(load_pipeline(self.folder, name)).job
        nothing = GenerationInfo(pipeline=name, generation=1, workers=(), stores=(), topics=())
        info, unknown = description_now(job, settings(), nothing)
        assert not unknown
        with Ledger.open(settings().ledger) as ledger:
            ledger.generations.register(info)

    def call(self, *words: str) -> tuple[int, str]:
        result = CliRunner().invoke(app, [*words])
        return result.exit_code, " ".join(result.output.split())


@pytest.fixture
def platform(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Platform]:
    monkeypatch.setenv("SLUICE_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("SLUICE_PIPELINES", str(tmp_path / "jobs"))
    settings.cache_clear()
    made = Platform(tmp_path / "jobs")
    made.publish("customers")
    yield made
    settings.cache_clear()


def without_age(platform: Platform) -> None:
    platform.change("    age: int\n", "")
    platform.change(', "age"', "")


@pytest.mark.parametrize(
    "words",
    [("check", "--no-spark"), ("check", "customers", "--no-spark"), ("deploy", "customers")],
)
def test_a_reader_of_a_topic_is_named_with_its_owner_file_and_field(
    platform: Platform, words: tuple[str, ...]
) -> None:
    platform.read_by("reports", READS_TOPIC)
    platform.publish("reports")
    without_age(platform)
    status, said = platform.call(*words)
    assert status == 1
    assert "Other pipelines read this: The change of customers breaks" in said
    file = platform.folder / "shop" / "reports.py"
    assert f"reports (owner shop, {file}) reads the topic clean: the field age is missing." in said
    assert "Change reports first, and run it" in said
    assert 'Pipeline("customers", may_break=["reports"])' in said


def test_a_reader_that_has_never_run_is_known_by_its_file(platform: Platform) -> None:
    platform.read_by("reports", READS_TOPIC)
    without_age(platform)
    for words in (("check", "--no-spark"), ("check", "customers", "--no-spark")):
        status, said = platform.call(*words)
        assert status == 1, said
        assert "reads the topic clean: the field age is missing" in said


def test_a_file_of_another_team_does_not_end_the_command(platform: Platform) -> None:
    platform.read_by("reports", READS_TOPIC)
    platform.read_by("ends", "import os\nPipeline('ends')\nos._exit(7)  # clean\n")
    without_age(platform)
    status, said = platform.call("check", "customers", "--no-spark")
    assert status == 1
    assert "reads the topic clean: the field age is missing" in said


def test_a_reader_whose_file_is_elsewhere_is_known_by_the_ledger(platform: Platform) -> None:
    platform.read_by("reports", READS_TOPIC)
    platform.publish("reports")
    (platform.folder / "shop" / "reports.py").unlink()
    without_age(platform)
    assert platform.call("check", "customers", "--no-spark")[0] == 1
    # The owners of the pipeline have said that nobody runs it any more.
    with Ledger.open(settings().ledger) as ledger:
        ledger.generations.retire("reports")
    assert platform.call("check", "customers", "--no-spark")[0] != 1


@pytest.mark.parametrize(
    ("old", "new", "problem"),
    [
        ("    name: str\n", "", "name is missing"),
        ("    name: str\n", "    name: int\n", "name is bigint, not string"),
        ('store="by_id"', 'store="by_number"', "it was removed"),
    ],
)
def test_a_reader_of_a_store_is_named(platform: Platform, old: str, new: str, problem: str) -> None:
    platform.read_by("orders", READS_STORE)
    platform.publish("orders")
    platform.change('customers.select("id", "name", "age").to("clean")', "")
    platform.change(old, new)
    status, said = platform.call("check", "customers", "--no-spark")
    assert status == 1
    assert f"reads the store by_id: {problem}." in said


def test_other_changes_pass(platform: Platform) -> None:
    platform.read_by("orders", READS_STORE)
    platform.read_by("reports", READS_TOPIC)
    for name in ("orders", "reports"):
        platform.publish(name)
    platform.change("    age: int\n", "    age: int\n    city: str | None = None\n")
    platform.change('"id", "name", "age"', '"id", "age", "city"')
    assert platform.call("check", "--no-spark")[0] == 0


def test_the_readers_may_be_changed_first(platform: Platform) -> None:
    platform.read_by("reports", READS_TOPIC)
    platform.publish("reports")
    without_age(platform)
    without = READS_TOPIC.replace("    age: int\n", "").replace('"age"', '"id"')
    platform.read_by("reports", without)
    # The file has changed, but the pipeline that runs is still the earlier one.
    assert platform.call("check", "--no-spark")[0] == 1
    platform.publish("reports")
    assert platform.call("check", "--no-spark")[0] == 0


def test_a_breach_may_be_allowed_for_readers_by_name(platform: Platform) -> None:
    platform.read_by("orders", READS_STORE)
    platform.read_by("reports", READS_TOPIC)
    for name in ("orders", "reports"):
        platform.publish(name)
    platform.change('select("id", "name", "age")', 'select("id")')
    platform.change("    name: str\n", "")
    platform.change('Pipeline("customers"', 'Pipeline("customers", may_break=["reports"]')
    status, said = platform.call("check", "--no-spark")
    assert status == 1
    assert "orders (owner shop" in said
    assert "reports (owner" not in said
    platform.change('["reports"]', '["reports", "orders"]')
    assert platform.call("check", "--no-spark")[0] != 1


def test_a_permission_that_is_no_longer_needed_is_named(platform: Platform) -> None:
    platform.change('Pipeline("customers"', 'Pipeline("customers", may_break=["reports"]')
    status, said = platform.call("check", "--no-spark")
    assert status == 0
    assert (
        "warning: customers: may_break lists reports, but the change breaks nothing there" in said
    )


def test_a_driver_adds_the_owners_to_the_error_of_a_run(platform: Platform) -> None:
    platform.read_by("reports", READS_TOPIC)
    file = platform.folder / "shop" / "reports.py"
    breach = Breach(Reader("reports", file=str(file)), "the topic clean", ("it is gone",))
    with pytest.raises(BreaksReadersError) as caught, naming_owners(settings()):
        raise BreaksReadersError("customers", [breach])
    assert f"reports (owner shop, {file}) reads the topic clean: it is gone." in str(caught.value)


def test_a_reader_that_knows_the_writer_by_a_former_name_is_a_reader() -> None:
    reads = {"clients": {"by_id": ["STRING"]}, "customers": {"by_id": ["INT"], "by_age": ["INT"]}}
    assert stores_read(["customers"], reads) == {"by_id": ["INT"], "by_age": ["INT"]}
    both = stores_read(["clients", "customers"], reads)
    assert {store: sorted(kinds) for store, kinds in both.items()} == {
        "by_id": ["INT", "STRING"],
        "by_age": ["INT"],
    }


@pytest.mark.parametrize("given", ["reports", 5, [1]])
def test_the_readers_that_may_break_are_a_list_of_names(given: Any) -> None:
    with pytest.raises(TopologyError, match="may_break=") as caught:
        Pipeline("customers", may_break=given)
    assert caught.value.next_step == 'Write a list of pipelines, such as ["reports"].'
