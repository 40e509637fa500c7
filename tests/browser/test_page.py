"""The page in a real browser.

With `-m ""`, `SLUICE_SCREENSHOTS=1` puts the pictures into docs/images; without it they go to the
test's own folder.
"""

from __future__ import annotations

import os
import random
import re
from collections.abc import Iterator
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from urllib.parse import quote

import httpx
import msgspec
import pytest
from axe_playwright_python.sync_playwright import Axe
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient
from playwright.sync_api import Browser, Page, Route, expect
from sqlalchemy import make_url

from sluice.api.runs import DagState
from sluice.errors import EngineError, InputAway, Overdue, RecordsRejected, TopologyError
from sluice.kafka import dead_letter_topic
from sluice.kafka.topics import Topic, create_topics, read_topic
from sluice.local.broker import EmbeddedKafka
from sluice.state.ledger.failures import Failure
from sluice.state.model import GenerationRef
from tests.browser.conftest import LOG, Busy, publish
from tests.support.api_client import Api, User
from tests.support.states import States

pytestmark = pytest.mark.browser

IMAGES = Path(__file__).parents[2] / "docs" / "images"
IMAGE = "<img src=x onerror=document.title='broken'>"
HOSTILE = f"{IMAGE}<script>document.title='broken'</script>"
SCRIPTED = (
    '<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 9 9" width="9" height="9" '
    "onload=\"document.documentElement.id='broken'\"><script>document.documentElement.id='broken'</script>"
    "<g data-number='0' data-inputs='' data-name='&lt;b>x&lt;/b>' onclick=\"document.documentElement.id='broken'\">"
    "<title>stream &lt;b>x&lt;/b></title>"
    '<rect x="1" y="1" width="5" height="5"/><text x="2" y="2">&lt;b>x&lt;/b></text></g></svg>'
)
VIEWS = {
    "pipelines": "#/",
    "pipeline": "#/pipelines/orders",
    "topology": "#/pipelines/orders/topology?node=6",
    "runs": "#/pipelines/orders/runs",
    "pipeline-stores": "#/pipelines/orders/stores",
    "shards": "#/pipelines/orders/shards",
    "activity": "#/pipelines/orders/activity",
    "stores": "#/stores",
    "windows": "#/pipelines/orders/stores/general_orders_count_window?key=store_1234",
    "values": "#/pipelines/orders/stores/general_orders_revenue?prefix=store_1",
    "diff": "#/pipelines/orders/stores/general_orders_count?before=1.3",
    "dead-letters": "#/pipelines/orders/dead-letters",
}
KEPT = {
    ("pipelines", "light", 1280),
    *(("pipeline", *look) for look in (("light", 1280), ("dark", 1280), ("light", 400))),
}
"""The pictures in docs/images."""


@pytest.fixture(scope="module")
def broker(kafka: EmbeddedKafka) -> Iterator[dict[str, str]]:
    """A broker with two dead letters of the orders, one with markup in every text."""
    settings = {"bootstrap.servers": kafka.bootstrap}
    topic = dead_letter_topic.topic_of("orders")
    create_topics(settings, [Topic("orders"), Topic(topic)])
    producer = Producer(settings)
    for value, reason in ((b"not json", "malformed"), (HOSTILE.encode(), HOSTILE)):
        texts = {
            "reason": reason,
            "detail": HOSTILE,
            "topic": "orders",
            "partition": "0",
            "offset": "0",
        }
        headers: list[tuple[str, str | bytes | None]] = [
            (f"sluice.{name}", text.encode()) for name, text in texts.items()
        ]
        producer.produce(topic, value, HOSTILE.encode(), headers=[*headers, (HOSTILE, b"x")])
    assert producer.flush(30) == 0
    yield settings
    # The broker is also the broker of other tests, and the topics have the names of an example.
    admin = AdminClient({**settings})
    for deleted in admin.delete_topics(["orders", topic]).values():
        deleted.result(20)


@pytest.fixture
def letters(broker: dict[str, str], api: Api, monkeypatch: pytest.MonkeyPatch) -> dict[str, str]:
    """The API over this broker."""
    monkeypatch.undo()  # a broker that answers has the usual time
    api.kafka = broker
    return broker


def is_harmless(page: Page) -> bool:
    """Whether no markup became part of the page. Markup that cannot run is a failure, too."""
    made: int = page.locator("img[src=x], script:not([src]), b:text-is('x')").count()
    return made == 0 and page.title() != "broken" and page.locator("#broken").count() == 0


