"""How many records a run has to read, asked of a real broker before the run starts."""

from __future__ import annotations

from pathlib import Path

import pytest

from sluice.kafka.topics import produce
from sluice.local.broker import EmbeddedKafka
from sluice.observe.backlog import backlog_of_run
from tests.support.ports import free_port
from tests.support.states import States

pytestmark = pytest.mark.integration


def test_unread_records_are_counted_before_a_run(
    kafka: EmbeddedKafka, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = {"bootstrap.servers": kafka.bootstrap}
    kafka.create_topics({"counted": 2})
    produce(config, "counted", ((str(number), b"{}", 0) for number in range(20)))
    states = States(f"sqlite:///{tmp_path}", pipeline="counting")
    states.ledger.generations.register(states.info(topics=("counted",)))
    states.publish(positions={"counted": {"0": 1, "1": 2}})

    def unread(**changed: object) -> int:
        given = {"enough": 20, "ledger_url": f"sqlite:///{tmp_path}/ledger.sqlite", "kafka": config} | changed
        return backlog_of_run(pipeline="counting", topics=["counted", "no_such_topic"], **given)  # type: ignore[arg-type]

    assert unread() == 17
    assert unread(from_beginning=True) == 20
    (tmp_path / "file").touch()
    unreadable = f"sqlite:///{tmp_path}/file/ledger.sqlite"
    assert unread(enough=21, ledger_url=unreadable) == 20  # the ledger is not opened
    assert unread(ledger_url=unreadable) == 0
    monkeypatch.setattr("sluice.kafka.unread_records.ANSWER_SECONDS", 0.5)
    nowhere = {"bootstrap.servers": f"127.0.0.1:{free_port()}", "socket.timeout.ms": "500"}
    assert unread(kafka=nowhere) == 0
