"""What each view of the page shows, over made histories of many pipelines, in a real browser."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from datetime import UTC, datetime
from pathlib import Path
from urllib.parse import quote

import pytest
from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import Browser, ConsoleMessage, Page, Route, expect

from sluice.answers import Run
from sluice.api import services
from sluice.api.page.first_view import first_view_modules
from sluice.api.page.page import STATIC
from sluice.api.routes import dead_letter_routes
from sluice.commands.topology_file import topology_file
from sluice.errors import RecordFailed
from sluice.state.ledger.failures import Failure
from sluice.topology import load_pipeline
from tests.browser import gallery, letters
from tests.support.airflow_browser import TIMEOUT_MS

pytestmark = pytest.mark.browser

Open = Callable[[gallery.Scene, str], Page]
MOST_BYTES = 150_000
"""The most that the first view may weigh, without compression."""


@pytest.fixture(scope="module")
def demo(tmp_path_factory: pytest.TempPathFactory) -> gallery.Scene:
    return gallery.demo(tmp_path_factory.mktemp("demo"))


@pytest.fixture(scope="module")
def many(tmp_path_factory: pytest.TempPathFactory) -> gallery.Scene:
    return gallery.many(tmp_path_factory.mktemp("many"), 7)


@pytest.fixture
def page(browser: Browser) -> Iterator[Page]:
    page = browser.new_page(viewport={"width": 1280, "height": 800})
    page.set_default_timeout(TIMEOUT_MS)
    errors: list[str] = []
    page.on("pageerror", lambda error: errors.append(str(error)))

    def note(message: ConsoleMessage) -> None:
        # The answer for a missing key has the status 404.
        is_missing_key = "/keys/" in message.location["url"]
        if message.type == "error" and not is_missing_key:
            errors.append(message.text)

    page.on("console", note)
    yield page
    page.close()
    assert errors == []


@pytest.fixture
def open_view(page: Page, monkeypatch: pytest.MonkeyPatch) -> Iterator[Open]:
    """Opens a view of a scene."""
    monkeypatch.setattr(dead_letter_routes, "find_dead_letters", letters.find)
    with ExitStack() as stack:

        def open_it(scene: gallery.Scene, view: str) -> Page:
            monkeypatch.setattr(services, "read_lag", scene.read_lag)
            # Each test has its own event loop, and so its own app.
            scene.api.__dict__.pop("app", None)
            address = stack.enter_context(scene.api.serve())
            page.goto(f"{address}/sluice/{view}")
            expect(page.locator("main h1")).to_be_visible()
            return page

        yield open_it
        page.goto("about:blank")


def is_accessible(page: Page) -> bool:
    found = Axe().run(
        page,
        options={"resultTypes": ["violations"], "runOnly": ["wcag2a", "wcag2aa", "wcag21aa"]},
    )
    assert found.violations_count == 0, found.generate_report()
    return True


def test_pipelines_that_have_never_run_are_calm_and_last(
    open_view: Open, demo: gallery.Scene
) -> None:
    page = open_view(demo, "#/")
    expect(page.locator("tbody tr")).to_have_count(8)
    expect(page.get_by_role("alert", name="Failures")).to_have_count(0)
    expect(page.get_by_text("Nothing needs a person now.")).to_be_visible()
    expect(page.locator("tbody th").first).to_have_text("orders")
    pos = page.locator("tbody tr", has_text="pos")
    expect(pos).to_contain_text("not started Topic pos does not exist yet.")
    pos.get_by_role("link").click()
    expect(page.get_by_role("heading", name="Not started", exact=True)).to_be_visible()
    expect(page.locator(".drawing .box")).to_have_count(11)
    assert is_accessible(page)


def test_names_of_pipelines_stay_whole_on_a_phone(
    open_view: Open, demo: gallery.Scene, page: Page
) -> None:
    page.set_viewport_size({"width": 400, "height": 800})
    open_view(demo, "#/")
    expect(page.locator("tbody tr")).to_have_count(8)
    for name in page.locator("tbody th a").all():
        place = name.bounding_box()
        assert place is not None
        assert place["height"] < 30, name.inner_text()


def test_a_small_table_stays_a_table_on_a_phone(
    open_view: Open, many: gallery.Scene, page: Page
) -> None:
    page.set_viewport_size({"width": 400, "height": 800})
    open_view(many, "#/pipelines/orders/stores/general_orders_count_window")
    key = page.get_by_role("region", name="Values").locator("tbody th a").first
    value = page.get_by_role("region", name="Values").locator("tbody td").last
    expect(value).to_be_visible()
    place, row = key.bounding_box(), page.locator("tbody tr").first.bounding_box()
    assert place is not None
    assert row is not None
    assert place["height"] < 30, "the key is whole"
    assert row["height"] < 60, "the row is no card"
    assert page.evaluate("document.documentElement.scrollWidth") <= 400


def test_a_failure_of_many_pipelines_names_six(open_view: Open, tmp_path: Path) -> None:
    demo = gallery.demo(tmp_path)
    for name in ("orders", *gallery.NEVER_STARTED):
        same = Failure.of(RecordFailed("The disk is full."), name, kind="retention")
        demo.api.ledger.failures.keep(same)
    page = open_view(demo, "#/")
    line = page.get_by_role("alert", name="Failures").get_by_role("listitem")
    expect(line).to_contain_text("8 pipelines (")
    expect(line).to_contain_text(" and 2 more)")
    expect(line.get_by_role("link")).to_have_count(6)


def test_the_first_view_is_light_and_loads_nothing_from_elsewhere(
    open_view: Open, many: gallery.Scene, page: Page
) -> None:
    addresses: list[str] = []
    page.on("request", lambda request: addresses.append(request.url))
    open_view(many, "#/")
    expect(page.locator("tbody tr")).to_have_count(7)
    sizes = "performance.getEntries().reduce((sum, entry) => sum + (entry.decodedBodySize ?? 0), 0)"
    assert page.evaluate(sizes) < MOST_BYTES
    scripts = [address.rpartition("/")[2] for address in addresses if address.endswith(".js")]
    # The page names all of them, so that none has to wait for another one.
    assert sorted(scripts) == sorted(first_view_modules(STATIC))
    page.goto(page.url.replace("#/", "#/pipelines/orders"))
    expect(page.locator("canvas")).to_have_count(9)
    assert {address.split("/")[2].split(":")[0] for address in addresses} == {"127.0.0.1"}


def test_filters_are_in_the_address(open_view: Open, many: gallery.Scene) -> None:
    page = open_view(many, "#/")
    page.get_by_role("link", name="payments").first.click()
    expect(page.locator("tbody tr")).to_have_count(2)
    assert "tag=payments" in page.url
    page.get_by_role("link", name="group by tag").click()
    expect(page.get_by_role("heading", level=2)).to_have_text([re.compile("payments")])
    page.go_back()
    page.go_back()
    expect(page.locator("tbody tr")).to_have_count(7)
    owners = page.get_by_role("navigation", name="Owners")
    owners.get_by_role("link", name="web").click()
    expect(page.locator("tbody tr")).to_have_count(2)
    owners.get_by_role("link", name="group by owner").click()
    expect(page.get_by_role("heading", level=2)).to_have_text([re.compile("web")])
    page.go_back()
    page.go_back()
    # What needs a person leads to the place where the person goes on.
    expect(page.get_by_role("alert").get_by_role("link", name="Open the log")).to_have_count(1)
    dead_letters = page.get_by_role("alert").get_by_role("link", name="Look at dead letters")
    expect(dead_letters).to_have_attribute("href", re.compile("_003/dead-letters$"))


def test_groups_share_their_columns(open_view: Open, many: gallery.Scene) -> None:
    page = open_view(many, "#/?group=tag")
    groups = page.locator("tbody")
    expect(groups).to_have_count(4)
    expect(page.get_by_role("button", name="Unread")).to_have_count(1)
    lefts = {cell.bounding_box()["x"] for cell in page.locator("td[data-label=Snapshot]").all()}  # type: ignore[index]
    assert len(lefts) == 1
    assert is_accessible(page)


def test_a_missing_key_leads_to_its_dead_letters(open_view: Open, many: gallery.Scene) -> None:
    page = open_view(many, "#/pipelines/orders/stores/general_orders_revenue?key=store_7")
    page.get_by_role("link", name="Look for dead letters with this key").click()
    expect(page.get_by_label("Key of the record")).to_have_value("store_7")
    expect(page.get_by_role("link", name="All times")).to_have_attribute("aria-current", "true")
    groups = page.get_by_role("region", name="Groups of dead letters").locator("tbody tr")
    expect(groups.first).to_be_visible()


@pytest.mark.parametrize("width", [1280, 400])
def test_a_chosen_node_is_shown_and_stays_in_sight(
    open_view: Open, many: gallery.Scene, page: Page, width: int
) -> None:
    page.set_viewport_size({"width": width, "height": 800})
    open_view(many, "#/pipelines/orders/topology")
    nodes = page.locator(".drawing a" if width > 720 else ".steps a")
    nodes.filter(has_text="general_orders_count").first.click()
    facts = page.locator("[data-reveal]")
    expect(facts).to_be_in_viewport(ratio=0.9)
    # The page shows the view again, as it does after each batch.
    facts.evaluate("node => node.setAttribute('data-old', '')")
    page.evaluate("document.dispatchEvent(new Event('visibilitychange'))")
    expect(page.locator("[data-old]")).to_have_count(0)
    expect(facts).to_be_in_viewport(ratio=0.9)


def test_a_topology_fits_and_its_nodes_open(open_view: Open, many: gallery.Scene) -> None:
    page = open_view(many, "#/pipelines/orders/topology")
    boxes = page.locator(".drawing .box")
    expect(boxes).to_have_count(22)
    card = page.locator(".graph").bounding_box()
    assert card is not None
    places = [box.bounding_box() for box in boxes.all()]
    for number, place in enumerate(places):
        assert place is not None
        assert card["x"] <= place["x"]
        assert place["x"] + place["width"] <= card["x"] + card["width"] + 1
        for other in places[:number]:
            assert other is not None
            is_beside = (
                place["x"] >= other["x"] + other["width"]
                or other["x"] >= place["x"] + place["width"]
                or place["y"] >= other["y"] + other["height"]
                or other["y"] >= place["y"] + place["height"]
            )
            assert is_beside, (place, other)
    picture = page.locator(".drawing > svg")
    whole = picture.get_attribute("viewBox")
    page.get_by_role("button", name="Zoom in").click()
    assert picture.get_attribute("viewBox") != whole
    page.get_by_role("button", name="Fit the whole topology").click()
    assert picture.get_attribute("viewBox") == whole
    boxes.filter(has_text="general_orders_count").first.click()
    assert "node=" in page.url
    page.get_by_role("link", name="Open the store general_orders_count", exact=False).click()
    expect(page.locator("main h1")).to_contain_text("general_orders_count")


def test_a_run_of_airflow_opens_its_batches(open_view: Open, many: gallery.Scene) -> None:
    page = open_view(many, "#/pipelines/orders/runs?run=manual__2")
    expect(page.get_by_role("region", name="Run").locator("tbody tr")).to_have_count(1)
    attempts = page.get_by_role("region", name="Attempts").locator("tbody tr")
    expect(attempts).to_have_count(3)
    expect(attempts.locator("td").nth(0)).to_have_text("failed")
    cost = page.request.get(
        f"{page.url.partition('#')[0]}v1/pipelines/orders/finished-runs",
        params={"since": "2020-01-01", "until": "2999-01-01"},
    ).json()
    (last,) = [each for each in cost if each["run"] == "orders/manual__2/main"]
    columns = attempts.last.locator("td")
    expect(columns.nth(4)).to_have_text(f"{last['cpu_seconds'] / 95:.2f}")
    expect(columns.nth(5)).to_contain_text("iB")
    expect(columns.nth(7)).to_have_text("worker-1")
    assert is_accessible(page)
    batches = page.get_by_role("region", name="Batches").locator("tbody tr")
    expect(batches).to_have_count(3)
    log = batches.first.get_by_role("link", name="log")
    expect(log).to_have_attribute("href", re.compile("/dags/orders/runs/manual__2/tasks/main"))
    page.get_by_role("link", name="All runs").click()
    page.get_by_role("link", name="batches", exact=True).first.click()
    assert "run=manual__0" in page.url


def test_a_run_is_found_whether_or_not_its_id_is_quoted(open_view: Open, tmp_path: Path) -> None:
    now, demo = datetime.now(UTC), gallery.demo(tmp_path)
    name = "manual__2026-11-21T12:00:00+00:00"
    demo.api.runs.history["orders"].append(Run(name, "success", now, now, "/log", "run"))
    for given in (name, quote(name, safe="")):
        page = open_view(demo, f"#/pipelines/orders/runs?run={given}")
        expect(page.get_by_role("region", name="Run").locator("tbody th")).to_contain_text(name)


def test_a_run_that_airflow_has_forgotten_is_named(open_view: Open, many: gallery.Scene) -> None:
    page = open_view(
        many, "#/pipelines/orders/runs?run=scheduled__2020-01-01T00%3A00%3A00%2B00%3A00"
    )
    expect(page.locator("main")).to_contain_text("Run scheduled__2020-01-01T00:00:00+00:00")


def test_edges_show_the_records_that_are_counted_there(
    open_view: Open, many: gallery.Scene, page: Page
) -> None:
    open_view(many, "#/pipelines/orders/topology?range=week")
    since, until = "2020-01-01", "2999-01-01"
    history = page.request.get(
        f"{page.url.partition('#')[0]}v1/pipelines/orders/history?since={since}&until={until}"
    ).json()
    read = sum(column["read"]["orders"] for column in history["columns"])
    flows = page.locator(".drawing .flow")
    texts = flows.locator("title").all_text_contents()
    general = history["received"]["general_orders_count/0"]
    restaurant = history["received"]["restaurant_orders_count/0"]
    assert {text: texts.count(text) for text in texts} == {
        f"{read:,} records read": 2,
        f"{general:,} records received": 4,
        f"{restaurant:,} records received": 4,
        f"{general:,} records written": 1,
    }
    late = history["steps"]["general_orders_count_window"]["late"]
    store = page.locator(".drawing a", has_text="store general_orders_count_window").first
    expect(store.locator(".count")).to_have_text(f"{late} too late")
    page.locator(".drawing a", has_text="stream orders").first.click()
    expect(page.locator("dl").last).to_contain_text(f"{read:,} read in the last week")


def test_the_step_that_has_stopped_the_run_is_red(open_view: Open, tmp_path: Path) -> None:
    scene = gallery.demo(tmp_path)
    pipeline = load_pipeline(gallery.EXAMPLES, "orders")
    node = next(node for node in pipeline.nodes if node.title.startswith("store "))
    detail = f"{node.title} at {node.at} failed for the record of orders, partition 0, offset 7: no"
    scene.api.ledger.failures.keep(Failure.of(RecordFailed(detail), "orders"))
    page = open_view(scene, "#/")
    page.get_by_role("alert").get_by_role("link", name="orders", exact=True).click()
    page.get_by_role("link", name="Topology", exact=True).click()
    expect(page.locator(".drawing .failing")).to_have_count(1)
    expect(page.locator(".drawing .failing")).to_contain_text(node.title)


def test_a_topology_is_a_list_on_a_phone(open_view: Open, many: gallery.Scene, page: Page) -> None:
    page.set_viewport_size({"width": 400, "height": 800})
    open_view(many, "#/pipelines/orders/topology?node=6")
    expect(page.locator(".drawing")).to_be_hidden()
    steps = page.locator(".steps li")
    expect(steps).to_have_count(22)
    expect(steps.nth(0)).to_contain_text("stream orders")
    expect(steps.nth(2)).to_contain_text("from stream orders")
    assert page.evaluate("document.documentElement.scrollWidth") <= 400
    assert is_accessible(page)


def test_charts_show_the_last_hour_if_all_batches_are_of_this_hour(
    open_view: Open, demo: gallery.Scene, many: gallery.Scene, page: Page
) -> None:
    chosen = page.get_by_role("navigation", name="Time").locator("[aria-current]")
    open_view(demo, "#/pipelines/orders")
    expect(chosen).to_have_text("Last hour")
    page.get_by_role("link", name="Last 24 hours").click()
    expect(chosen).to_have_text("Last 24 hours")
    page.get_by_role("link", name="Runs", exact=True).click()
    expect(chosen).to_have_text("Last 24 hours")
    open_view(many, "#/pipelines/orders")
    expect(chosen).to_have_text("Last 24 hours")


def test_all_charts_show_the_chosen_time(open_view: Open, many: gallery.Scene) -> None:
    page = open_view(many, "#/pipelines/orders")
    expect(page.locator("canvas")).to_have_count(9)
    expect(page.locator("#zone")).to_contain_text("Times in")
    expect(page.locator(".legend li", has_text="processing records")).to_be_visible()
    page.get_by_role("link", name="Last hour").click()
    expect(page.get_by_role("link", name="Last hour")).to_have_attribute("aria-current", "true")
    assert "range=hour" in page.url
    plot = page.locator(".u-over").first
    expect(plot).to_be_visible()
    place = plot.bounding_box()
    assert place is not None
    middle = place["y"] + place["height"] / 2
    page.mouse.move(place["x"] + 0.2 * place["width"], middle)
    expect(page.locator(".tip").first).to_be_visible()
    page.mouse.down()
    page.mouse.move(place["x"] + 0.6 * place["width"], middle, steps=4)
    page.mouse.up()
    expect(page.get_by_role("navigation", name="Time")).to_contain_text(" to ")
    given = re.search(r"from=(\d+)&to=(\d+)", page.url)
    assert given is not None
    minutes = (int(given[2]) - int(given[1])) / 60_000
    assert 20 < minutes < 28
    page.get_by_role("link", name="Topology", exact=True).click()
    expect(page.locator(".graph")).to_be_visible()
    assert given[0] in page.url, "the other views show the same time"


def test_a_chart_marks_when_the_topology_changed(
    open_view: Open, many: gallery.Scene, page: Page
) -> None:
    page = open_view(many, "#/pipelines/orders")
    plot = page.locator(".u-over").first
    place = plot.bounding_box()
    assert place is not None
    # Six runs ago, three of the shown 24 hours had passed.
    page.mouse.move(place["x"] + 21 / 24 * place["width"], place["y"] + 20)
    expect(page.locator(".tip .mark").first).to_have_text("changed topology")


def test_costs_by_day_owner_and_pipeline(open_view: Open, many: gallery.Scene) -> None:
    page = open_view(many, "#/costs")
    owners = page.get_by_role("region", name="Costs by owner").locator("tbody tr")
    expect(owners).to_have_count(2)
    expect(owners.filter(has_text="web")).to_contain_text("min")
    pipelines = page.get_by_role("region", name="Costs by pipeline").locator("tbody tr")
    expect(pipelines.filter(has_text="orders")).to_contain_text("sluice")
    expect(page.locator("canvas")).to_have_count(1)
    assert is_accessible(page)
    page.get_by_role("link", name="Last 30 days").click()
    expect(page.get_by_role("link", name="Last 30 days")).to_have_attribute("aria-current", "true")
    owners.filter(has_text="web").get_by_role("link").click()
    expect(page.locator("h1")).to_have_text("Pipelines")
    assert "owner=web" in page.url


def test_a_run_shows_where_its_time_went(open_view: Open, many: gallery.Scene) -> None:
    page = open_view(many, "#/pipelines/orders/runs")
    runs = page.get_by_role("region", name="Runs").locator("tbody tr")
    expect(runs.first).to_contain_text("3 batches")
    tried = runs.filter(has_text="manual__2").first
    expect(tried).to_contain_text("waiting for the next attempt 2 min 30 s")
    expect(tried.locator("td").last.get_by_role("link")).to_have_text(
        ["1: failed", "2: failed", "3: success"]
    )
    # The batches of this run have no run of Airflow.
    other = runs.filter(has_text="manual__4").first
    expect(other).to_contain_text("without batches of the current generation 1 min 35 s")
    by_hand = runs.filter(has_text="from the command line")
    expect(by_hand).to_have_count(2)
    expect(by_hand.first).to_contain_text("failed")
    expect(by_hand.first).to_contain_text("0 batches")
    expect(by_hand.last).to_contain_text("success")
    expect(by_hand.last).to_contain_text("3 batches")
    expect(by_hand.last.locator("td").nth(5)).to_contain_text("iB")
    expect(runs).to_have_count(15)
    page.get_by_role("link", name="Show all").click()
    expect(runs).not_to_have_count(15)
    assert is_accessible(page)


def test_a_dead_letter_is_corrected_and_re_driven(
    open_view: Open, many: gallery.Scene, page: Page
) -> None:
    sent: list[dict[str, object]] = []

    def take(route: Route) -> None:
        sent.append(json.loads(route.request.post_data or ""))
        route.fulfill(json={"redriven": 1, "skipped": {}, "more": False})

    page.route("**/dead_letters/redrive", take)
    open_view(many, "#/pipelines/orders/dead-letters")
    groups = page.get_by_role("region", name="Groups of dead letters").locator("tbody tr")
    expect(groups).to_have_count(4)
    expect(groups.first).to_contain_text("processing")
    expect(groups.first).to_contain_text("1 failed again")
    groups.filter(has_text="contract").get_by_role("link", name="Open").click()
    letter = page.get_by_role("article").first
    letter.get_by_text("Record, headers and contract").click()
    wrong = letter.locator(".contract .wrong")
    expect(wrong).to_have_text(re.compile("^orderType"))
    expect(letter.locator(".problems")).to_contain_text('got "KITCHEN"')
    value = letter.get_by_label("Value")
    value.fill(value.input_value().replace("KITCHEN", "GENERAL"))
    letter.get_by_role("button", name="Check against the contract").click()
    expect(letter.get_by_text("the contract accepts this value")).to_be_visible()
    expect(wrong).to_have_count(0)
    assert is_accessible(page)
    letter.get_by_role("button", name="Re-drive with this value").click()
    page.locator("dialog").get_by_role("button", name="Re-drive").click()
    expect(page.locator("#done")).to_contain_text("1 re-driven")
    (request,) = sent
    assert request["place"] == "0/2"
    assert '"orderType":"GENERAL"' in str(request["value"])


def test_a_store_is_drawn(open_view: Open, many: gallery.Scene) -> None:
    page = open_view(many, "#/pipelines/orders/stores/general_orders_revenue")
    expect(page.get_by_role("heading", name="The largest by runningOrderCount")).to_be_visible()
    page.get_by_role("link", name="runningRevenue").click()
    expect(page.get_by_role("heading", name="The largest by runningRevenue")).to_be_visible()
    assert is_accessible(page)
    page.locator(".bars a").first.click()
    page.get_by_role("link", name="What this key was").click()
    snapshots = page.get_by_role("region", name="Snapshots").locator("tbody tr")
    expect(snapshots).to_have_count(10)
    expect(snapshots.first).to_contain_text("changed")
    # Only the newest snapshot has the key, and one value is no history to draw.
    expect(page.locator("canvas")).to_have_count(0)


def test_the_curl_is_copied(open_view: Open, many: gallery.Scene, page: Page) -> None:
    open_view(many, "#/pipelines/orders/stores/general_orders_revenue?key=store_1234")
    page.get_by_text("Link and curl").click()
    page.context.grant_permissions(["clipboard-read", "clipboard-write"])
    page.get_by_role("button", name="Copy the curl").click()
    expect(page.get_by_text("Copied.")).to_be_visible()
    copied = page.evaluate("navigator.clipboard.readText()")
    assert copied == page.locator("details pre").text_content()
    assert "/keys/store_1234?pipeline=orders" in copied


def test_a_curl_that_cannot_be_copied_is_selected(
    open_view: Open, many: gallery.Scene, page: Page
) -> None:
    open_view(many, "#/pipelines/orders/stores/general_orders_revenue?key=store_1234")
    page.get_by_text("Link and curl").click()
    # As on pages without HTTPS.
    page.evaluate("Object.defineProperty(navigator, 'clipboard', { value: undefined })")
    page.get_by_role("button", name="Copy the curl").click()
    expect(page.get_by_text("The text is selected")).to_be_visible()
    selected = page.evaluate("getSelection().toString()")
    assert selected == page.locator("details pre").text_content()


@pytest.mark.parametrize(
    ("view", "text"),
    [
        ("#/pipelines/%", "There is nothing at this address."),
        ("#/nowhere", "There is nothing at this address."),
        ("#/?sort=Newest%20batches", "Pipelines"),
        ("#/pipelines/orders?from=1&to=1e300", "Last 24 hours"),
        ("#/pipelines/orders/topology?node=99", "Choose a node"),
    ],
)
def test_a_wrong_address_is_no_trouble(
    open_view: Open, many: gallery.Scene, view: str, text: str
) -> None:
    page = open_view(many, view)
    expect(page.get_by_text(text).first).to_be_visible()
    expect(page.get_by_text("last known")).to_have_count(0)


def test_the_file_of_describe_draws_the_topology_alone(page: Page, tmp_path: Path) -> None:
    file = tmp_path / "pos.html"
    file.write_text(topology_file(load_pipeline(gallery.EXAMPLES, "pos")))
    addresses: list[str] = []
    page.on("request", lambda request: addresses.append(request.url))
    page.goto(file.as_uri())
    expect(page.locator(".drawing .box")).to_have_count(11)
    assert addresses == [file.as_uri()]
