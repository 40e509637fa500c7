"""Ledger and shards are in a PostgreSQL server that only accepts TLS, whose certificate is verified."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import quote

import pytest
from confluent_kafka import Producer
from sqlalchemy import make_url

from sluice.errors import StateError
from sluice.local.broker import EmbeddedKafka
from sluice.settings import settings
from sluice.state.ledger.ledger import Ledger
from sluice.state.shard.addresses import drop, exists
from sluice.state.shard.local_shard import LocalShard
from tests.support.certificates import make_certificate
from tests.support.postgres import postgres_server
from tests.support.watched import run_watched

PASSWORD = "hush word/%"


@dataclass(frozen=True)
class Server:
    """A server whose certificate is for `localhost`."""

    port: int
    folder: Path

    def url(
        self, host: str = "localhost", authority: str = "server", mode: str = "verify-full"
    ) -> str:
        parameters = f"sslmode={mode}&sslrootcert={self.folder / authority}.crt"
        return f"postgresql://sluice:{quote(PASSWORD, safe='')}@{host}:{self.port}/postgres?{parameters}"


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    folder = tmp_path_factory.mktemp("tls")
    make_certificate(folder, "server", "DNS:localhost")
    make_certificate(folder, "stranger")
    with postgres_server(
        folder / "data", password=PASSWORD, certificate=folder / "server.pem"
    ) as url:
        yield Server(make_url(url).port or 0, folder)


def test_ledger_and_shards_work_over_verified_tls(server: Server) -> None:
    Ledger.open(server.url()).close()
    shard = f"{server.url()}&schema=works"
    LocalShard.create(shard).close()
    LocalShard.open(shard).close()
    assert exists(shard)
    drop(shard)
    assert not exists(shard)


@pytest.mark.parametrize(
    ("changed", "reason", "next_step"),
    [
        (
            {"host": "127.0.0.1"},
            'certificate for "localhost".* does not match host name "127.0.0.1"',
            "sslrootcert",
        ),
        ({"authority": "stranger"}, "SSL error: certificate verify failed", "sslrootcert"),
        (
            {"authority": "missing"},
            'root certificate file ".*missing.crt" does not exist',
            "sslrootcert",
        ),
        ({"mode": "disable"}, "no encryption", "reachable"),
    ],
)
@pytest.mark.attack("S9", "reading errors about refused connections to PostgreSQL")
def test_a_refused_connection_names_host_and_reason(
    server: Server, changed: dict[str, str], reason: str, next_step: str
) -> None:
    url = server.url(**changed)
    for using in (lambda: Ledger.open(url), lambda: LocalShard.create(f"{url}&schema=refused")):
        with pytest.raises(StateError, match=f"127.0.0.1.*{reason}|{reason}.*127.0.0.1") as error:
            using()
        assert next_step in error.value.next_step
        assert "hush" not in str(error.value)


PIPELINE = """from sluice import Pipeline

pipeline = Pipeline("sealed", workers=2)
words = pipeline.stream("sealed_words", value=str)
words.group_by("value").count(store="counts")
"""


@pytest.mark.heavy
@pytest.mark.attack("S9", "reading arguments, output, files and tables of a run on PostgreSQL")
def test_a_whole_run_keeps_the_password_secret(
    server: Server, kafka: EmbeddedKafka, tmp_path: Path
) -> None:
    pipelines = tmp_path / "pipelines"
    pipelines.mkdir()
    (pipelines / "sealed.py").write_text(PIPELINE)
    kafka.create_topics({"sealed_words": 2})
    producer = Producer({"bootstrap.servers": kafka.bootstrap})
    for number in range(10):
        producer.produce("sealed_words", b"ab"[number % 2 : number % 2 + 1])
    assert producer.flush(20) == 0
    variables = os.environ | {
        "SLUICE_HOME": str(tmp_path / "home"), "SLUICE_PIPELINES": str(pipelines),
        "SLUICE_KAFKA": json.dumps({"bootstrap.servers": kafka.bootstrap}), "SLUICE_JARS": str(settings().jars),
        "SLUICE_LEDGER": server.url(), "SLUICE_SHARDS": server.url(),
    }  # fmt: skip
    commands = ["topics create sealed", "run sealed", "audit sealed --verify", "status"]
    seen = run_watched(commands, variables, tmp_path / "log")
    assert "spark" in seen

    dump = subprocess.run(
        ["pg_dump", server.url(), "--inserts"], check=True, capture_output=True, text=True
    ).stdout  # fmt: skip
    assert "sluice_sealed_g1_w1" in dump
    for text in (seen, dump):
        assert "hush" not in text
    for file in (file for file in tmp_path.rglob("*") if file.is_file()):
        assert b"hush" not in file.read_bytes(), f"{file} contains the password"
