"""An unreachable broker is reported quickly, with its address and without noisy logs."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from concurrent.futures import Future

import pytest
from confluent_kafka import KafkaError, KafkaException, Message
from typer.testing import CliRunner

from sluice.commands.cli import app
from sluice.engine.batch.job_topics import TopicLimits, kafka_errors
from sluice.engine.publish.kafka_transaction import TransactionalOutput
from sluice.engine.publish.markers import Writer
from sluice.engine.run.clocks import Clocks
from sluice.engine.run.linger import Linger
from sluice.errors import BrokersUnreachable, EngineError, SettingsError
from sluice.kafka import topics
from sluice.kafka.brokers import producer_of, require_brokers
from sluice.kafka.replaced_files import ReplacedFiles
from sluice.kafka.topics import read_topic
from sluice.settings import settings
from sluice.state.ledger.ledger import Ledger
from sluice.state.model import GenerationRef
from tests.support.ports import free_port


def test_settings_that_do_not_fit_together_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(topics, "_TIMEOUT_S", 0.5)
    kafka = {
        "bootstrap.servers": "127.0.0.1:1",
        "message.timeout.ms": "1",
        "enable.idempotence": "false",
    }
    with pytest.raises(
        SettingsError, match=r"`message\.timeout\.ms` must be greater than `linger\.ms`"
    ):
        TransactionalOutput(
            kafka, Writer(GenerationRef("p", 1), "p_markers"), {"out": TopicLimits()}
        )
    with pytest.raises(BrokersUnreachable, match=r"Kafka at 127\.0\.0\.1:1 does not answer"):
        next(read_topic(kafka, "out"))


@pytest.mark.parametrize("name", ["ssl.ca.location", "ssl.certificate.location"])
def test_a_missing_file_is_named(name: str) -> None:
    """The client's own message has only the name of the setting, or not even this."""
    kafka = {"bootstrap.servers": "127.0.0.1:1", "security.protocol": "SSL", name: "/missing.pem"}
    with pytest.raises(SettingsError, match=rf"The file /missing\.pem in {name} does not exist"):
        require_brokers(kafka)


@pytest.mark.parametrize("name", ["ssl.keystore.location", "ssl.crl.location"])
def test_a_missing_file_that_executors_need_is_reported_with_what_to_do(name: str) -> None:
    kafka = {
        "bootstrap.servers": "127.0.0.1:1",
        "security.protocol": "SSL",
        name: "/missing",
        "ssl.keystore.password": "",
    }
    with pytest.raises(SettingsError, match=rf"Kafka's settings are invalid: .*{name}") as error:
        require_brokers(kafka)
    assert "copy it to the same path on each of their hosts" in error.value.next_step


MURMUR2 = {
    b"21": -973932308, b"foobar": -790332482, b"a-little-bit-long-string": -985981536,
    b"a-little-bit-longer-string": -1486304829, b"lkjh234lh9fiuh90y23oiuhsafujhadof229phr9h19h89h8": -58897971,
    b"abc": 479470107,
}  # fmt: skip
"""Keys with their hashes, from the tests of Kafka's Java client."""


def test_a_key_goes_to_the_partition_to_which_java_sends_it() -> None:
    partitions: dict[bytes, int] = {}

    def note(_: KafkaError | None, message: Message) -> None:
        key, partition = message.key(), message.partition()
        assert isinstance(key, bytes)
        assert partition is not None
        partitions[key] = partition

    kafka = {"bootstrap.servers": "unused", "test.mock.num.brokers": "1", "partitioner": "random"}
    producer = producer_of(kafka, {"on_delivery": note})
    for key in MURMUR2:
        producer.produce("orders", b"{}", key)
    assert producer.flush(10) == 0
    count = len(producer.list_topics("orders", timeout=10).topics["orders"].partitions)
    assert count > 1
    assert partitions == {key: (number & 0x7FFFFFFF) % count for key, number in MURMUR2.items()}


