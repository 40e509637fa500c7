"""Each action that a person can take on the page says what it will do, and then does it.

Replays are in test_page.py; corrections of single dead letters are in test_views.py.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path

import msgspec
import pytest
from playwright.sync_api import Page, Route, expect

from sluice.api import services
from sluice.api.routes import dead_letter_routes
from sluice.api.runs import DagState
from sluice.engine.run.compatibility import CompatibilityError
from sluice.state.ledger.failures import Failure
from tests.browser import gallery, letters
from tests.support.states import States

pytestmark = pytest.mark.browser


@pytest.fixture
def scene(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> gallery.Scene:
    scene = gallery.demo(tmp_path)
    monkeypatch.setattr(services, "read_lag", scene.read_lag)
    monkeypatch.setattr(dead_letter_routes, "find_dead_letters", letters.find)
    return scene


@contextmanager
def shown(page: Page, scene: gallery.Scene, view: str) -> Iterator[None]:
    """Show a view of orders."""
    with ExitStack() as stack:
        address = stack.enter_context(scene.api.serve())
        page.goto(f"{address}/sluice/#/pipelines/orders{view}")
        expect(page.locator("main h1")).to_be_visible()
        yield
        page.goto("about:blank")


def take(page: Page, button: str, says: str, confirm: str) -> None:
    """Press a button, read what the dialog says, and confirm."""
    page.get_by_role("button", name=button, exact=True).click()
    expect(page.locator("dialog")).to_contain_text(says)
    page.locator("dialog").get_by_role("button", name=confirm, exact=True).click()
    expect(page.locator("dialog")).to_have_count(0)


def started(scene: gallery.Scene) -> list[str]:
    return [parameters["action"] for _, parameters, _ in scene.api.runs.started]


def beside(folder: Path, *, is_current: bool) -> None:
    """Add a generation 2 of orders with a snapshot; with `is_current`, queries read it."""
    states = States(f"sqlite:///{folder}", generation=2, workers=4)
    states.publish({"store_1": "[1,null]"}, published_at=datetime.now(UTC))
    if is_current:
        states.ledger.generations.promote(states.ref)


def test_run_now(page: Page, scene: gallery.Scene) -> None:
    with shown(page, scene, ""):
        take(page, "Run now", "the run changes nothing", "Read all unread records")
        expect(page.locator("#done")).to_contain_text("is queued")
    assert started(scene) == ["run"]


def test_run_again_while_a_run_is_in_progress(page: Page, scene: gallery.Scene) -> None:
    state = scene.api.runs.states["orders"]
    assert state.last_run is not None
    running = msgspec.structs.replace(state.last_run, state="running", ended_at=None)
    scene.api.runs.states["orders"] = DagState(False, running)
    with shown(page, scene, ""):
        says = "A run is in progress. The new run begins when it has ended."
        take(page, "Run again after this run", says, "Read all unread records")
        expect(page.locator("#done")).to_contain_text("is queued")
    assert started(scene) == ["run"]


def test_pause_and_resume(page: Page, scene: gallery.Scene) -> None:
    with shown(page, scene, ""):
        page.get_by_role("button", name="Pause…").click()
        expect(page.locator("dialog")).to_contain_text("Everybody sees the reason")
        page.locator("dialog").get_by_role("button", name="Pause").click()
        expect(page.locator("dialog").get_by_role("alert")).to_contain_text("needs a reason")
        page.get_by_label("Reason").fill("new prices")
        page.locator("dialog").get_by_role("button", name="Pause").click()
        expect(page.locator("main")).to_contain_text("new prices")
        expect(page.get_by_role("button", name="Run now")).to_have_count(0)
        page.get_by_role("button", name="Resume").click()
        expect(page.locator("#done")).to_contain_text("may run again")
    did = scene.api.ledger.activities.of("orders", 2)
    assert [(each.action, each.by, each.detail) for each in did] == [
        ("resume", "ada", ""),
        ("pause", "ada", "new prices"),
    ]


def test_replay_from_yesterday_is_offered(page: Page, scene: gallery.Scene) -> None:
    with shown(page, scene, ""):
        page.get_by_role("button", name="Replay…").click()
        dialog = page.locator("dialog")
        dialog.get_by_role("button", name="Yesterday, 00:00 UTC").click()
        yesterday = (datetime.now(UTC) - timedelta(days=1)).strftime("%Y-%m-%dT00:00:00")
        expect(dialog.get_by_label("From", exact=True)).to_have_value(yesterday)
        dialog.get_by_role("button", name="Replay into a new generation").click()
        expect(page.locator("#done")).to_contain_text("is queued")
    (_, parameters, _) = scene.api.runs.started[0]
    assert parameters == {"action": "replay", "from": yesterday}


def test_promote_or_drop_what_a_replay_has_built(
    page: Page, scene: gallery.Scene, tmp_path: Path
) -> None:
    beside(tmp_path, is_current=False)
    with shown(page, scene, "/shards"):
        expect(page.get_by_role("button", name="Roll back…")).to_have_count(0)
        name = "Make the new generation the current one"
        take(page, "Promote…", "all queries read the new generation", name)
        expect(page.locator("#done")).to_contain_text("is queued")
        take(page, "Drop…", "stays as it is", "Remove the new generation")
        expect(page.locator("#done")).to_contain_text("is queued")
    assert started(scene) == ["promote", "drop"]


def test_roll_back_to_the_generation_before(
    page: Page, scene: gallery.Scene, tmp_path: Path
) -> None:
    beside(tmp_path, is_current=True)
    with shown(page, scene, "/shards"):
        expect(page.get_by_role("button", name="Promote…")).to_have_count(0)
        name = "Make the earlier generation current again"
        take(page, "Roll back…", "without output", name)
        expect(page.locator("#done")).to_contain_text("is queued")
    assert started(scene) == ["roll_back"]


def test_compute_what_a_changed_file_has_changed(page: Page, scene: gallery.Scene) -> None:
    error = CompatibilityError(
        "orders has changed since its state was computed: a store has another window.",
        next_step="Compute only what has changed: sluice rebuild orders --changed-only.",
    )
    scene.api.ledger.failures.keep(Failure.of(error, "orders"))
    with shown(page, scene, ""):
        name = "Compute new and changed stores"
        take(page, "Compute what has changed…", "are deleted for good", name)
        expect(page.locator("#done")).to_contain_text("is queued")
    assert started(scene) == ["change"]


def test_re_drive_a_group_or_all_that_could_not_be_read(page: Page, scene: gallery.Scene) -> None:
    sent: list[dict[str, object]] = []

    def redrive(route: Route) -> None:
        sent.append(json.loads(route.request.post_data or ""))
        route.fulfill(json={"redriven": 13, "skipped": {}, "more": False})

    page.route("**/dead_letters/redrive", redrive)
    with shown(page, scene, "/dead-letters"):
        groups = page.get_by_role("region", name="Groups of dead letters").locator("tbody tr")
        groups.filter(has_text="contract").get_by_role("button", name="Re-drive").click()
        expect(page.locator("dialog")).to_contain_text("the group contract")
        page.locator("dialog").get_by_role("button", name="Re-drive").click()
        expect(page.locator("#done")).to_contain_text("13 re-driven")
        page.get_by_role("button", name="Re-drive all that could not be read").click()
        page.locator("dialog").get_by_role("button", name="Re-drive").click()
        expect(page.locator("dialog")).to_have_count(0)
    assert [body.get("reason") for body in sent] == ["contract", None]


def test_dead_letters_of_a_key_are_found_and_only_they_are_re_driven(
    page: Page, scene: gallery.Scene
) -> None:
    sent: list[dict[str, object]] = []

    def redrive(route: Route) -> None:
        sent.append(json.loads(route.request.post_data or ""))
        route.fulfill(json={"redriven": 1, "skipped": {}, "more": False})

    page.route("**/dead_letters/redrive", redrive)
    with shown(page, scene, "/dead-letters"):
        page.get_by_label("Key of the record").fill("store_7")
        page.get_by_role("button", name="Find").click()
        groups = page.get_by_role("region", name="Groups of dead letters").locator("tbody tr")
        expect(groups).to_have_count(1)
        groups.get_by_role("link", name="Open").click()
        expect(page.get_by_role("article")).to_have_count(1)
        expect(page.get_by_label("Key of the record")).to_have_value("store_7")
        groups.get_by_role("button", name="Re-drive 1").click()
        page.locator("dialog").get_by_role("button", name="Re-drive").click()
        expect(page.locator("#done")).to_contain_text("1 re-driven")
        page.get_by_label("Key of the record").fill("store_8")
        page.get_by_role("button", name="Find").click()
        expect(page.locator("main")).to_contain_text("There were none with the key store_8")
    (body,) = sent
    assert (body["key"], body["reason"]) == ("store_7", "contract")


def test_compare_two_snapshots(page: Page, scene: gallery.Scene) -> None:
    with shown(page, scene, "/stores/general_orders_count"):
        form = page.get_by_role("form", name="Compare two snapshots")
        form.get_by_label("Before").fill("1.0")
        form.get_by_role("button", name="Compare").click()
        expect(page.locator("main h2").first).to_contain_text("Snapshots 1.0 and 1.")
    assert started(scene) == []