@pytest.mark.parametrize(
    ("scheme", "width"),
    [
        ("dark", 400),
        pytest.param("light", 1280, marks=pytest.mark.heavy),  # as in the other tests
        pytest.param("dark", 1280, marks=pytest.mark.heavy),
        pytest.param("light", 400, marks=pytest.mark.heavy),
    ],
)
def test_every_view_is_accessible_and_as_wide_as_the_window(
    browser: Browser,
    address: str,
    api: Api,
    letters: object,
    tmp_path: Path,
    scheme: str,
    width: int,
) -> None:
    page = browser.new_page(
        viewport={"width": width, "height": 800},
        color_scheme="dark" if scheme == "dark" else "light",
    )
    errors: list[str] = []
    page.on("pageerror", lambda error: errors.append(str(error)))
    folder = IMAGES if os.environ.get("SLUICE_SCREENSHOTS") else tmp_path
    for name, view in VIEWS.items():
        page.goto("about:blank")
        page.goto(address + view)
        expect(page.locator("main h1")).to_be_visible()
        expect(page.locator("html")).to_have_attribute("data-theme", scheme)
        expect(page.locator("#live")).to_have_text("Live")
        found = Axe().run(
            page,
            options={"resultTypes": ["violations"], "runOnly": ["wcag2a", "wcag2aa", "wcag21aa"]},
        )
        assert found.violations_count == 0, f"{name}: {found.generate_report()}"
        assert page.evaluate("document.documentElement.scrollWidth") <= width, name
        if (name, scheme, width) in KEPT:
            suffix = ("-dark" if scheme == "dark" else "") + ("-400" if width == 400 else "")
            page.screenshot(path=folder / f"page-{name}{suffix}.png", full_page=False)
    assert errors == []
    page.close()


def test_a_failed_a_broken_and_a_paused_pipeline_come_first_and_link_to_their_logs(
    page: Page, address: str, api: Api, states: States
) -> None:
    page.goto(address)
    expect(page.locator("tbody tr")).to_have_count(1)
    expect(page.locator("tbody tr .badge").first).to_have_text("waiting")  # no broker answers
    # It appears by itself.
    failed = EngineError(f"Kafka at 127.0.0.1:9092 does not answer. {HOSTILE}")
    run = api.runs.history["orders"][0]
    api.runs.states["orders"] = DagState(True, msgspec.structs.replace(run, state="failed"))
    states.ledger.failures.keep(Failure.of(failed, "orders", run="orders/manual__1/totals"))
    states.ledger.failures.set_files(
        [Failure.of(TopologyError(f"fraud.py:3: {HOSTILE}"), "fraud", kind="file")]
    )
    # Both have the same cause, which is one line.
    for name in ("fraud", "orders"):
        states.ledger.failures.keep(Failure.of(InputAway("Old rows stay."), name, kind="retention"))
    expect(page.locator("#failures li")).to_have_count(4)
    expect(page.locator("#failures li").nth(1)).to_contain_text("2 pipelines (fraud, orders)")
    expect(page.locator("#failures li").first).to_contain_text("Invalid topology")
    expect(page.locator("#failures li").first).to_contain_text(HOSTILE)
    log = page.locator("#failures li").last.get_by_role("link", name="Open the log")
    expect(log).to_have_attribute("href", LOG)
    expect(page.locator("tbody th")).to_have_text(["fraud", "orders"])
    expect(page.locator("tbody tr").last).to_contain_text("failed paused")
    page.get_by_role("link", name="broken 1").click()
    expect(page.locator("tbody th")).to_have_text(["fraud"])
    assert page.url.endswith("#/?health=broken")
    page.get_by_role("link", name="all 2").click()
    page.get_by_role("button", name="Pipeline").click()
    page.get_by_role("button", name="Pipeline").click()
    expect(page.locator("tbody th")).to_have_text(["orders", "fraud"])
    page.get_by_label("Filter by name").press_sequentially("FRA")
    expect(page.locator("tbody th")).to_have_text(["fraud"])
    expect(page.get_by_label("Filter by name")).to_be_focused()
    assert "name=FRA" in page.url
    assert is_harmless(page)


