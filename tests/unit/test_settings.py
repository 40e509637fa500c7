"""What the environment says, read once; what is wrong with it is said by the variable's name."""

from __future__ import annotations

import dataclasses
import re
from pathlib import Path

import pytest

from sluice import settings as module
from sluice.errors import SettingsError
from sluice.settings import Settings, settings


def test_everything_has_a_default_below_one_folder() -> None:
    found = Settings.read({})
    home = Path.cwd() / ".sluice"
    assert found == Settings(
        home=home,
        pipelines=Path.cwd() / "spark_jobs",
        ledger=f"sqlite:///{home}/ledger.sqlite",
        shards=f"sqlite:///{home}/shards",
        checkpoints=f"{home}/checkpoints",
        jars=home / "jars" / "spark",
        kafka={"bootstrap.servers": "127.0.0.1:9092"},
        spark_conf={},
        max_records=2_000_000,
        delivery="exactly_once",
        run="",
    )


def test_the_home_moves_all_that_is_not_set_by_itself() -> None:
    found = Settings.read({"SLUICE_HOME": "/srv/state", "SLUICE_LEDGER": "postgresql+psycopg://db/sluice"})
    assert found.ledger == "postgresql+psycopg://db/sluice"
    assert found.shards == "sqlite:////srv/state/shards"
    assert found.checkpoints == "/srv/state/checkpoints"
    assert found.jars == Path("/srv/state/jars/spark")


def test_what_is_set_to_nothing_has_its_default() -> None:
    names = re.findall(r"^\| (SLUICE_\w+) ", module.__doc__ or "", re.MULTILINE)
    assert Settings.read(dict.fromkeys(names, "")) == Settings.read({})


def test_the_table_of_variables_names_every_setting() -> None:
    names = re.findall(r"^\| SLUICE_(\w+) ", module.__doc__ or "", re.MULTILINE)
    assert [name.lower() for name in names] == [field.name for field in dataclasses.fields(Settings)]


def test_relative_paths_are_of_the_folder_it_starts_in(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    found = Settings.read({"SLUICE_HOME": "state", "SLUICE_PIPELINES": "mine"})
    assert (found.home, found.pipelines) == (tmp_path / "state", tmp_path / "mine")


def test_settings_of_kafka_and_spark_are_json() -> None:
    found = Settings.read({
        "SLUICE_KAFKA": '{"bootstrap.servers": "a:1,b:2", "security.protocol": "SSL"}',
        "SLUICE_SPARK_CONF": '{"spark.executor.memory": "2g"}',
    })  # fmt: skip
    assert found.kafka == {"bootstrap.servers": "a:1,b:2", "security.protocol": "SSL"}
    assert found.spark_conf == {"spark.executor.memory": "2g"}


@pytest.mark.parametrize("name", ["SLUICE_KAFKA", "SLUICE_SPARK_CONF"])
@pytest.mark.parametrize("text", ["127.0.0.1:9092", "[]", '{"a": {}}', '{"sasl.password": "hush', "{'a': 'hush'}"])
def test_what_is_no_json_object_of_texts_is_refused_without_repeating_it(name: str, text: str) -> None:
    with pytest.raises(SettingsError, match=f"{name} is not a JSON object of strings") as refused:
        Settings.read({name: text})
    assert "hush" not in str(refused.value)
    assert refused.value.__cause__ is None


@pytest.mark.parametrize("text", ["0", "-1", "many", "1.5", "²"])
def test_a_batch_has_a_whole_number_of_records(text: str) -> None:
    with pytest.raises(SettingsError, match="SLUICE_MAX_RECORDS"):
        Settings.read({"SLUICE_MAX_RECORDS": text})


def test_a_delivery_is_one_of_two() -> None:
    assert Settings.read({"SLUICE_DELIVERY": "at_least_once"}).delivery == "at_least_once"
    with pytest.raises(SettingsError, match="Write exactly_once or at_least_once"):
        Settings.read({"SLUICE_DELIVERY": "at most once"})


def test_the_environment_is_read_once(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    settings.cache_clear()
    monkeypatch.setenv("SLUICE_HOME", str(tmp_path))
    assert settings().home == tmp_path
    monkeypatch.setenv("SLUICE_HOME", "/elsewhere")
    assert settings().home == tmp_path
    settings.cache_clear()
