"""Two pipelines with two versions of one library, on a real Spark with one home."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from confluent_kafka import Producer

from sluice.kafka.topics import read_topic
from sluice.local.broker import EmbeddedKafka
from tests.integration.test_command_line import environment_of
from tests.support.tiny_wheels import write_wheel

pytestmark = [pytest.mark.integration, pytest.mark.heavy, pytest.mark.timeout(600)]

PIPELINE = """
import tinylib
from sluice import Pipeline

pipeline = Pipeline("{name}", workers=2)
texts = pipeline.stream("{name}", value=str).map_values(tinylib.version, returns=str)
texts.to("{name}_out", value=str)
"""


def run(home: Path, kafka: EmbeddedKafka, *command: str, **variables: str) -> str:
    process = subprocess.run(
        [sys.executable, "-m", "sluice", *command],
        env=environment_of(home, kafka) | variables,
        cwd=home,
        capture_output=True,
        text=True,
        check=False,
        timeout=200,
    )
    assert process.returncode == 0, process.stdout + process.stderr
    return process.stdout + process.stderr


def test_each_pipeline_runs_with_its_own_version(
    tmp_path: Path, kafka: EmbeddedKafka, fresh_name: Callable[[str], str]
) -> None:
    folder = tmp_path / "pipelines"
    folder.mkdir()
    versions = {fresh_name("old"): "1.0", fresh_name("new"): "2.0"}
    lines: list[str] = []
    producer = Producer({"bootstrap.servers": kafka.bootstrap})
    for name, version in versions.items():
        write_wheel(folder, version)
        (folder / f"{name}.py").write_text(PIPELINE.format(name=name))
        (folder / f"{name}.txt").write_text(f"./tinylib-{version}-py3-none-any.whl\n")
        lines.append(f'[pipelines.{name}]\nrequirements = "{name}.txt"\n')
        kafka.create_topics({name: 2})
        producer.produce(name, "word", key="A")
    assert producer.flush(30) == 0
    (folder / "sluice.toml").write_text("".join(lines))

    for name, version in versions.items():
        output = run(tmp_path, kafka, "run", name)
        assert "Installing the libraries of" in output
        messages = read_topic({"bootstrap.servers": kafka.bootstrap}, f"{name}_out")
        assert [message.value() for message in messages] == [version.encode()]

    listed = run(tmp_path, kafka, "libraries", "list")
    for name, version in versions.items():
        assert name in listed
        assert f"tinylib=={version}" in listed
    assert "0 folders removed" in run(tmp_path, kafka, "libraries", "prune")
    # The second run finds what the first has installed.
    producer.produce(name, "word", key="B")
    assert producer.flush(30) == 0
    assert "Installing" not in run(tmp_path, kafka, "run", name)
    messages = read_topic({"bootstrap.servers": kafka.bootstrap}, f"{name}_out")
    assert [message.value() for message in messages] == [b"2.0"] * 2
