"""A driver of an ordered pipeline that is paused for longer than its lease, like a suspended machine, and resumed."""

from __future__ import annotations

import json
import os
import subprocess
from dataclasses import dataclass
from pathlib import Path

import psutil
import pytest
from confluent_kafka import Producer

from sluice.local.broker import EmbeddedKafka
from sluice.settings import Settings
from sluice.state.ledger.ledger import Ledger
from sluice.state.model import GenerationRef
from sluice.state.remote.opening import open_shard
from tests.faults.conftest import Observe
from tests.faults.world import ROOT, wait_until

pytestmark = pytest.mark.timeout(3600)

PIPELINE = '''
"""Adds numbers, and waits while it processes a record as long as a file exists."""
import os
import time

from msgspec import Struct

from sluice import Pipeline


class Number(Struct):
    n: int


class Adder:
    def init(self, context):
        self.context = context

    def process(self, record):
        open(os.environ["HELD"] + ".in", "a").close()
        while os.path.exists(os.environ["HELD"]):
            time.sleep(0.05)
        store = self.context.store("sum")
        store.put("sum", store.get("sum", 0) + record.value.n)
        self.context.forward(record.key, store.get("sum"))


pipeline = Pipeline("adder", workers=1)
sums = pipeline.stream("numbers", value=Number).process(Adder, stores={"sum": int}, returns=int).output
sums.to_table(store="sums")
'''


@dataclass
class Adder:
    """Runs the pipeline above in separate processes."""

    kafka: EmbeddedKafka
    folder: Path

    def __post_init__(self) -> None:
        (self.folder / "jobs").mkdir()
        (self.folder / "jobs" / "adder.py").write_text(PIPELINE)
        self.kafka.create_topics({"numbers": 1})
        self.held = self.folder / "held"
        self.settings = {
            "SLUICE_HOME": str(self.folder / "home"),
            "SLUICE_PIPELINES": str(self.folder / "jobs"),
            "SLUICE_JARS": str(ROOT / ".sluice" / "jars"),
            "SLUICE_KAFKA": json.dumps({"bootstrap.servers": self.kafka.bootstrap}),
        }
        self._producer = Producer(
            {"bootstrap.servers": self.kafka.bootstrap, "linger.ms": 0, "log_level": 0}
        )

    def start(self, name: str, number: int) -> subprocess.Popen[bytes]:
        """Send a number and start a run."""
        self._producer.produce("numbers", key="k", value=json.dumps({"n": number}))
        assert self._producer.flush(20) == 0
        command = [str(ROOT / ".venv" / "bin" / "sluice"), "run", "adder"]
        environment = os.environ | self.settings | {"HELD": str(self.held), "PYTHONPATH": str(ROOT)}
        with (self.folder / f"{name}.log").open("wb") as log:
            return subprocess.Popen(
                command,
                env=environment,
                cwd=self.folder,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )

    def run(self, name: str, number: int) -> None:
        """Send a number and run the pipeline successfully."""
        assert self.start(name, number).wait(600) == 0, self.log(name)

    def log(self, name: str) -> str:
        return (self.folder / f"{name}.log").read_text()[-5000:]

    def sums(self) -> dict[str, str | None]:
        """The values of the store, after a check of the operator states' checksum."""
        with Ledger.open(Settings.read(self.settings).ledger) as ledger:
            snapshot = ledger.snapshots.latest("adder")
            (info,) = (
                store for store in ledger.generations.stores("adder") if store.name == "sums"
            )
            (worker,) = ledger.generations.workers("adder")
            audit = ledger.audits.newest(GenerationRef("adder", 1))
        assert snapshot is not None
        assert audit is not None
        with open_shard(worker.location) as shard:
            assert shard.checksums(snapshot.batch).states == audit.states["0"]
            shard.verify_states(snapshot.batch)
            return {row.key: row.value for row in shard.scan(info.group_id, snapshot.batch)}


@pytest.mark.heavy
@pytest.mark.fault(
    "F3",
    "a driver is paused (SIGSTOP) in a stage's task, two others run, then the driver is resumed",
)
def test_a_paused_driver_of_an_ordered_pipeline_cannot_write(
    kafka: EmbeddedKafka, tmp_path: Path, observe: Observe
) -> None:
    adder = Adder(kafka, tmp_path)
    adder.run("first", 1)
    adder.held.touch()
    (tmp_path / "held.in").unlink()
    stopped = adder.start("stopped", 10)
    assert wait_until((tmp_path / "held.in").exists, 600), adder.log("stopped")
    processes = _with_children(stopped.pid)
    for process in processes:
        process.suspend()
    adder.held.unlink()
    adder.run("second", 100)
    adder.run("third", 1_000)
    for process in processes:
        if process.is_running():
            process.resume()
    assert stopped.wait(600) == 1
    assert "lost its lease" in adder.log("stopped")
    adder.run("fourth", 10_000)
    assert adder.sums() == {"k": "[11111]"}
    observe("the shard rejects the resumed driver, and the next run counts every number once")


def _with_children(pid: int) -> list[psutil.Process]:
    parent = psutil.Process(pid)
    return [parent, *parent.children(recursive=True)]