def test_old_data_and_the_failed_run_are_both_shown(
    page: Page, address: str, states: States
) -> None:
    failures = states.ledger.failures
    failures.keep(Failure.of(EngineError("The driver ended."), "orders"))
    failures.keep(
        Failure.of(
            Overdue("5 records have been unread for more than 10 min."), "orders", kind="overdue"
        )
    )
    for view in ("#/", "#/pipelines/orders"):
        page.goto("about:blank")
        page.goto(address + view)
        lines = page.get_by_role("alert", name="Failures").get_by_role("listitem")
        expect(lines).to_have_count(3)
        expect(lines.nth(0)).to_contain_text("The data are too old")
        expect(lines.nth(1)).to_contain_text("The run stopped")
        expect(lines.nth(2)).to_contain_text("Kafka at 127.0.0.1:1 does not answer")
        found = Axe().run(
            page,
            options={"resultTypes": ["violations"], "runOnly": ["wcag2a", "wcag2aa", "wcag21aa"]},
        )
        assert found.violations_count == 0, found.generate_report()


def test_what_a_pipeline_waits_for_and_why_it_is_degraded_are_shown(
    page: Page, address: str, states: States
) -> None:
    failures = states.ledger.failures
    failures.keep(Failure.of(InputAway("Topic orders does not exist."), "orders", kind="input"))
    flood = RecordsRejected(
        "50 records of the newest batch's 110 were rejected. contract: 50.",
        next_step="Look at them.",
    )
    failures.keep(Failure.of(flood, "orders", kind="rejections"))
    for view in ("#/", "#/pipelines/orders"):
        page.goto("about:blank")
        page.goto(address + view)
        lines = page.get_by_role("alert", name="Failures").get_by_role("listitem")
        expect(lines).to_have_count(2)
        expect(lines.first).to_contain_text("The input is away")
        expect(lines.first).to_contain_text(
            "Topic orders does not exist. The pipeline starts by itself"
        )
        expect(lines.last).to_contain_text("Too many records were rejected")
        expect(page.locator(".badge.waiting").first).to_be_visible()
        found = Axe().run(
            page,
            options={"resultTypes": ["violations"], "runOnly": ["wcag2a", "wcag2aa", "wcag21aa"]},
        )
        assert found.violations_count == 0, found.generate_report()


def test_a_new_snapshot_and_its_counts_appear_by_themselves(
    page: Page, address: str, states: States
) -> None:
    page.goto(f"{address}#/pipelines/orders")
    page.get_by_text("Newest batches with their audits").click()
    batches = page.get_by_role("region", name="Batches").locator("tbody tr")
    expect(batches).to_have_count(6)
    expect(batches.first).to_contain_text("1.5")
    expect(batches.first.get_by_role("link", name="log")).to_have_attribute(
        "href", "/dags/orders/runs/manual__1/tasks/totals"
    )
    publish(states, Busy(random.Random(1)))
    expect(batches).to_have_count(7)
    expect(page.get_by_role("heading", name="Orders by location")).to_be_visible()
    page.get_by_role("link", name="Stores", exact=True).last.click()
    expect(page.locator("#view")).to_contain_text("windows of 15 s")
    expect(page.locator("#view")).to_contain_text("runningOrderCount, runningRevenue")
    page.get_by_role("link", name="Topology").click()
    drawing = page.locator(".drawing")
    expect(drawing.locator(".box.source").first).to_contain_text("stream orders")
    expect(drawing.locator(".flow title").first).to_contain_text("records read")


def test_keys_ranges_windows_and_earlier_snapshots_are_found(page: Page, address: str) -> None:
    page.goto(f"{address}#/pipelines/orders/stores/general_orders_revenue")
    page.get_by_label("Key", exact=True).fill("store_1234")
    page.get_by_role("button", name="Search").press("Enter")
    row = page.get_by_role("region", name="Values").locator("tbody tr")
    expect(row).to_have_count(1)
    exact = httpx.get(f"{address}v1/stores/general_orders_revenue/keys/store_1234").text
    assert f'"runningRevenue":{row.locator("td").last.inner_text().split()[-1]}' in exact
    page.get_by_text("Link and curl").click()
    expect(page.locator("details pre")).to_contain_text(
        "/sluice/v1/stores/general_orders_revenue/keys/store_1234?pipeline=orders'"
    )
    view = page.locator("details a").get_attribute("href")
    assert view is not None
    page.goto("about:blank")
    page.goto(view)
    expect(row).to_have_count(1)
    page.get_by_label("As of").fill("1.99")
    page.get_by_role("button", name="Search").click()
    expect(page.get_by_text("There is no snapshot 1.99")).to_be_visible()
    page.goto(f"{address}#/pipelines/orders/stores/general_orders_count_window?key=store_1234")
    charts = page.get_by_role("img", name="by window")
    expect(charts.first).to_have_attribute("aria-label", re.compile("Value by window. Value: last"))
    expect(charts.first.locator("canvas")).to_be_visible()
    page.goto(f"{address}#/pipelines/orders/stores/general_orders_revenue?key=..")
    expect(page.get_by_text("0 entries of snapshot")).to_be_visible()


