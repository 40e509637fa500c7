"""`sluice run` on a real broker."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

import psutil
import pytest
from confluent_kafka import Producer

from sluice.local.broker import EmbeddedKafka
from sluice.settings import Settings, settings
from sluice.spark_submit import FIRST_RUN
from sluice.state.ledger.ledger import Ledger
from sluice.support.processes import has_ended
from tests.docs.test_tutorial import COMPLAINTS
from tests.support.signals import reset_signals

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


ENDLESS = """
from pathlib import Path
from sluice import Pipeline

def endless(word: str) -> str:
    Path({begun!r}).touch()
    while True:
        pass

pipeline = Pipeline("{name}", workers=1)
pipeline.stream("{name}", value=str).map_values(endless, returns=str).to("{name}_out")
"""


def environment_of(home: Path, kafka: EmbeddedKafka) -> dict[str, str]:
    return {
        **os.environ,
        "SLUICE_HOME": str(home),
        "SLUICE_JARS": str(settings().jars),
        "SLUICE_PIPELINES": str(home / "pipelines"),
        "SLUICE_KAFKA": json.dumps({"bootstrap.servers": kafka.bootstrap}),
        "PYTHONPATH": str(ROOT),
    }


@pytest.mark.heavy  # test_tutorial.py runs a pipeline with operators, which prints none of these either
def test_successful_commands_print_no_warnings(tmp_path: Path, kafka: EmbeddedKafka) -> None:
    """Commands for a pipeline with operators and a transactional output."""
    name = "quiet"
    (tmp_path / "pipelines").mkdir()
    (tmp_path / "pipelines" / f"{name}.py").write_text(PIPELINE.format(name=name))
    (tmp_path / "pipelines" / "broken.py").write_text("import nothing_like_this")
    kafka.create_topics({name: 2})
    environment = environment_of(tmp_path, kafka)
    for word, command in (("apple", "run"), ("avocado", "rebuild")):
        producer = Producer({"bootstrap.servers": kafka.bootstrap})
        producer.produce(name, word, key="A")
        assert producer.flush(30) == 0
        process = subprocess.run(
            [sys.executable, "-m", "sluice", command, name],
            env=environment, cwd=tmp_path, capture_output=True, text=True, check=False,
        )  # fmt: skip
        assert (process.returncode, process.stderr.removeprefix(FIRST_RUN)) == (0, "")
        assert (
            process.stdout.count("run done" if command == "run" else "equal to the published state")
            == 1
        )
        assert [complaint for complaint in COMPLAINTS if complaint in process.stdout] == []
    with Ledger.open(Settings.read({"SLUICE_HOME": str(tmp_path)}).ledger) as ledger:
        measured = {name: value for name, value, _ in ledger.measurements.of_all_pipelines()[name]}
    assert (measured["batches_total"], measured["runs_total"]) == (1, 1)
    assert measured["run_start_seconds_sum"] < measured["run_duration_seconds_sum"]
    # The JVM is far larger than this test's process, and needs seconds to start.
    assert measured["run_memory_bytes"] > 200 * 2**20
    assert measured["run_cpu_seconds_total"] > 2


@pytest.mark.heavy  # test_spark_submit.py sends signals to a program that is harder to end than a driver
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_ends_a_run_with_its_driver_and_workers(
    tmp_path: Path, kafka: EmbeddedKafka, number: signal.Signals
) -> None:
    """SIGTERM for the command only, as `kill` sends it; SIGINT for its process group, as a terminal does."""
    name, begun = f"endless_{number.name.lower()}", tmp_path / "begun"
    (tmp_path / "pipelines").mkdir()
    (tmp_path / "pipelines" / f"{name}.py").write_text(ENDLESS.format(name=name, begun=str(begun)))
    kafka.create_topics({name: 1})
    producer = Producer({"bootstrap.servers": kafka.bootstrap})
    producer.produce(name, "apple", key="A")
    assert producer.flush(30) == 0
    command = [sys.executable, "-m", "sluice", "run", name]
    with subprocess.Popen(
        command, env=environment_of(tmp_path, kafka), cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        text=True, start_new_session=True, preexec_fn=reset_signals,
    ) as run:  # fmt: skip
        started: list[psutil.Process] = []
        try:
            while not begun.exists():
                assert run.poll() is None
                time.sleep(0.1)
            started = psutil.Process(run.pid).children(recursive=True)
            assert len(started) >= 3, "the JVM, the driver, and Python's daemon and workers"
            if number == signal.SIGINT:
                os.killpg(run.pid, number)
            else:
                run.send_signal(number)
            out, err = run.communicate(timeout=60)
        except BaseException:
            run.kill()
            for process in started:
                with suppress(psutil.NoSuchProcess):
                    process.kill()
            raise
    deadline = time.monotonic() + 30
    while not all(map(has_ended, started)) and time.monotonic() < deadline:
        time.sleep(0.1)
    assert all(map(has_ended, started))
    assert (run.returncode, "Traceback" in out) == (128 + number, False)
    said = f"The command was ended by {number.name}. Published batches are kept; repeat the command to continue.\n"
    assert err.removeprefix(FIRST_RUN) == said
