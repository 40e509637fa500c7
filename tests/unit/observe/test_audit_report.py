from __future__ import annotations

import io
from collections.abc import Iterator
from typing import Any

import msgspec
import pytest
from rich.console import Console
from sqlalchemy import delete

from sluice.errors import NotFound, StateError
from sluice.observe.audit_report import report
from sluice.state.database import transaction
from sluice.state.ledger.audits import SourceAudit
from sluice.state.ledger.ledger_tables import WORKERS
from sluice.state.model import NO_WINDOW, GenerationRef
from sluice.state.shard.local_shard import LocalShard
from tests.support.leases import hold_lease
from tests.support.state_rows import write_rows
from tests.support.states import States, ledger_url, make_audit, make_snapshot

pytestmark = pytest.mark.unit


@pytest.fixture
def states(database: str) -> Iterator[States]:
    made = States(database)
    hold_lease(made.ledger, GenerationRef("orders", 1))
    yield made
    made.ledger.close()


def source(**counts: Any) -> SourceAudit:
    return SourceAudit(topic="orders", partition=0, start=0, end=10, **counts)


def said(states: States, run: str = "", *, verify: bool = False) -> tuple[bool, str]:
    text = io.StringIO()
    fine = report(
        ledger_url(states.database), "orders", run, Console(file=text, width=200), verify=verify
    )
    return fine, text.getvalue()


def test_an_audit_lists_partitions_and_balances(states: States) -> None:
    states.ledger.snapshots.publish(
        make_snapshot(0),
        make_audit(0, 1, source(read=10, applied=9, late=1, passed_over={"late/minutes": 2})),
    )
    fine, text = said(states)
    assert fine
    assert "skipped by minutes, late: 2 of orders partition 0" in text
    assert "Every record read is accounted for" in text
    assert "written to out: 3" in text
    assert "checksums of worker 0: state rows 00ff" in text
    for name in ("r", "1.0"):
        assert said(states, name)[0]
    with pytest.raises(NotFound, match="no audit of other"):
        said(states, "other")


def test_an_imbalance_is_reported(states: States) -> None:
    states.ledger.snapshots.publish(make_snapshot(0), make_audit(0, 1, source(read=10, applied=9)))
    fine, text = said(states)
    assert not fine
    assert "orders/0: 10 records were read, but 9 are accounted for" in text


def test_a_damaged_shard_is_quarantined_until_it_is_restored(states: States) -> None:
    with LocalShard.open(states.location(0), to_write=True) as shard:
        write_rows(shard, 0, [(0, "a", NO_WINDOW, NO_WINDOW, "[1]")])
        checksum = shard.checksum(0)
    audit = make_audit(0, 1, source(read=10, applied=10))
    audit.checksums["0"] = "0123456789abcdef"
    states.ledger.snapshots.publish(make_snapshot(0), audit)
    fine, text = said(states, verify=True)
    assert not fine
    assert f"is {checksum}, expected 0123456789abcdef" in " ".join(text.split())
    assert [bool(worker.unavailable) for worker in states.ledger.generations.workers("orders")] == [
        True,
        False,
    ]

    right = make_audit(1, 1, source(read=10, applied=10))
    right.checksums["0"] = checksum
    states.ledger.snapshots.publish(make_snapshot(1), right)
    assert said(states, "1.1", verify=True)[0]
    assert not any(worker.unavailable for worker in states.ledger.generations.workers("orders"))


def test_a_lost_row_of_a_worker_is_found(states: States) -> None:
    states.publish({"a": "[1,null]"})
    assert said(states, verify=True)[0]
    with transaction(states.ledger.engine) as connection:
        connection.execute(delete(WORKERS).where(WORKERS.c.number == 1))
    fine, text = said(states, verify=True)
    assert not fine
    assert "worker 1: The ledger has lost the shard's address." in text


@pytest.mark.attack("S9", "reading the audit of state in an unreachable database")
def test_no_audit_reveals_a_password(states: States) -> None:
    states.ledger.snapshots.publish(make_snapshot(0), make_audit(0, 1, source(read=10, applied=10)))
    place = "postgresql://sluice:hunter2@127.0.0.1:1/state?schema=s"
    workers = tuple(
        msgspec.structs.replace(worker, location=place) for worker in states.info().workers
    )
    states.ledger.generations.register(msgspec.structs.replace(states.info(), workers=workers))
    try:
        _, text = said(states, verify=True)
    except StateError as error:
        text = str(error)
    assert "hunter2" not in text + str(states.ledger.quarantine.get(GenerationRef("orders", 1)))
    assert "127.0.0.1" in text, "the error is about the database"


def test_an_unknown_pipeline_is_an_error(states: States) -> None:
    with pytest.raises(NotFound, match="The ledger has no pipeline 'others'"):
        report(ledger_url(states.database), "others", "", Console(quiet=True))
