"""Two pipelines with two versions of one library, on a cluster whose executors have neither."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from confluent_kafka import Producer

from sluice.kafka.topics import read_topic
from sluice.local.broker import EmbeddedKafka
from tests.cluster.standalone import SparkCluster
from tests.integration.test_command_line import environment_of
from tests.integration.test_libraries import PIPELINE
from tests.support.postgres import new_database
from tests.support.tiny_wheels import write_wheel

pytestmark = [pytest.mark.heavy, pytest.mark.timeout(900)]


def test_executors_get_the_libraries_of_the_pipeline(
    cluster: SparkCluster,
    python: Path,
    kafka: EmbeddedKafka,
    postgres: str,
    tmp_path: Path,
    fresh_name: Callable[[str], str],
) -> None:
    folder, database = tmp_path / "pipelines", new_database(postgres)
    folder.mkdir()
    small = {"spark.executor.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"}
    variables = {
        "PYSPARK_PYTHON": str(python),
        "SPARK_LOCAL_IP": "127.0.0.1",
        "SLUICE_SPARK_CONF": json.dumps(small),
        "SLUICE_LEDGER": database,
        "SLUICE_SHARDS": database,
    }
    lines: list[str] = []
    versions = {fresh_name("old"): "1.0", fresh_name("new"): "2.0"}
    producer = Producer({"bootstrap.servers": kafka.bootstrap})
    for name, version in versions.items():
        write_wheel(folder, version)
        (folder / f"{name}.py").write_text(PIPELINE.format(name=name))
        (folder / f"{name}.txt").write_text(f"./tinylib-{version}-py3-none-any.whl\n")
        lines.append(f'[pipelines.{name}]\nrequirements = "{name}.txt"\n')
        kafka.create_topics({name: 2})
        for partition in (0, 1):
            producer.produce(name, "word", key="A", partition=partition)
    assert producer.flush(30) == 0
    (folder / "sluice.toml").write_text("".join(lines))
    for name, version in versions.items():
        ran = subprocess.run(
            [sys.executable, "-m", "sluice", "run", name, "--master", cluster.master],
            env=environment_of(tmp_path, kafka) | variables,
            cwd=tmp_path,
            capture_output=True,
            text=True,
            check=False,
            timeout=400,
        )
        assert ran.returncode == 0, ran.stdout + ran.stderr
        messages = read_topic({"bootstrap.servers": kafka.bootstrap}, f"{name}_out")
        assert [message.value() for message in messages] == [version.encode()] * 2
