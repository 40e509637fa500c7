"""Settings are read once from the environment; errors name the variable."""

from __future__ import annotations

import dataclasses
import re
from pathlib import Path

import pytest

from sluice import settings as module
from sluice.errors import SettingsError
from sluice.settings import Settings, masked, settings
from sluice.state.ledger.ledger import Ledger
from sluice.state.model import GenerationRef
from sluice.state.remote.opening import create_shard
from sluice.state.shard.addresses import location, shown


def test_defaults_are_below_one_folder() -> None:
    values = Settings.read({})
    home = Path.cwd() / ".sluice"
    assert values == Settings(
        home=home,
        pipelines=Path.cwd() / "spark_jobs",
        ledger=f"sqlite:///{home}/ledger.sqlite",
        shards=f"sqlite:///{home}/shards",
        jars=home / "jars",
        kafka={"bootstrap.servers": "127.0.0.1:9092"},
        spark_conf={},
        max_records=None,
        linger_ms=None,
        run="",
    )


def test_home_moves_every_path_that_is_not_set() -> None:
    values = Settings.read(
        {"SLUICE_HOME": "/srv/state", "SLUICE_LEDGER": "postgresql+psycopg://db/sluice"}
    )
    assert values.ledger == "postgresql+psycopg://db/sluice"
    assert values.shards == "sqlite:////srv/state/shards"
    assert values.jars == Path("/srv/state/jars")


@pytest.mark.parametrize("name", ["a?b", "p%41x", "h#x", "späce ü", "a:b", "q'u\"o"])
def test_all_files_are_in_the_home_whatever_its_name(tmp_path: Path, name: str) -> None:
    values = Settings.read({"SLUICE_HOME": str(tmp_path / name)})
    Ledger.open(values.ledger).close()
    with create_shard(location(values.shards, GenerationRef("orders", 1), 0)):
        pass
    assert [path.name for path in tmp_path.iterdir()] == [name]
    assert (tmp_path / name / "ledger.sqlite").is_file()
    assert (tmp_path / name / "shards" / "orders" / "g1" / "worker-0.sqlite").is_file()


def test_the_address_of_a_shard_is_shown_without_secrets() -> None:
    address = location("postgresql://ada:xi@db/state?sslpassword=xi", GenerationRef("orders", 1), 0)
    assert (
        shown(address)
        == "postgresql+psycopg://ada:***@db/state?schema=sluice_orders_g1_w0&sslpassword=***"
    )


def test_empty_variables_have_their_defaults() -> None:
    names = re.findall(r"^\| (SLUICE_\w+) ", module.__doc__ or "", re.MULTILINE)
    assert Settings.read(dict.fromkeys(names, "")) == Settings.read({})


def test_the_table_lists_every_setting() -> None:
    names = re.findall(r"^\| SLUICE_(\w+) ", module.__doc__ or "", re.MULTILINE)
    assert [names.pop(), names.pop()] == ["CONNECTION_NAME", "KAFKA_NAME"]
    assert [*map(str.lower, names), "connections", "kafka_connections"] == [
        field.name for field in dataclasses.fields(Settings)
    ]


def test_relative_paths_start_at_the_working_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    values = Settings.read({"SLUICE_HOME": "state", "SLUICE_PIPELINES": "mine"})
    assert (values.home, values.pipelines) == (tmp_path / "state", tmp_path / "mine")


def test_kafka_and_spark_settings_are_json() -> None:
    values = Settings.read({
        "SLUICE_KAFKA": '{"bootstrap.servers": "a:1,b:2", "security.protocol": "SSL"}',
        "SLUICE_SPARK_CONF": '{"spark.executor.memory": "2g"}',
    })  # fmt: skip
    assert values.kafka == {"bootstrap.servers": "a:1,b:2", "security.protocol": "SSL"}
    assert values.spark_conf == {"spark.executor.memory": "2g"}


@pytest.mark.parametrize("name", ["SLUICE_KAFKA", "SLUICE_SPARK_CONF"])
@pytest.mark.parametrize(
    "text", ["127.0.0.1:9092", "[]", '{"a": {}}', '{"sasl.password": "hush', "{'a': 'hush'}"]
)
def test_invalid_json_is_rejected_without_repeating_it(name: str, text: str) -> None:
    with pytest.raises(SettingsError, match=f"{name} must be a JSON object of strings") as error:
        Settings.read({name: text})
    assert "hush" not in str(error.value)
    assert error.value.__cause__ is None


