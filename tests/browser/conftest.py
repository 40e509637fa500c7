"""The page in a real browser: over a busy orders pipeline without Airflow, and in a real Airflow."""

from __future__ import annotations

import random
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

import msgspec
import pytest
from playwright.sync_api import Browser, Page

from sluice.answers import Run
from sluice.api.runs import DagState
from sluice.state.ledger.audits import SourceAudit
from sluice.state.ledger.history import Batch
from sluice.state.ledger.leases import Holder
from sluice.state.remote.opening import create_shard
from sluice.topology import drawing, load_pipeline
from sluice.values.key_owners import owner
from tests.api.states import KINDS, orders_states, totals, windows
from tests.support.airflow_browser import TIMEOUT_MS, chromium
from tests.support.api_client import Api, User
from tests.support.state_rows import write_rows
from tests.support.states import States, make_audit, make_snapshot

REPOSITORY = Path(__file__).parents[2]
BATCHES = 6
LOG = "/dags/orders/runs/manual__1/tasks/totals"


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with chromium() as browser:
        yield browser


@pytest.fixture
def page(browser: Browser) -> Iterator[Page]:
    page = browser.new_page(viewport={"width": 1280, "height": 800})
    page.set_default_timeout(TIMEOUT_MS)
    yield page
    page.close()


@pytest.fixture
def states(tmp_path: Path) -> States:
    """Six batches of orders of fifty locations, with audits, always the same."""
    states = orders_states(f"sqlite:///{tmp_path}", workers=4)
    pipeline = load_pipeline(REPOSITORY / "spark_jobs", "orders")
    states.ledger.generations.register(
        states.info(description=drawing.text(pipeline), picture=drawing.svg(pipeline))
    )
    busy = Busy(random.Random(7))
    for _ in range(BATCHES):
        publish(states, busy)
    return states


def publish(states: States, busy: Busy) -> None:
    """Publish a batch with its audit and its history, as a run does."""
    states.batch += 1
    batch, ledger = states.batch, states.ledger
    holder = Holder(host="h", pid=1, process="p")
    lease = ledger.leases.take(states.ref, holder, ledger.leases.get(states.ref))
    assert lease is not None
    rows = [row for kind in KINDS for row in busy.run(kind, batch)]
    everywhere = [(4, "store_1234", -1, -1, '[{"locationId":"store_1234"}]')]
    for number, place in enumerate(states.written_at):
        with create_shard(place) as shard:
            write_rows(
                shard,
                batch,
                [*everywhere, *(row for row in rows if owner(row[1], 4) == number)],
                lease.epoch,
            )
    published_at = datetime.now(UTC) - timedelta(
        seconds=95 * max(BATCHES - 1 - batch, 0) + (12 if batch < BATCHES else 0)
    )
    read = busy.counts["read"]
    source = SourceAudit(topic="orders", partition=0, start=0, end=read, read=read, applied=read)
    phases = {"start": 300 + 20 * batch, "state": 2_100 + 100 * batch, "audit": 150, "output": 420}
    begun = round(published_at.timestamp() * 1_000) - sum(phases.values())
    ledger.snapshots.publish(
        make_snapshot(
            batch, published_at=published_at, counts=busy.counts, run="orders/manual__1/totals"
        ),
        msgspec.structs.replace(make_audit(batch, lease.epoch, source), phases=phases),
        batch=Batch(
            number=batch, begun=begun, partitions={"orders": 2}, ends={"orders": {"0": read}}
        ),
    )
    ledger.leases.release(lease)


class Busy:
    """New orders, some of them bad."""

    def __init__(self, chance: random.Random) -> None:
        self.chance = chance
        self.weights = {
            f"store_{chance.randrange(2_000, 9_999)}": chance.uniform(0.4, 2) for _ in range(49)
        } | {"store_1234": 2.2}
        self.orders = {kind: dict.fromkeys(self.weights, 0) for kind in KINDS}
        self.counts: dict[str, int] = {}

    def run(self, kind: str, run: int) -> Iterator[tuple[int, str, int, int, str | None]]:
        made = {
            location: round(weight * self.chance.uniform(12, 24))
            for location, weight in self.weights.items()
        }
        for location, count in made.items():
            self.orders[kind][location] += count
            starts = [f"2022-12-05T08:{50 + run}:{second:02}" for second in (0, 15, 30, 45)]
            yield from windows(
                kind, location, dict.fromkeys(starts, (count // 4 + 1, f"{count * 6.25:.2f}"))
            )
        yield from totals(
            kind, {one: (count, f"{count * 24.5:.2f}") for one, count in self.orders[kind].items()}
        )
        self._count(sum(made.values()), run)

    def _count(self, applied: int, run: int) -> None:
        bad = {"malformed": 3 + run % 3, "digits": 2, "contract": run % 2}
        late = self.chance.choice([0, 0, 2])
        self.counts = {
            "read": applied + sum(bad.values()),
            "applied": applied,
            "rows": 100,
            "output/general_orders": applied // 2,
            "late/general_orders_count_window": late,
            **{f"dead_letter/{reason}": count for reason, count in bad.items()},
        }


@pytest.fixture
def api(states: States, monkeypatch: pytest.MonkeyPatch) -> Api:
    """The API over these states, with a log-in that may change the orders, and without a broker."""
    monkeypatch.setattr("sluice.kafka.unread_records.ANSWER_SECONDS", 0.1)
    api = Api(states.ledger, User(editable=("orders",)))
    began = datetime.now(UTC) - timedelta(seconds=40)
    succeeded = Run("manual__1", "success", began, began + timedelta(seconds=28), LOG, "run")
    api.runs.root = ""
    api.runs.states["orders"] = DagState(False, succeeded)
    api.runs.history["orders"] = [succeeded]
    return api


@pytest.fixture
def address(api: Api) -> Iterator[str]:
    with api.serve() as address:
        yield f"{address}/sluice/"
