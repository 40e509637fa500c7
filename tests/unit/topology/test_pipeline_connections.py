"""A pipeline may have a Kafka cluster, and a database for its shards, of its own."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from sluice.api import services
from sluice.api.services import Services
from sluice.errors import BrokersUnreachable, SettingsError
from sluice.kafka.unread_records import Lag
from sluice.settings import Settings
from sluice.topology.loading.pipeline_connections import (
    KafkaConnections,
    options_of,
    settings_of,
)
from sluice.topology.loading.run_options import RunOptions, run_options

pytestmark = pytest.mark.unit

FILE = 'from sluice import Pipeline\npipeline = Pipeline("{name}")\n'


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Pipelines of a team with a cluster of its own, of which one uses that of all."""
    (tmp_path / "shop").mkdir()
    (tmp_path / "audit.py").write_text(FILE.format(name="audit"))
    (tmp_path / "shop" / "sluice.toml").write_text(
        '[defaults]\nkafka_connection = "shop-kafka"\nshards_connection = "shop_state"\n'
        '[pipelines.stock]\nkafka_connection = "stock-kafka"\n'
    )
    for name in ("orders", "stock"):
        (tmp_path / "shop" / f"{name}.py").write_text(FILE.format(name=name))
    return tmp_path


def settings(folder: Path, **variables: str) -> Settings:
    given = {"SLUICE_PIPELINES": str(folder), "SLUICE_KAFKA": '{"bootstrap.servers": "all:1"}'}
    return Settings.read(given | variables)


OF_SHOP = {
    "SLUICE_KAFKA_SHOP_KAFKA": '{"bootstrap.servers": "shop:1", "sasl.password": "hunter2"}',
    "SLUICE_CONNECTION_SHOP_STATE": "postgresql://u:se-cret@db/state",
}


def test_commands_use_the_connections_of_their_pipeline(folder: Path) -> None:
    own = settings_of(settings(folder, **OF_SHOP), "orders")
    assert own.kafka["bootstrap.servers"] == "shop:1"
    assert own.shards == "postgresql://u:se-cret@db/state"
    other = settings_of(settings(folder, **OF_SHOP), "audit")
    assert other.kafka["bootstrap.servers"] == "all:1"
    assert other.shards.startswith("sqlite:")


def test_a_missing_connection_is_named_with_its_variable(folder: Path) -> None:
    with pytest.raises(SettingsError, match="no Kafka connection 'stock-kafka'") as raised:
        settings_of(settings(folder), "stock")
    assert "SLUICE_KAFKA_STOCK_KAFKA=" in raised.value.next_step
    with pytest.raises(SettingsError, match="no connection 'shop_state' for shards") as raised:
        settings_of(settings(folder, SLUICE_KAFKA_SHOP_KAFKA="{}"), "orders")
    assert "SLUICE_CONNECTION_SHOP_STATE" in raised.value.next_step


def test_passwords_of_all_clusters_are_secrets(folder: Path) -> None:
    assert "hunter2" in settings(folder, **OF_SHOP).secrets
    assert "hunter2" not in repr(settings(folder, **OF_SHOP))


def test_a_removed_pipeline_is_found_by_its_last_file(folder: Path) -> None:
    file = folder / "shop" / "orders.py"
    file.unlink()
    assert options_of(folder, "orders").kafka_connection is None
    assert options_of(folder, "orders", str(file)).kafka_connection == "shop-kafka"


def test_the_platform_limits_the_connections_of_teams(folder: Path) -> None:
    (folder / "sluice.toml").write_text('[limits]\nkafka_connections = ["shop-kafka"]\n')
    run_options(folder, folder / "shop" / "orders.py", "orders")
    with pytest.raises(SettingsError, match="only shop-kafka is allowed"):
        run_options(folder, folder / "shop" / "stock.py", "stock")


def test_what_an_executor_gets_is_added_up() -> None:
    platform = RunOptions(executor_config={"a": 1, "b": 2})
    assert RunOptions(executor_config={"b": 3}).over(platform).executor_config == {"a": 1, "b": 3}


def test_connections_are_listed_again_after_a_while(folder: Path) -> None:
    now = 0.0
    connections = KafkaConnections(lambda: folder, lambda: now)
    names = [connections.of(name) for name in ("audit", "orders", "stock")]
    assert names == ["", "shop-kafka", "stock-kafka"]
    (folder / "shop" / "sluice.toml").write_text("")
    assert connections.of("orders") == "shop-kafka"
    now = 11.0
    assert connections.of("orders") == ""


def test_the_lag_of_each_pipeline_comes_from_its_own_cluster(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    own = settings(folder, **OF_SHOP, SLUICE_KAFKA_STOCK_KAFKA='{"bootstrap.servers": "stock:1"}')

    class Admin:
        def __init__(self, kafka: Mapping[str, str]) -> None:
            self.address = kafka["bootstrap.servers"]

        def client(self) -> str:
            return self.address

    def read(admin: str, topics: Any, positions: Any) -> Lag:
        assert [*topics] == ["sales"]
        if admin == "stock:1":
            raise BrokersUnreachable("The broker of stock does not answer.")
        return Lag({"sales": {0: {"all:1": 10, "shop:1": 20}[admin]}}, positions, {})

    monkeypatch.setattr(services, "LastingAdmin", Admin)
    monkeypatch.setattr(services, "read_lag", read)
    serving = Services(kafka=own.kafka_of, connections=KafkaConnections(lambda: folder))
    positions = {name: {"sales": {0: 4}} for name in ("audit", "orders", "stock")}
    lags, errors = asyncio.run(serving.lags(positions))
    assert {name: lag.unread for name, lag in lags.items()} == {"audit": 6, "orders": 16}
    assert errors == {"stock-kafka": "The broker of stock does not answer."}
    assert serving.kafka_of("orders")["bootstrap.servers"] == "shop:1"