@pytest.mark.parametrize("token", ["hush", "hush hush hush hush ä", "hush hush hush hush\x01"])
def test_an_invalid_token_is_rejected_without_repeating_it(token: str, tmp_path: Path) -> None:
    file = tmp_path / "token"
    file.write_text(token)
    for name, value in (("SLUICE_SERVER_TOKEN", token), ("SLUICE_SERVER_TOKEN_FILE", str(file))):
        with pytest.raises(
            SettingsError, match=f"The token in {name} must have at least 16 characters"
        ) as error:
            Settings.read({name: value})
        assert "hush" not in str(error.value)
        assert "openssl rand" in error.value.next_step


def test_a_token_file_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    with pytest.raises(
        SettingsError,
        match=f"The file {tmp_path / 'none'} in SLUICE_SERVER_TOKEN_FILE cannot be read",
    ):
        Settings.read({"SLUICE_SERVER_TOKEN_FILE": str(tmp_path / "none")})


@pytest.mark.parametrize("text", ["0", "-1", "many", "1.5", "²", "9" * 13, "9" * 5_000])
def test_max_records_is_a_positive_whole_number(text: str) -> None:
    with pytest.raises(SettingsError, match="SLUICE_MAX_RECORDS"):
        Settings.read({"SLUICE_MAX_RECORDS": text})


@pytest.mark.parametrize(
    ("text", "megabytes"), [("1200m", 1_200), ("2500M", 2_500), ("4g", 4_000), ("", 1_500)]
)
def test_memory_has_a_unit(text: str, megabytes: int) -> None:
    assert Settings.read({"SLUICE_MEMORY": text}).memory == megabytes


@pytest.mark.parametrize("text", ["1199m", "1g", "0g", "2048", "1.5g", "-2g", "g", "2gb", "²g"])
def test_memory_that_is_too_little_or_unclear_is_rejected(text: str) -> None:
    with pytest.raises(
        SettingsError, match=f"SLUICE_MEMORY is '{text}'. Set it to at least 1200m, such as"
    ):
        Settings.read({"SLUICE_MEMORY": text})


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("SLUICE_LEDGER", "postgresql://ada:hush%20hush@db/state"),
        ("SLUICE_SHARDS", "postgresql://ada@db/state?password=hush%20hush&schema=s"),
        ("SLUICE_CONNECTION_WAREHOUSE", "postgresql://ada@db/sales?sslpassword=hush+hush"),
        ("SLUICE_KAFKA", '{"sasl.oauthbearer.client.secret": "hush hush"}'),
        ("SLUICE_KAFKA", '{"ssl.key.password": "hush hush"}'),
        ("SLUICE_SPARK_CONF", '{"spark.hadoop.fs.s3a.secret.key": "hush hush"}'),
        ("SLUICE_URL", "http://ada:hush%20hush@airflow:8080"),
        ("SLUICE_TOKEN", "hush hush"),
        ("SLUICE_PASSWORD", "hush hush"),
    ],
)
def test_secrets_are_masked_and_not_represented(
    name: str, value: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    values = Settings.read({name: value})
    assert "hush hush" in values.secrets
    assert "hush" not in repr(values)
    monkeypatch.setenv(name, value)
    settings.cache_clear()
    assert masked("no log-in with hush hush") == "no log-in with ***"
    settings.cache_clear()


def test_a_setting_for_output_at_least_once_is_refused() -> None:
    with pytest.raises(
        SettingsError, match="'at_least_once', but every output is written exactly once"
    ) as refused:
        Settings.read({"SLUICE_DELIVERY": "at_least_once"})
    assert refused.value.next_step == "Remove SLUICE_DELIVERY from the environment."
    Settings.read({"SLUICE_DELIVERY": "exactly_once"})


def test_the_environment_is_read_once(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    settings.cache_clear()
    monkeypatch.setenv("SLUICE_HOME", str(tmp_path))
    assert settings().home == tmp_path
    monkeypatch.setenv("SLUICE_HOME", "/elsewhere")
    assert settings().home == tmp_path
    settings.cache_clear()


def test_a_run_uses_a_warm_driver_only_if_the_setting_says_so() -> None:
    assert Settings.read({}).warm == "off"
    assert Settings.read({"SLUICE_WARM": "start"}).warm == "start"
    with pytest.raises(SettingsError) as error:
        Settings.read({"SLUICE_WARM": "yes"})
    assert "SLUICE_WARM is 'yes'" in str(error.value)
    assert "off, use or start" in str(error.value)
