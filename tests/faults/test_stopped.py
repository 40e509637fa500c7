"""A driver of an ordered pipeline that is stopped for longer than its lease, as a suspended machine is, and wakes."""

from __future__ import annotations

import json
import os
import subprocess
from dataclasses import dataclass
from pathlib import Path

import psutil
import pytest
from confluent_kafka import Producer

from sluice.remote.opening import open_shard
from sluice.settings import Settings
from sluice.state.ledger.ledger import Ledger
from sluice.state.model import JobRef
from sluice.testing.kafka import EmbeddedKafka
from tests.faults.conftest import Seen
from tests.faults.world import ROOT, wait_until

pytestmark = pytest.mark.timeout(3600)

PIPELINE = '''
"""Adds numbers up, and waits in the middle of a record as long as there is a file."""
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
    """The pipeline above, its runs as processes of their own."""

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
            "SLUICE_JARS": str(ROOT / ".sluice" / "jars" / "spark"),
            "SLUICE_KAFKA": json.dumps({"bootstrap.servers": self.kafka.bootstrap}),
        }
        self._producer = Producer({"bootstrap.servers": self.kafka.bootstrap, "linger.ms": 0, "log_level": 0})

    def start(self, name: str, number: int) -> subprocess.Popen[bytes]:
        """Send a number, and start a run."""
        self._producer.produce("numbers", key="k", value=json.dumps({"n": number}))
        assert self._producer.flush(20) == 0
        command = [str(ROOT / ".venv" / "bin" / "sluice"), "run", "adder"]
        environment = os.environ | self.settings | {"HELD": str(self.held), "PYTHONPATH": str(ROOT)}
        with (self.folder / f"{name}.log").open("wb") as log:
            return subprocess.Popen(
                command, env=environment, cwd=self.folder, stdout=log, stderr=log, start_new_session=True
            )

    def run(self, name: str, number: int) -> None:
        """The same, until it ends well."""
        assert self.start(name, number).wait(600) == 0, self.said(name)

    def said(self, name: str) -> str:
        return (self.folder / f"{name}.log").read_text()[-5000:]

    def sums(self) -> dict[str, str | None]:
        """What the store holds, once operators' state has the checksum that was published."""
        with Ledger.open(Settings.read(self.settings).ledger) as ledger:
            snapshot = ledger.snapshots.latest("adder", "main")
            (store,) = (one for one in ledger.jobs.stores("adder") if one.name == "sums")
            (worker,) = ledger.jobs.workers("adder", "main")
            audit = ledger.audits.newest(JobRef("adder", "main", 1))
        assert snapshot is not None
        assert audit is not None
        with open_shard(worker.location) as shard:
            assert shard.checksums(snapshot.batch).states == audit.states["0"]
            shard.verify_states(snapshot.batch)
            return {group_id.key: group_id.value for group_id in shard.scan(store.group_id, snapshot.batch)}


@pytest.mark.heavy
@pytest.mark.fault("F3", "a driver stopped (SIGSTOP) in a stage's task, two others meanwhile, then it wakes: ordered")
def test_a_stopped_driver_of_an_ordered_pipeline_writes_nothing(
    kafka: EmbeddedKafka, tmp_path: Path, seen: Seen
) -> None:
    adder = Adder(kafka, tmp_path)
    adder.run("first", 1)
    adder.held.touch()
    (tmp_path / "held.in").unlink()
    stopped = adder.start("stopped", 10)
    assert wait_until((tmp_path / "held.in").exists, 600), adder.said("stopped")
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
    assert "lost its lease" in adder.said("stopped")
    adder.run("fourth", 10_000)
    assert adder.sums() == {"k": "[11111]"}
    seen("the stopped driver wakes, is refused by the shard, and the next run counts every number once")


def _with_children(pid: int) -> list[psutil.Process]:
    parent = psutil.Process(pid)
    return [parent, *parent.children(recursive=True)]
