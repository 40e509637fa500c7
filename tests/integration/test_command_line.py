"""`sluice run` on a real broker."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from confluent_kafka import Producer

from sluice.settings import settings
from sluice.submission import FIRST_RUN
from sluice.testing.kafka import EmbeddedKafka

pytestmark = [pytest.mark.integration, pytest.mark.timeout(600)]

ROOT = Path(__file__).parents[2]
PIPELINE = """
from sluice import Context, Pipeline, Record

class Letters:
    def init(self, context: Context) -> None:
        self.lengths = context.store("{name}_lengths")

    def process(self, record: Record) -> None:
        self.lengths.put(record.value, len(record.value))

pipeline = Pipeline("{name}", workers=2)
words = pipeline.stream("{name}", value=str)
words.group_by_key().count(store="{name}_count")
words.process(Letters, stores={{"{name}_lengths": int}})
words.to("{name}_again", value=str)
"""


@pytest.mark.parametrize("commands", [("run",), pytest.param(("run", "rebuild"), marks=pytest.mark.heavy)])
def test_successful_commands_print_no_warnings(tmp_path: Path, kafka: EmbeddedKafka, commands: tuple[str, ...]) -> None:
    """Commands for a pipeline with ordered operators and a transactional output."""
    name = f"quiet_{len(commands)}"
    (tmp_path / "pipelines").mkdir()
    (tmp_path / "pipelines" / f"{name}.py").write_text(PIPELINE.format(name=name))
    (tmp_path / "pipelines" / "broken.py").write_text("import nothing_like_this")
    kafka.create_topics({name: 2})
    environment = {
        **os.environ,
        "SLUICE_HOME": str(tmp_path),
        "SLUICE_JARS": str(settings().jars),
        "SLUICE_PIPELINES": str(tmp_path / "pipelines"),
        "SLUICE_KAFKA": json.dumps({"bootstrap.servers": kafka.bootstrap}),
        "PYTHONPATH": str(ROOT),
    }
    for word, command in zip(("apple", "avocado"), commands, strict=False):
        producer = Producer({"bootstrap.servers": kafka.bootstrap})
        producer.produce(name, word, key="A")
        assert producer.flush(30) == 0
        process = subprocess.run(
            [sys.executable, "-m", "sluice", command, name],
            env=environment, cwd=tmp_path, capture_output=True, text=True, check=False,
        )  # fmt: skip
        assert (process.returncode, process.stderr.removeprefix(FIRST_RUN)) == (0, "")
        assert process.stdout.count("run done" if command == "run" else "equal to the published state") == 1
        for complaint in ("WARN", "ERROR", "Warning", "%3|", "%4|", "Traceback"):
            assert complaint not in process.stdout
