"""Tasks read a topic with Kafka's security settings, from a real broker with TLS."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import (  # type: ignore[attr-defined]
    AclBinding,
    AclOperation,
    AclPermissionType,
    ResourcePatternType,
    ResourceType,
)
from confluent_kafka.admin._scram import (
    ScramCredentialInfo,
    ScramMechanism,
    UserScramCredentialAlteration,
    UserScramCredentialUpsertion,
)

from sluice.engine.read.kafka_records import read_ranges
from sluice.errors import BrokersUnreachable, EngineError
from sluice.kafka import range_reader
from sluice.kafka.brokers import require_brokers, silent_admin, with_certificates
from sluice.kafka.topics import read_topic, records_at
from sluice.local.broker import EmbeddedKafka
from sluice.settings import settings
from sluice.values.record_places import Range
from tests.support.certificates import make_certificate
from tests.support.ports import free_port
from tests.support.watched import run_watched

PASSWORD = 'quote " and \\ slash'
SCRAM_MODULE = "org.apache.kafka.common.security.scram.ScramLoginModule"
LOGIN = {"security.protocol": "sasl_ssl", "sasl.mechanism": "PLAIN", "sasl.username": "sluice"}


@dataclass(frozen=True)
class Ports:
    """The ports of a broker's listeners."""

    password: int
    certificate: int
    """Requires a client certificate."""
    elsewhere: int
    """Has a certificate for another host."""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("certificates")
    for name in ("broker", "client", "stranger"):
        make_certificate(made, name)
    make_certificate(made, "elsewhere", "DNS:elsewhere.example")
    return made


@pytest.fixture(scope="module")
def ports(folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Ports]:
    found = Ports(free_port(), free_port(), free_port())
    addresses = {"SASL_SSL": found.password, "SSL": found.certificate, "ELSEWHERE": found.elsewhere}
    listeners = ",".join(f"{name}://127.0.0.1:{port}" for name, port in addresses.items())
    escaped = PASSWORD.replace("\\", "\\\\").replace('"', '\\"').replace("\\", "\\\\")
    mechanisms = "listener.name.sasl_ssl.{}.sasl.jaas.config"
    config = {
        "listeners": listeners,
        "advertised.listeners": listeners,
        "listener.security.protocol.map": "SASL_SSL:SASL_SSL,SSL:SSL,ELSEWHERE:SSL",
        "ssl.keystore.type": "PEM",
        "ssl.keystore.location": str(folder / "broker.pem"),
        "ssl.truststore.type": "PEM",
        "ssl.truststore.location": str(folder / "client.crt"),
        "listener.name.ssl.ssl.client.auth": "required",
        "listener.name.elsewhere.ssl.keystore.type": "PEM",
        "listener.name.elsewhere.ssl.keystore.location": str(folder / "elsewhere.pem"),
        "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
        "allow.everyone.if.no.acl.found": "true",
        "sasl.enabled.mechanisms": "PLAIN,SCRAM-SHA-256,SCRAM-SHA-512",
        mechanisms.format("plain"): (
            f'org.apache.kafka.common.security.plain.PlainLoginModule required user_sluice="{escaped}";'
        ),
        mechanisms.format("scram-sha-256"): f"{SCRAM_MODULE} required;",
        mechanisms.format("scram-sha-512"): f"{SCRAM_MODULE} required;",
    }
    with EmbeddedKafka(tmp_path_factory.mktemp("secure"), config=config) as broker:
        broker.create_topics({"sales": 1, "secret": 1})
        admin = silent_admin({"bootstrap.servers": broker.bootstrap})
        # Everybody may read the topic `sales`, but only another user may use groups or read the
        # topic `secret`.
        rule_of_another = "User:another", "*", AclOperation.ALL, AclPermissionType.ALLOW
        rules = [
            AclBinding(kind, name, ResourcePatternType.LITERAL, *rule_of_another)
            for kind, name in ((ResourceType.GROUP, "*"), (ResourceType.TOPIC, "secret"))
        ]
        for rule in admin.create_acls(rules).values():
            rule.result(20)
        credentials: list[UserScramCredentialAlteration] = [
            UserScramCredentialUpsertion(
                user, ScramCredentialInfo(mechanism, 4096), PASSWORD.encode()
            )
            for user, mechanism in (
                ("user256", ScramMechanism.SCRAM_SHA_256),
                ("user512", ScramMechanism.SCRAM_SHA_512),
            )
        ]
        for future in admin.alter_user_scram_credentials(credentials).values():
            future.result(20)
        producer = Producer({"bootstrap.servers": broker.bootstrap, "log_level": 0})
        producer.produce("sales", b"one")
        assert producer.flush(20) == 0
        yield found


def _by_password(port: int, folder: Path, **changed: str) -> dict[str, str]:
    changes = {name.replace("_", "."): value for name, value in changed.items()}
    return {
        "bootstrap.servers": f"127.0.0.1:{port}", **LOGIN, "sasl.password": PASSWORD,
        "ssl.ca.location": str(folder / "broker.crt"),
    } | changes  # fmt: skip


def _read(kafka: dict[str, str]) -> int:
    """Read the topic as a task on another host does, which has no copies of the driver's files."""
    settings = with_certificates(kafka)
    assert not any(name.endswith(".location") for name in settings)
    return sum(batch.num_rows for batch in read_ranges(settings, [Range("sales", 0, 0, 1)]))


