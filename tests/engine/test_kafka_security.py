"""Spark reads a topic with the security settings that librdkafka uses, from a real broker with TLS."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import psutil
import pytest
from confluent_kafka import Producer
from pyspark.sql import SparkSession

from sluice.brokers import require_brokers
from sluice.engine.read.java_settings import java_settings
from sluice.engine.read.kafka import KafkaInput
from sluice.engine.session import DEFAULTS
from sluice.errors import BrokersUnreachable, SettingsError
from sluice.settings import settings
from sluice.testing.kafka import EmbeddedKafka
from sluice.topics import read_topic
from tests.ports import free_port

PASSWORD = 'quote " and \\ slash'
LOGIN = {"security.protocol": "sasl_ssl", "sasl.mechanism": "PLAIN", "sasl.username": "sluice"}


def _openssl(*words: str | Path) -> None:
    program = shutil.which("openssl")
    if program is None:
        pytest.skip("openssl is not installed")
    subprocess.run([program, *map(str, words)], check=True, capture_output=True)


def _certificate(folder: Path, name: str) -> None:
    """Make NAME.key and NAME.crt for 127.0.0.1; each is its own authority."""
    _openssl(
        "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", "-subj", f"/CN={name}",
        "-addext", "subjectAltName=IP:127.0.0.1", "-keyout", folder / f"{name}.key", "-out", folder / f"{name}.crt",
    )  # fmt: skip


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("certificates")
    for name in ("broker", "client", "stranger"):
        _certificate(made, name)
    (made / "broker.pem").write_text((made / "broker.key").read_text() + (made / "broker.crt").read_text())
    return made


@pytest.fixture(scope="module")
def ports(folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[int, int]]:
    """The ports of a broker's listeners for a password and for a client certificate."""
    password, certificate = free_port(), free_port()
    listeners = f"SASL_SSL://127.0.0.1:{password},SSL://127.0.0.1:{certificate}"
    escaped = PASSWORD.replace("\\", "\\\\").replace('"', '\\"').replace("\\", "\\\\")
    config = {
        "listeners": listeners,
        "advertised.listeners": listeners,
        "listener.security.protocol.map": "SASL_SSL:SASL_SSL,SSL:SSL",
        "ssl.keystore.type": "PEM",
        "ssl.keystore.location": str(folder / "broker.pem"),
        "ssl.truststore.type": "PEM",
        "ssl.truststore.location": str(folder / "client.crt"),
        "listener.name.ssl.ssl.client.auth": "required",
        "sasl.enabled.mechanisms": "PLAIN",
        "listener.name.sasl_ssl.plain.sasl.jaas.config": (
            f'org.apache.kafka.common.security.plain.PlainLoginModule required user_sluice="{escaped}";'
        ),
    }
    with EmbeddedKafka(tmp_path_factory.mktemp("secure"), config=config) as broker:
        broker.create_topics({"sales": 1})
        producer = Producer({"bootstrap.servers": broker.bootstrap})
        producer.produce("sales", b"one")
        assert producer.flush(20) == 0
        yield password, certificate


def _by_password(port: int, folder: Path, **changed: str) -> dict[str, str]:
    changes = {name.replace("_", "."): value for name, value in changed.items()}
    return {
        "bootstrap.servers": f"127.0.0.1:{port}", **LOGIN, "sasl.password": PASSWORD,
        "ssl.ca.location": str(folder / "broker.crt"),
    } | changes  # fmt: skip


def _read(spark: SparkSession, kafka: dict[str, str], folder: Path) -> int:
    require_brokers(kafka)
    query = (
        KafkaInput(spark, kafka).read(["sales"], None).writeStream.format("noop")
        .option("checkpointLocation", str(folder)).trigger(availableNow=True).start()
    )  # fmt: skip
    query.awaitTermination()
    progress = query.lastProgress
    assert progress is not None
    for file in (file for file in folder.rglob("*") if file.is_file()):
        assert b"slash" not in file.read_bytes(), f"{file} contains the password"
    return int(progress["numInputRows"])


def test_spark_reads_with_a_password_over_tls(
    spark: SparkSession, ports: tuple[int, int], folder: Path, tmp_path: Path
) -> None:
    assert _read(spark, _by_password(ports[0], folder), tmp_path) == 1


