"""Somebody who is on call finds the cause of an incident from the overview, in at most two clicks.

Each incident is staged as the program that notices it records it. `make incidents` causes incidents
with real processes, and times when each place names them.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path

import msgspec
import pytest
from playwright.sync_api import Browser, Page, expect

from sluice.api import services
from sluice.api.routes import dead_letter_routes
from sluice.api.runs import DagState, PoolWait
from sluice.engine.run.compatibility import CompatibilityError
from sluice.errors import HostSilent, RecordFailed, RecordsRejected, SluiceError
from sluice.kafka.unread_records import Lag
from sluice.state.ledger.failures import Failure
from sluice.topology import load_pipeline
from tests.browser import gallery, letters
from tests.support.airflow_browser import TIMEOUT_MS

pytestmark = pytest.mark.browser

MOST_CLICKS = 2


@dataclass
class OnCall:
    """A person at the page, who counts the clicks."""

    page: Page
    scene: gallery.Scene
    monkeypatch: pytest.MonkeyPatch
    stack: ExitStack
    clicks: int = field(default=0, init=False)

    def keep(self, failure: Failure) -> None:
        self.scene.api.ledger.failures.keep(failure)

    def open_overview(self) -> None:
        address = self.stack.enter_context(self.scene.api.serve())
        self.page.goto(f"{address}/sluice/")
        expect(self.page.locator("main h1")).to_be_visible()

    def alarm(self, text: str) -> None:
        """See a line of the overview that says this."""
        lines = self.page.get_by_role("alert", name="Failures").get_by_role("listitem")
        expect(lines.filter(has_text=text)).to_have_count(1)

    def click(self, name: str) -> None:
        self.page.get_by_role("link", name=name, exact=True).first.click()
        self.clicks += 1
        assert self.clicks <= MOST_CLICKS

    def read(self, text: str) -> None:
        expect(self.page.locator("main")).to_contain_text(re.compile(text))


@pytest.fixture
def on_call(browser: Browser, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[OnCall]:
    scene = gallery.demo(tmp_path)
    monkeypatch.setattr(services, "read_lag", scene.read_lag)
    monkeypatch.setattr(dead_letter_routes, "find_dead_letters", letters.find)
    page = browser.new_page(viewport={"width": 1280, "height": 800})
    page.set_default_timeout(TIMEOUT_MS)
    with ExitStack() as stack:
        yield OnCall(page, scene, monkeypatch, stack)
        page.goto("about:blank")
    page.close()


def failed_run(on_call: OnCall, error: SluiceError) -> None:
    run = on_call.scene.api.runs.history["orders"][0]
    failed = msgspec.structs.replace(run, state="failed")
    on_call.scene.api.runs.states["orders"] = DagState(False, failed)
    on_call.keep(Failure.of(error, "orders", run=f"orders/{run.run}/main"))


def test_a_broker_is_away(on_call: OnCall, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.undo()  # the page asks a broker, which does not answer
    monkeypatch.setattr("sluice.kafka.unread_records.ANSWER_SECONDS", 0.1)
    on_call.open_overview()
    on_call.alarm("The input is away. Kafka at 127.0.0.1:1 does not answer")
    on_call.click("Look at the pipeline")
    on_call.read(r"Is it fresh\?.*unknown.*Kafka at 127.0.0.1:1 does not answer")


def test_a_record_breaks_a_step(on_call: OnCall) -> None:
    pipeline = load_pipeline(gallery.EXAMPLES, "orders")
    step = next(node for node in pipeline.nodes if node.title.startswith("store "))
    what = f"{step.title} at {step.at} failed for the record of orders, partition 0, offset 1017"
    failed_run(on_call, RecordFailed(f"{what}: division by zero"))
    on_call.open_overview()
    on_call.alarm("partition 0, offset 1017: division by zero")
    on_call.click("orders")
    on_call.click("Topology")
    expect(on_call.page.locator(".drawing .failing")).to_contain_text(step.title)


def test_a_pipeline_lags_because_another_dag_has_taken_the_pool(on_call: OnCall) -> None:
    ends = {"orders": {0: 10_730_000, 1: 5}}
    on_call.monkeypatch.setattr(
        services, "read_lag", lambda _admin, _topics, positions: Lag(ends, positions, {})
    )
    queued = on_call.scene.api.runs.history["orders"][0]
    queued = msgspec.structs.replace(queued, state="queued", started_at=None, ended_at=None)
    since = datetime.now(UTC) - timedelta(minutes=12)
    holders = ("long_task of other_team (3 slots since 15:11:21 UTC)",)
    waits = PoolWait("spark", 3, since, holders, taken=3)
    on_call.scene.api.runs.states["orders"] = DagState(False, queued, waits)
    on_call.open_overview()
    on_call.read("730,005")
    on_call.alarm("All 3 slots are taken by long_task of other_team")
    on_call.click("Look at runs")
    on_call.read("give the pool spark more slots")


def test_a_state_server_is_away(on_call: OnCall) -> None:
    detail = "The state server at worker-2:8781 does not answer: connection refused."
    silent = HostSilent(detail)
    on_call.keep(Failure.of(silent, "orders", kind="host", host="worker-2:8781"))
    on_call.open_overview()
    on_call.alarm("worker-2:8781 does not answer")
    on_call.click("Look at shards")
    on_call.read("worker-2:8781")
    expect(on_call.page.get_by_role("region", name="Shards")).to_be_visible()


def test_a_changed_topology_is_refused(on_call: OnCall) -> None:
    detail = (
        "orders has changed since its state was computed: store general_orders_count has another "
        "window. No records were read."
    )
    next_step = "Compute only what has changed: sluice rebuild orders --changed-only."
    failed_run(on_call, CompatibilityError(detail, next_step=next_step))
    on_call.open_overview()
    on_call.alarm("store general_orders_count has another window")
    on_call.click("orders")
    button = on_call.page.get_by_role("button", name="Compute what has changed…")
    expect(button).to_be_visible()


def test_a_producer_floods_the_dead_letters(on_call: OnCall) -> None:
    rejected = RecordsRejected(
        "412 records of the newest batch's 4,000 were rejected. contract: 412.",
        next_step="Look at the dead letters.",
    )
    on_call.keep(Failure.of(rejected, "orders", kind="rejections"))
    on_call.open_overview()
    on_call.alarm("412 records of the newest batch's 4,000 were rejected")
    on_call.click("Look at dead letters")
    on_call.read("orderType: invalid value 'KITCHEN'")
