"""`python -m tests.upgrades.make_home`: writes the home of this version, which later versions must open."""

from __future__ import annotations

import json
import tarfile
import tempfile
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from confluent_kafka import Producer

from sluice.engine.run.job_run import JobRun
from sluice.kafka.topics import Topic, create_topics
from sluice.local.broker import EmbeddedKafka
from sluice.plan import plan
from sluice.settings import Settings
from sluice.version import __version__
from tests.support.spark_in_process import SparkInProcess
from tests.upgrades.homes import HOMES, contents
from tests.upgrades.visits import visits_pipeline

MINUTE_MS = 60_000
BEGIN_MS = 1_795_262_400_000
"""2026-11-21T12:00:00Z, epoch ms."""


def records(batch: int) -> list[tuple[str, str, dict[str, Any], int]]:
    """The records of a batch: topic, key, value and timestamp."""
    made: list[tuple[str, str, dict[str, Any], int]] = []
    for number in range(3):
        path = f"/{number}"
        page = {"page": path, "owner": f"owner {number + batch}"}
        made.append(("pages", path, page, BEGIN_MS - MINUTE_MS))
    for number in range(30):
        at_ms = BEGIN_MS + (batch * 30 + number) * 7_000
        path = f"/{number % 4}"
        user = f"user {number % 3}"
        visit = {"page": path, "user": user, "at": time_text(at_ms), "seconds": number}
        made.append(("visits", path, visit, at_ms))
    return made


def time_text(epoch_ms: int) -> str:
    return datetime.fromtimestamp(epoch_ms / 1_000, UTC).isoformat()


def main() -> None:
    """Run the pipeline twice on a broker of its own, and keep its home and what queries answer."""
    with tempfile.TemporaryDirectory() as folder:
        kafka = EmbeddedKafka(Path(folder, "kafka"))
        kafka.start()
        try:
            home = Path(folder, "home")
            config = {"bootstrap.servers": kafka.bootstrap, "log_level": "0"}
            settings = Settings.read({"SLUICE_HOME": str(home), "SLUICE_KAFKA": json.dumps(config)})
            job = plan(visits_pipeline()).job
            create_topics(config, [Topic("visits", 2), Topic("pages", 2)])
            for batch in range(2):
                producer = Producer(config)
                for topic, key, value, at_ms in records(batch):
                    producer.produce(topic, key=key, value=json.dumps(value), timestamp=at_ms)
                producer.flush(20)
                JobRun(SparkInProcess.session(), job, settings).run()
        finally:
            kafka.stop()
        kept = HOMES / f"{__version__}.tar.xz"
        with tarfile.open(kept, "w:xz") as archive:
            for name in ("ledger.sqlite", "shards"):
                archive.add(home / name, name)
        answers = {"home": str(home), "stores": contents(settings.ledger)}
        text = json.dumps(answers, indent=1, ensure_ascii=False)
        kept.with_name(f"{__version__}.json").write_text(f"{text}\n")
        print(f"{kept} has {kept.stat().st_size:,} bytes")


if __name__ == "__main__":
    main()