def test_spark_reads_with_a_client_certificate(
    spark: SparkSession, ports: tuple[int, int], folder: Path, tmp_path: Path
) -> None:
    kafka = {
        "bootstrap.servers": f"127.0.0.1:{ports[1]}",
        "security.protocol": "SSL",
        "ssl.ca.location": str(folder / "broker.crt"),
        "ssl.certificate.location": str(folder / "client.crt"),
        "ssl.key.location": str(folder / "client.key"),
    }
    assert _read(spark, kafka, tmp_path) == 1


PIPELINE = """from sluice import Pipeline

pipeline = Pipeline("secure", workers=1)
sales = pipeline.stream("sales", value=str)
sales.to("copies")
sales.group_by("value").count(store="counts")
"""


@pytest.mark.heavy
def test_a_whole_run_over_tls_keeps_the_password_secret(ports: tuple[int, int], folder: Path, tmp_path: Path) -> None:
    kafka, home, pipelines = _by_password(ports[0], folder), tmp_path / "home", tmp_path / "pipelines"
    pipelines.mkdir()
    (pipelines / "secure.py").write_text(PIPELINE)
    variables = os.environ | {
        "SLUICE_HOME": str(home), "SLUICE_PIPELINES": str(pipelines), "SLUICE_KAFKA": json.dumps(kafka),
        "SLUICE_JARS": str(settings().jars),
    }  # fmt: skip
    seen, printed = "", ""
    for command in ("topics create secure", "run secure", "audit secure --verify"):
        with (tmp_path / "log").open("w+") as log:
            words = [sys.executable, "-m", "sluice.cli", *command.split()]
            process = psutil.Popen(words, env=variables, stdout=log, stderr=log)
            while process.poll() is None:
                with suppress(psutil.Error):
                    seen += str([each.cmdline() for each in (process, *process.children(recursive=True))])
                time.sleep(0.1)
            log.seek(0)
            text = log.read()
        assert process.returncode == 0, f"{command}: {text}"
        printed += text
    assert [message.value() for message in read_topic(kafka, "copies")] == [b'"one"']
    assert "spark" in seen
    assert "slash" not in seen + printed
    for file in (file for file in tmp_path.rglob("*") if file.is_file()):
        assert b"slash" not in file.read_bytes(), f"{file} contains the password"


@pytest.mark.parametrize(
    ("changed", "reason"),
    [({"sasl_password": "wrong"}, "uthentication"), ({"ssl_ca_location": "stranger"}, "ertificate")],
)
def test_a_refused_log_in_is_reported_soon(
    ports: tuple[int, int], folder: Path, changed: dict[str, str], reason: str
) -> None:
    if "ssl_ca_location" in changed:
        changed = {"ssl_ca_location": str(folder / "stranger.crt")}
    start = time.monotonic()
    with pytest.raises(BrokersUnreachable, match=f"127.0.0.1:{ports[0]}.*{reason}") as error:
        require_brokers(_by_password(ports[0], folder, **changed))
    assert time.monotonic() - start < 10
    assert PASSWORD not in str(error.value)


@pytest.mark.parametrize(
    ("kafka", "message"),
    [
        ({**LOGIN}, "sasl.password"),
        ({**LOGIN, "sasl.password": "hush", "sasl.mechanism": "GSSAPI"}, "GSSAPI"),
        ({"security.protocol": "ssl", "ssl.crl.location": "x"}, "ssl.crl.location"),
        ({"security.protocol": "ssl", "enable.ssl.certificate.verification": "false"}, "enable.ssl"),
        ({"security.protocol": "ssl", "ssl.ca.location": f"{os.sep}missing.crt"}, "No such file"),
        ({"security.protocol": "ssl", "ssl.key.pem": "-----BEGIN RSA PRIVATE KEY-----"}, "PKCS #8"),
        ({"security.protocol": "ssl", "ssl.certificate.pem": "x"}, "has no key"),
    ],
)
def test_what_java_cannot_use_is_an_error(kafka: dict[str, str], message: str) -> None:
    with pytest.raises(SettingsError, match=message) as error:
        java_settings(kafka)
    assert "hush" not in str(error.value)
    assert error.value.next_step


@pytest.mark.parametrize(
    "name", ["sasl.jaas.config", "ssl.keystore.key", "ssl.key.password", "ssl.truststore.certificates"]
)
def test_spark_hides_the_secrets_in_its_plans(name: str) -> None:
    assert re.search(DEFAULTS["spark.redaction.regex"], f"kafka.{name}")
