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
from sluice.warm.client import NO_DRIVER
from sluice.warm.warm_driver import READY
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


@pytest.fixture
def versions(
    tmp_path: Path, kafka: EmbeddedKafka, fresh_name: Callable[[str], str]
) -> dict[str, str]:
    """Pipeline → the version of its library; each has a record to read."""
    folder = tmp_path / "pipelines"
    folder.mkdir()
    versions = {fresh_name("old"): "1.0", fresh_name("new"): "2.0"}
    lines: list[str] = []
    for name, version in versions.items():
        write_wheel(folder, version)
        (folder / f"{name}.py").write_text(PIPELINE.format(name=name))
        (folder / f"{name}.txt").write_text(f"./tinylib-{version}-py3-none-any.whl\n")
        lines.append(f'[pipelines.{name}]\nrequirements = "{name}.txt"\n')
        kafka.create_topics({name: 2})
        send(kafka, name)
    (folder / "sluice.toml").write_text("".join(lines))
    return versions


def send(kafka: EmbeddedKafka, name: str) -> None:
    producer = Producer({"bootstrap.servers": kafka.bootstrap})
    producer.produce(name, "word", key="A")
    assert producer.flush(30) == 0


def written(kafka: EmbeddedKafka, name: str) -> list[bytes | None]:
    messages = read_topic({"bootstrap.servers": kafka.bootstrap}, f"{name}_out")
    return [message.value() for message in messages]


def test_each_pipeline_runs_with_its_own_version(
    tmp_path: Path, kafka: EmbeddedKafka, versions: dict[str, str]
) -> None:
    for name, version in versions.items():
        assert "Installing the libraries of" in run(tmp_path, kafka, "run", name)
        assert written(kafka, name) == [version.encode()]

    listed = run(tmp_path, kafka, "libraries", "list")
    for name, version in versions.items():
        assert name in listed
        assert f"tinylib=={version}" in listed
    assert "0 folders removed" in run(tmp_path, kafka, "libraries", "prune")
    # The second run finds what the first has installed.
    send(kafka, name)
    assert "Installing" not in run(tmp_path, kafka, "run", name)
    assert written(kafka, name) == [b"2.0"] * 2


def test_a_warm_driver_takes_only_runs_with_its_libraries(
    tmp_path: Path, kafka: EmbeddedKafka, versions: dict[str, str]
) -> None:
    old, new = versions
    built = run(tmp_path, kafka, "libraries", "build", new)
    libraries = built.partition(f"{new}: ")[2].splitlines()[0]
    with subprocess.Popen(
        [sys.executable, "-m", "sluice", "warm"],
        env=environment_of(tmp_path, kafka) | {"SLUICE_LIBRARIES": libraries},
        cwd=tmp_path,
        stdout=subprocess.PIPE,
        text=True,
    ) as driver:
        assert driver.stdout is not None
        try:
            while READY not in driver.stdout.readline():
                assert driver.poll() is None
            assert NO_DRIVER not in run(tmp_path, kafka, "run", new, SLUICE_WARM="use")
            assert NO_DRIVER in run(tmp_path, kafka, "run", old, SLUICE_WARM="use")
        finally:
            driver.terminate()
            driver.wait(60)
    assert (written(kafka, old), written(kafka, new)) == ([b"1.0"], [b"2.0"])
