"""The page in Airflow's navigation, in a real browser.

`SLUICE_SCREENSHOTS=1` puts the pictures into docs/images; without it they go to the test's own folder.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import quote

import msgspec
import pytest
from playwright.sync_api import Frame, FrameLocator, Page, expect
from sqlalchemy import make_url

from sluice.errors import EngineError, TopologyError
from sluice.state.ledger.failures import Failure
from sluice.state.model import JobRef
from tests.airflow_browser import browser_page
from tests.airflow_server import AirflowServer
from tests.api.states import totals
from tests.states import States

pytestmark = pytest.mark.browser

IMAGES = Path(__file__).parents[2] / "docs" / "images"
IMAGE = "<img src=x onerror=document.title='broken'>"
HOSTILE = f"{IMAGE}<script>document.title='broken'</script>"
SCRIPTED = (
    '<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 9 9" onload="document.documentElement.id=\'broken\'">'
    "<script>document.documentElement.id='broken'</script></svg>"
)


@pytest.fixture
def page(airflow: AirflowServer) -> Iterator[Page]:
    with browser_page(airflow) as page:
        yield page


def open_sluice(page: Page) -> FrameLocator:
    page.get_by_role("link", name="Sluice").click()
    return page.frame_locator("iframe")


def pictures(tmp_path: Path) -> Path:
    folder = IMAGES if os.environ.get("SLUICE_SCREENSHOTS") else tmp_path
    folder.mkdir(parents=True, exist_ok=True)
    return folder


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_the_page_shows_stores_workers_runs_and_orders(airflow: AirflowServer, tmp_path: Path, scheme: str) -> None:
    with browser_page(airflow, scheme) as page:
        errors: list[str] = []
        page.on("pageerror", lambda error: errors.append(str(error)))
        sluice = open_sluice(page)
        expect(sluice.locator("#stores tr")).to_have_count(9)
        expect(sluice.locator("#health")).to_have_text("All workers answer")
        expect(sluice.locator("#workers-figure")).to_have_text("4 / 4")
        expect(sluice.locator("#snapshots tr")).to_have_count(6)
        expect(sluice.locator("#snapshots tr").first).to_contain_text("1.5")
        expect(sluice.locator("#reasons")).to_contain_text("malformed: 24")
        expect(sluice.locator("#chart .bar")).to_have_count(12)
        expect(sluice.locator("#chart .bar").first).to_contain_text("store_1234")
        expect(sluice.locator("#chart-note")).to_contain_text("at 50 locations")
        expect(sluice.get_by_alt_text("Topology of orders")).to_be_visible()
        expect(sluice.locator("html")).to_have_attribute("data-theme", scheme)
        page.wait_for_function("document.fonts.ready.then(() => true)")
        page.wait_for_timeout(500)  # the bars are animated
        suffix = "" if scheme == "light" else f"-{scheme}"
        page.screenshot(path=pictures(tmp_path) / f"airflow-page{suffix}.png")
        assert errors == []


def test_the_chart_shows_the_values_of_the_rest_api(airflow: AirflowServer, page: Page) -> None:
    sluice = open_sluice(page)
    with airflow.client("viewer") as client:
        counts = {
            kind: client.get(f"/v1/orders/count/{kind}_orders?location_id=store_1234").json()["orderCount"]
            for kind in ("general", "restaurant")
        }
    bar = sluice.locator("#chart .bar", has_text="store_1234")
    expect(bar.locator(".number")).to_have_text(f"{sum(counts.values()):,}")
    expect(bar).to_have_attribute(
        "title", f"store_1234: {counts['general']:,} general, {counts['restaurant']:,} restaurant"
    )


def test_a_page_documents_the_rest_api(page: Page) -> None:
    sluice = open_sluice(page)
    sluice.get_by_role("link", name="REST view").click()
    expect(sluice.get_by_text("/v1/orders/count/{order_type}")).to_be_visible()
    sluice.get_by_role("link", name="Back to the page").click()
    expect(sluice.locator("#stores tr")).to_have_count(9)


def test_an_empty_page_suggests_the_next_step(page: Page) -> None:
    for path in ("stores", "pipelines"):
        page.route(f"**/sluice/v1/{path}*", lambda route: route.fulfill(json=[]))
    sluice = open_sluice(page)
    expect(sluice.locator("#empty")).to_contain_text("produce_sample_orders")
    expect(sluice.locator("#content")).to_be_hidden()


def test_a_lost_worker_and_an_unreadable_ledger_are_reported(page: Page, states: States) -> None:
    sluice = open_sluice(page)
    expect(sluice.locator("#health")).to_have_text("All workers answer")
    shard = Path(make_url(states.location(2)).database or "")
    away = shard.rename(shard.with_suffix(".away"))
    try:
        expect(sluice.locator("#health")).to_have_text("1 of 4 workers unavailable", timeout=15_000)
        expect(sluice.locator("#stores tr").first.locator(".worker.unavailable")).to_have_text("2")
    finally:
        away.rename(shard)
    expect(sluice.locator("#health")).to_have_text("All workers answer", timeout=15_000)

    problem = {"status": 503, "json": {"detail": "The ledger is away.", "nextStep": "Start it."}}
    page.route("**/sluice/v1/stores*", lambda route: route.fulfill(**problem))
    expect(sluice.locator("#trouble")).to_contain_text("The ledger is away. Start it.", timeout=15_000)


@pytest.mark.attack("S6", "script in the errors of a broken and of a failed pipeline")
def test_a_failed_and_a_broken_pipeline_are_red(page: Page, states: States, tmp_path: Path) -> None:
    failures = states.ledger.failures
    failed = EngineError(f"Kafka at 127.0.0.1:9092 does not answer. {HOSTILE}")
    failures.add(Failure.of(failed, "orders", "main", run="orders/scheduled__2026-11-21/main"))
    failures.set_files([Failure.of(TopologyError(f"fraud.py:3 cannot be imported: {HOSTILE}"), "fraud", kind="file")])
    try:
        sluice = open_sluice(page)
        expect(sluice.locator("#health")).to_have_text("2 pipelines failed")
        expect(sluice.locator("#health")).to_have_class("pill bad")
        expect(sluice.locator("#failures li")).to_have_count(2)
        expect(sluice.locator("#failures li").first).to_contain_text("fraud cannot be loaded")
        expect(sluice.locator("#failures li").first).to_contain_text(f"fraud.py:3 cannot be imported: {HOSTILE}")
        expect(sluice.locator("#failures li").last).to_contain_text("orders / main failed")
        expect(sluice.locator("#failures li").last).to_contain_text("run orders/scheduled__2026-11-21/main")
        expect(sluice.locator("#stores tr").first.locator("td.some")).to_have_text("orders")
        page.screenshot(path=tmp_path / "failed.png")
        assert is_harmless(page.frames[-1])
        failures.set_files([])
        expect(sluice.locator("#health")).to_have_text("orders failed", timeout=15_000)
    finally:
        failures.set_files([])
        failures.clear("orders", "main")
    expect(sluice.locator("#health")).to_have_text("All workers answer", timeout=15_000)
    expect(sluice.locator("#failures")).to_be_hidden()


@pytest.mark.attack("S6", "script in a key and in a dead letter's reason")
def test_a_new_snapshot_appears_and_markup_in_a_key_stays_text(page: Page, states: States) -> None:
    sluice = open_sluice(page)
    expect(sluice.locator("#snapshots tr").first).to_contain_text("1.5")
    states.publish(totals("general", {HOSTILE: (1_000_000, "1.00")}), counts={f"dead_letter/{HOSTILE}": 3})
    expect(sluice.locator("#chart .bar").first).to_contain_text(HOSTILE, timeout=15_000)
    expect(sluice.locator("#reasons")).to_contain_text(f"{HOSTILE}: 3")
    assert page.frames[-1].title() == "Sluice"


@pytest.fixture(scope="module")
def hostile(states: States) -> States:
    """A pipeline with markup in every text: names, types, values, errors, topology."""
    made = States(states.database, pipeline="hostile", workers=1)
    made.stores = (made.store(IMAGE, key=HOSTILE, value=HOSTILE),)
    made.ledger.jobs.register(made.info(description=HOSTILE, drawing=HOSTILE, picture=SCRIPTED))
    counts = {f"late/{HOSTILE}": 1, f"failed/{HOSTILE}": 2}
    made.publish({HOSTILE: msgspec.json.encode([HOSTILE]).decode()}, counts=counts, run=HOSTILE)
    made.ledger.quarantine.add(JobRef("hostile", "totals", 1), 0, HOSTILE)
    return made


def is_harmless(frame: Frame) -> bool:
    """Whether no markup became part of the page; that it cannot run is not enough."""
    made: int = frame.locator("img[src=x], script:not([src])").count()
    return made == 0 and "broken" not in frame.title() and frame.locator("#broken").count() == 0


@pytest.mark.attack("S6", "script in names, types, values, reasons, error texts, a topology")
def test_markup_in_any_text_stays_text(page: Page, hostile: States) -> None:
    sluice = open_sluice(page)
    row = sluice.locator("#stores tr", has_text="hostile")
    expect(row.locator(".name")).to_have_text(IMAGE)
    expect(row.locator(".badge")).to_have_attribute("title", HOSTILE)
    expect(row.locator(".worker")).to_have_attribute("title", f"worker 0: {HOSTILE}")
    expect(sluice.locator("#reasons")).to_contain_text(f"late for {HOSTILE}: 1")
    expect(sluice.locator("#reasons")).to_contain_text(f"failed in {HOSTILE}: 2")
    expect(sluice.get_by_alt_text("Topology of hostile")).to_be_attached()
    page.route("**/sluice/v1/stores*", lambda route: route.fulfill(status=503, json={"detail": HOSTILE}))
    expect(sluice.locator("#trouble")).to_contain_text(HOSTILE, timeout=15_000)
    assert is_harmless(page.frames[-1])


ANSWERS = {
    f"stores/{quote(IMAGE)}": 200,
    f"stores/{quote(IMAGE)}/keys/{quote(HOSTILE)}": 503,
    f"stores/{quote(IMAGE)}/nothing": 404,
    f"stores/{quote(IMAGE[1:])}": 404,
    f"stores/general_orders_count?as_of={quote(HOSTILE)}": 400,
    f"stores/general_orders_count?limit={quote(HOSTILE)}": 422,
    "stores": 200,
    "pipelines/hostile/snapshots": 200,
    "pipelines/hostile/workers": 200,
    "pipelines/hostile/topology": 200,
    "pipelines/hostile/topology?format=mermaid": 200,
    "pipelines/hostile/topology?format=svg": 200,
}


@pytest.mark.attack("S6", "a link to a response with script, opened in a logged-in browser")
def test_a_response_opened_as_a_page_runs_no_script(airflow: AirflowServer, page: Page, hostile: States) -> None:
    for path, status in ANSWERS.items():
        answer = page.goto(f"{airflow.url}/sluice/v1/{path}")
        assert answer is not None
        assert (answer.status, answer.headers["x-content-type-options"]) == (status, "nosniff"), path
        assert "html" not in answer.headers["content-type"]
        page.wait_for_timeout(100)
        if "svg" in path:
            assert page.locator("svg").count() == 1
            assert page.locator("#broken").count() == 0
        else:
            assert is_harmless(page.main_frame), path