def test_a_field_may_have_any_name_and_numbers_are_right_aligned(
    page: Page, address: str, states: States
) -> None:
    made = States(states.database, pipeline="visits", workers=1)
    made.stores = (made.store("by_day", value="struct<source:string,visits:bigint>"),)
    made.ledger.generations.register(made.info())
    made.publish({"monday": '[{"source":"web","visits":9007199254740993}]'})
    page.goto(f"{address}#/pipelines/visits/stores/by_day")
    cells = page.get_by_role("region", name="Values").locator("tbody td")
    expect(cells).to_have_text(["web", "9007199254740993"])
    expect(cells.first).not_to_have_class("number")
    expect(cells.last).to_have_class("number")


def test_a_replay_is_started_after_a_question(page: Page, address: str, api: Api) -> None:
    page.goto(f"{address}#/pipelines/orders")
    page.get_by_role("button", name="Replay…").click()
    page.get_by_role("button", name="Cancel").click()
    assert api.runs.started == []
    page.get_by_role("button", name="Replay…").click()
    page.get_by_role("button", name="Replay into a new generation").click()
    expect(page.locator("#done")).to_contain_text("manual__1 is queued")
    generations = page.get_by_role("link", name="look at the new generation")
    expect(generations).to_have_attribute("href", "#/pipelines/orders/shards")
    page.get_by_role("button", name="Replay…").click()
    page.get_by_label("From", exact=True).fill("beginning")
    page.get_by_label("Until", exact=True).fill("orders/0/12")
    with page.expect_response(lambda response: response.request.method == "POST"):
        page.get_by_role("button", name="Replay into a new generation").click()
    page.get_by_role("link", name="Activity").click()
    did = page.get_by_role("region", name="Activity").locator("tbody tr")
    expect(did).to_have_count(2)
    expect(did.first).to_contain_text("ada")
    expect(did.first).to_contain_text("from beginning, until orders/0/12")
    page.get_by_role("link", name="Overview", exact=True).click()
    part = {"action": "replay", "from": "beginning", "until": "orders/0/12"}
    assert api.runs.started == [("orders", {"action": "replay"}, "ada"), ("orders", part, "ada")]
    page.get_by_role("button", name="Replay…").click()
    page.get_by_label("From", exact=True).fill("yesterday")
    page.get_by_role("button", name="Replay into a new generation").click()
    expect(page.locator("dialog").get_by_role("alert")).to_contain_text(
        "from is not a point in the topics"
    )
    expect(page.get_by_label("From", exact=True)).to_be_focused()
    assert len(api.runs.started) == 2
    page.get_by_label("From", exact=True).fill("beginning")
    page.keyboard.press("Enter")
    expect(page.locator("#done")).to_contain_text("is queued")
    expect(page.locator("dialog")).to_have_count(0)
    assert api.runs.started[2:] == [("orders", {"action": "replay", "from": "beginning"}, "ada")]
    api.user = User()
    page.reload()
    expect(page.get_by_role("button", name="Run now")).to_have_count(0)


@pytest.mark.attack("S6", "script in a dead letter's reason, error, key, value and headers")
def test_a_dead_letter_is_shown_as_text_and_re_driven_once(
    page: Page, address: str, letters: dict[str, str]
) -> None:
    page.goto(f"{address}#/pipelines/orders/dead-letters")
    groups = page.get_by_role("region", name="Groups of dead letters").locator("tbody tr")
    expect(groups).to_have_count(2)
    hostile = groups.filter(has=page.locator(".badge", has_text=IMAGE))
    hostile.get_by_role("link", name="Open").click()
    page.get_by_text("Record, headers and contract").click()
    expect(page.get_by_label("Value")).to_have_value(HOSTILE)
    assert is_harmless(page)
    groups.filter(has_text="not json").get_by_role("link", name="Open").click()
    letter = page.get_by_role("article")
    expect(letter).to_contain_text("malformed")
    letter.get_by_role("button", name="Re-drive", exact=True).click()
    page.locator("dialog").get_by_role("button", name="Re-drive").click()
    expect(page.locator("#done")).to_contain_text("1 re-driven")
    expect(letter).to_contain_text("re-driven")
    expect(groups.filter(has_text="not json")).to_contain_text("none failed again")
    # Other tests of this process write orders to the same broker.
    assert [record.value() for record in read_topic(letters, "orders")].count(b"not json") == 1