def test_a_task_reads_with_a_password_over_tls(ports: Ports, folder: Path) -> None:
    kafka = _by_password(ports.password, folder)
    require_brokers(kafka)
    assert _read(kafka) == 1


@pytest.mark.parametrize("bits", ["256", "512"])
def test_a_task_reads_with_scram(ports: Ports, folder: Path, bits: str) -> None:
    kafka = _by_password(
        ports.password, folder, sasl_mechanism=f"SCRAM-SHA-{bits}", sasl_username=f"user{bits}"
    )
    require_brokers(kafka)
    assert _read(kafka) == 1


def test_a_certificate_for_another_host_is_refused(
    ports: Ports, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    address = f"127.0.0.1:{ports.elsewhere}"
    kafka = {
        "bootstrap.servers": address, "security.protocol": "SSL", "ssl.ca.location": str(folder / "elsewhere.crt")
    }  # fmt: skip
    with pytest.raises(
        BrokersUnreachable, match=f"the certificate of {address} cannot be verified"
    ) as refused:
        require_brokers(kafka)
    assert "ssl.endpoint.identification.algorithm=none" in refused.value.next_step
    monkeypatch.setattr(range_reader, "LONGEST_SILENCE_S", 2.0)
    late = f"No record of sales, partition 0, has arrived for 2 s. Kafka at .* the certificate of {address} cannot"
    with pytest.raises(BrokersUnreachable, match=late):
        _read(kafka)

    unchecked = kafka | {"ssl.endpoint.identification.algorithm": "none"}
    require_brokers(unchecked)
    assert _read(unchecked) == 1


def test_a_task_reads_with_a_client_certificate(ports: Ports, folder: Path) -> None:
    kafka = {
        "bootstrap.servers": f"127.0.0.1:{ports.certificate}",
        "security.protocol": "SSL",
        "ssl.ca.location": str(folder / "broker.crt"),
        "ssl.certificate.location": str(folder / "client.crt"),
        "ssl.key.location": str(folder / "client.key"),
    }
    require_brokers(kafka)
    assert _read(kafka) == 1


def test_a_reader_needs_no_permission_for_groups(ports: Ports, folder: Path) -> None:
    """The client asks for the coordinator of a group that no reader needs."""
    kafka = _by_password(ports.password, folder)
    assert _read(kafka) == 1
    assert [record.value() for record in read_topic(kafka, "sales")] == [b"one"]
    assert [
        record.value() for _, record in records_at(kafka, [("sales", 0, 0), ("sales", 0, 5)])
    ] == [b"one"]


def test_a_topic_that_may_not_be_read_is_an_error_with_what_to_do(
    ports: Ports, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(range_reader, "_QUESTION_S", 0.2)
    kafka = _by_password(ports.password, folder)
    with pytest.raises(EngineError, match=r"denies the user sluice DESCRIBE on the topic secret\."):
        list(read_ranges(kafka, [Range("secret", 0, 0, 1)]))
    with pytest.raises(EngineError, match=r"denies the user sluice READ on the topic secret\."):
        list(read_topic(kafka, "secret"))


PIPELINE = """from sluice import Pipeline

pipeline = Pipeline("NAME", workers=1)
sales = pipeline.stream("sales", value=str)
sales.to("NAME_copies")
sales.group_by("value").count(store="counts")
"""


@pytest.mark.heavy
@pytest.mark.parametrize(("mechanism", "user"), [("PLAIN", "sluice"), ("SCRAM-SHA-512", "user512")])
def test_a_whole_run_over_tls_keeps_the_password_secret(
    ports: Ports, folder: Path, tmp_path: Path, mechanism: str, user: str
) -> None:
    kafka = _by_password(ports.password, folder, sasl_mechanism=mechanism, sasl_username=user)
    name = f"secure_{user}"
    home, pipelines = tmp_path / "home", tmp_path / "pipelines"
    pipelines.mkdir()
    (pipelines / f"{name}.py").write_text(PIPELINE.replace("NAME", name))
    variables = os.environ | {
        "SLUICE_HOME": str(home), "SLUICE_PIPELINES": str(pipelines), "SLUICE_KAFKA": json.dumps(kafka),
        "SLUICE_JARS": str(settings().jars),
    }  # fmt: skip
    seen = run_watched(
        [f"topics create {name}", f"run {name}", f"audit {name} --verify"],
        variables,
        tmp_path / "log",
    )
    assert [message.value() for message in read_topic(kafka, f"{name}_copies")] == [b'"one"']
    assert "spark" in seen
    assert "slash" not in seen
    for file in (file for file in tmp_path.rglob("*") if file.is_file()):
        assert b"slash" not in file.read_bytes(), f"{file} contains the password"


@pytest.mark.parametrize(
    ("changed", "reason"),
    [
        ({"sasl_password": "wrong"}, "uthentication"),
        ({"ssl_ca_location": "stranger"}, "ertificate"),
    ],
)
def test_a_refused_log_in_is_reported_soon(
    ports: Ports, folder: Path, changed: dict[str, str], reason: str
) -> None:
    if "ssl_ca_location" in changed:
        changed = {"ssl_ca_location": str(folder / "stranger.crt")}
    start = time.monotonic()
    with pytest.raises(BrokersUnreachable, match=f"127.0.0.1:{ports.password}.*{reason}") as error:
        require_brokers(_by_password(ports.password, folder, **changed))
    assert time.monotonic() - start < 10
    assert "sasl.password" in str(error.value) or "ssl.ca.location" in str(error.value)
    assert PASSWORD not in str(error.value)