@pytest.fixture
def address() -> str:
    """An address where nothing listens."""
    return f"127.0.0.1:{free_port()}"


@pytest.fixture
def down(
    address: str, tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> Iterator[str]:
    """The same address, set as SLUICE_KAFKA."""
    home = tmp_path_factory.mktemp("home")
    monkeypatch.setenv("SLUICE_HOME", str(home))
    monkeypatch.delenv("SLUICE_JARS", raising=False)
    monkeypatch.setenv(
        "SLUICE_KAFKA", json.dumps({"bootstrap.servers": address, "sasl.password": "hunter2"})
    )
    settings.cache_clear()
    yield address
    settings.cache_clear()


def test_an_unreachable_broker_is_reported_with_address_and_reason(
    address: str, capfd: pytest.CaptureFixture[str]
) -> None:
    start = time.monotonic()
    with pytest.raises(BrokersUnreachable) as error:
        require_brokers({"bootstrap.servers": address})
    assert time.monotonic() - start < 10
    assert error.value.detail.startswith(f"Kafka at {address} does not answer: Connect to ")
    assert error.value.detail.endswith("failed: Connection refused.")
    assert capfd.readouterr().err == ""


def test_a_broker_that_is_lost_while_a_run_lingers_is_reported_with_its_address(
    address: str,
) -> None:
    kafka = {"bootstrap.servers": address}
    files = ReplacedFiles(kafka)
    linger = Linger(kafka, ["sales"], {"sales": 1}, 1_000, lambda: None, Clocks({}), files)
    with pytest.raises(BrokersUnreachable, match=f"Kafka at {address} does not answer: .+"):
        linger.unread({})


def test_an_answer_that_does_not_come_in_time_is_an_error_with_a_next_step() -> None:
    with (
        pytest.raises(
            EngineError, match="Reading the settings, Kafka at broker:9092: no answer in time"
        ) as error,
        kafka_errors("Reading the settings", {"bootstrap.servers": "broker:9092"}),
    ):
        Future[None]().result(0)
    assert error.value.next_step == "Check that the broker is running and reachable."


@pytest.mark.parametrize(
    ("reason", "told"),
    [
        (
            "Broker: Message size too large",
            "Writing the output, Kafka at kafka:9092: Broker: Message size too large.",
        ),
        ("kafka:9092/1: Disconnected", "Writing the output: kafka:9092/1: Disconnected."),
    ],
)
def test_an_error_names_the_brokers_once(reason: str, told: str) -> None:
    with (
        pytest.raises(EngineError) as error,
        kafka_errors("Writing the output", {"bootstrap.servers": "kafka:9092"}),
    ):
        raise KafkaException(KafkaError(KafkaError._FAIL, reason))
    assert error.value.detail == told


@pytest.mark.parametrize(
    "command", [("run", "orders"), ("rebuild", "orders"), ("produce", "orders", "--count", "10")]
)
def test_commands_fail_quickly_without_a_broker(
    command: tuple[str, ...], down: str, capfd: pytest.CaptureFixture[str]
) -> None:
    start = time.monotonic()
    result = CliRunner().invoke(app, command)
    assert time.monotonic() - start < 10
    assert result.exit_code == 1
    assert result.stderr.startswith(
        f"Kafka does not answer: Kafka at {down} does not answer: Connect to "
    )
    assert len(result.stderr.splitlines()) == 2, "the error and the next step"
    assert "hunter2" not in result.output
    assert capfd.readouterr().err == "", "no Kafka client logged anything"


def test_a_run_without_a_broker_is_recorded_as_failed(down: str) -> None:
    CliRunner().invoke(app, ["run", "orders"])
    with Ledger.open(settings().ledger) as ledger:
        (failure,) = ledger.failures.all()
    assert (failure.pipeline, failure.title) == ("orders", "Kafka does not answer")
    assert down in failure.detail