def refresh_until(page: Page, selector: str, text: str) -> None:
    """Let the time for the next refresh pass until the page shows the text: the API caches for a second."""
    for _ in range(60):
        page.clock.fast_forward("00:11")
        with suppress(AssertionError):
            expect(page.locator(selector)).to_contain_text(text, timeout=1_000)
            return
    expect(page.locator(selector)).to_contain_text(text)


def test_trouble_is_reported_and_what_was_shown_stays(
    page: Page, address: str, states: States
) -> None:
    page.clock.install()
    page.goto(f"{address}#/stores")
    expect(page.locator("tbody tr")).to_have_count(9)
    shard = Path(make_url(states.location(2)).database or "")
    away = shard.rename(shard.with_suffix(".away"))
    refresh_until(page, "tbody tr:first-child", "worker 2")
    away.rename(shard)

    def refuse(route: Route) -> None:
        route.fulfill(status=503, json={"detail": HOSTILE, "nextStep": "Start it."})

    page.route("**/sluice/v1/stores*", refuse)
    refresh_until(page, "#trouble", f"{HOSTILE} Start it.")
    expect(page.locator("tbody tr")).to_have_count(9)
    assert is_harmless(page)


@pytest.fixture
def hostile(states: States) -> States:
    """A pipeline with markup in every text: names, types, values, errors, topology."""
    made = States(states.database, pipeline="hostile", workers=1)
    made.stores = (made.store(IMAGE, key=HOSTILE, value=HOSTILE),)
    made.ledger.generations.register(made.info(description=HOSTILE, picture=SCRIPTED))
    counts = {f"late/{HOSTILE}": 1, f"failed/{HOSTILE}": 2, f"dead_letter/{HOSTILE}": 3}
    made.publish(
        {HOSTILE: msgspec.json.encode([HOSTILE]).decode()},
        counts=counts,
        run=f"{HOSTILE}/{HOSTILE}/x",
        published_at=datetime.now(UTC),
    )
    return made


@pytest.mark.attack(
    "S6", "script in names, types, keys, values, a worker's trouble, reasons, a topology"
)
def test_markup_in_any_text_stays_text(page: Page, address: str, hostile: States) -> None:
    for view in (
        "#/",
        "#/stores",
        "#/pipelines/hostile",
        f"#/pipelines/hostile/stores/{quote(IMAGE)}",
    ):
        page.goto("about:blank")
        page.goto(address + view)
        expect(page.locator("main h1")).to_be_visible()
        expect(page.locator("main")).to_contain_text(
            "<img" if "pipelines/" in view or view == "#/stores" else "hostile"
        )
        assert is_harmless(page), view
    expect(page.get_by_role("region", name="Values")).to_contain_text(HOSTILE)
    hostile.ledger.quarantine.add(GenerationRef("hostile", 1), 0, HOSTILE)
    page.goto(f"{address}#/pipelines/hostile/topology?node=0")
    expect(page.locator(".drawing .name")).to_have_text("stream <b>x</b>")
    assert is_harmless(page)
    page.goto(f"{address}#/pipelines/hostile/runs")
    expect(page.get_by_role("region", name="Runs")).to_be_visible()
    assert is_harmless(page)
    page.goto(f"{address}#/pipelines/hostile/shards")
    expect(page.get_by_role("region", name="Shards")).to_contain_text(HOSTILE)
    assert is_harmless(page)


ANSWERS = {
    f"stores/{quote(IMAGE)}": 200,
    f"stores/{quote(IMAGE)}/nothing": 404,
    f"stores/general_orders_count?as_of={quote(HOSTILE)}": 400,
    f"stores/general_orders_count?limit={quote(HOSTILE)}": 422,
    "overview": 200,
    "pipelines/hostile/batches": 200,
    "pipelines/hostile/topology": 200,
    "pipelines/hostile/topology?format=svg": 200,
}


@pytest.mark.attack(
    "S6", "a link to an answer that holds script, opened in the browser that is logged in"
)
def test_a_response_opened_as_a_page_runs_no_script(
    page: Page, address: str, hostile: States
) -> None:
    for path, status in ANSWERS.items():
        answer = page.goto(f"{address}v1/{path}")
        assert answer is not None
        assert (answer.status, answer.headers["x-content-type-options"]) == (status, "nosniff"), (
            path
        )
        assert "html" not in answer.headers["content-type"]
        page.wait_for_timeout(100)
        if "svg" in path:
            assert page.locator("svg").count() == 1
            assert page.locator("#broken").count() == 0
        else:
            assert is_harmless(page), path
