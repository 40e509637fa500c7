from __future__ import annotations

from typing import Any

import pytest

from sluice.errors import LeaseError
from sluice.state.ledger.audits import SourceAudit, total
from sluice.state.ledger.leases import Holder
from sluice.state.ledger.ledger import Ledger
from sluice.state.model import GenerationRef
from tests.support.states import ledger_url, make_snapshot
from tests.support.states import make_audit as audit

pytestmark = pytest.mark.unit


def source(partition: int = 0, start: int = 0, end: int = 10, **counts: Any) -> SourceAudit:
    return SourceAudit(topic="orders", partition=partition, start=start, end=end, **counts)


@pytest.mark.parametrize(
    ("counts", "wrong"),
    [
        (
            {
                "read": 9,
                "applied": 4,
                "filtered": 2,
                "late": 1,
                "dropped": {"null_key": 1},
                "dead_letters": {"x": 1},
            },
            "",
        ),
        ({"read": 9, "applied": 9}, ""),  # a mark of a transaction
        ({"read": 10, "applied": 9}, "orders/0: 10 records were read, but 9 are accounted for"),
        ({"read": 9, "applied": 10}, "orders/0: 9 records were read, but 10 are accounted for"),
        ({"read": 11, "applied": 11}, "orders/0: 11 records were read from offsets 0 to 10"),
    ],
)
def test_an_audit_reports_where_it_does_not_balance(counts: dict[str, Any], wrong: str) -> None:
    assert source(**counts).wrong == wrong
    assert audit(0, 1, source(**counts)).wrong == ([wrong] if wrong else [])


def test_batches_add_up_by_partition() -> None:
    first = audit(
        0, 1, source(read=3, applied=2, dead_letters={"a": 1}), source(1, read=1, applied=1)
    )
    second = audit(1, 1, source(0, 10, 14, read=4, late=2, dead_letters={"a": 1, "b": 1}))
    assert total([first, second]) == [
        source(0, 0, 14, read=7, applied=2, late=2, dead_letters={"a": 2, "b": 1}),
        source(1, read=1, applied=1),
    ]


def test_an_audit_is_published_with_its_snapshot(database: str) -> None:
    with Ledger.open(ledger_url(database)) as ledger:
        lease = ledger.leases.take(
            GenerationRef("orders", 1), Holder(host="h", pid=1, process=""), None
        )
        assert lease is not None
        made = audit(0, lease.epoch, source(read=10, applied=10))
        assert ledger.snapshots.publish(make_snapshot(0), made)
        assert not ledger.snapshots.publish(make_snapshot(0), made)
        assert ledger.audits.all(GenerationRef("orders", 1)) == [made]
        assert ledger.audits.newest(GenerationRef("orders", 1)) == made
        with pytest.raises(LeaseError):
            ledger.snapshots.publish(make_snapshot(1), audit(1, lease.epoch - 1))
        assert ledger.audits.all(GenerationRef("orders", 1)) == [made]
        assert ledger.snapshots.publish(make_snapshot(1), audit(1, lease.epoch))
        # An audit is removed together with its snapshot.
        ledger.snapshots.forget(GenerationRef("orders", 1), before=1)
        assert [kept.batch for kept in ledger.audits.all(GenerationRef("orders", 1))] == [1]
