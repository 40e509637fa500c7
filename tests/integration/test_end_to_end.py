"""End to end: Kafka, a DAG that starts by itself, spark-submit, snapshots, authenticated REST queries."""

from __future__ import annotations

import json
import shutil
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import suppress
from decimal import Decimal
from pathlib import Path
from typing import Any

import httpx
import psutil
import pytest
from playwright.sync_api import expect

from sluice.examples.orders import STORE_1234, Totals, produce_orders, totals_of_topic
from sluice.examples.orders.orders_example import answers
from sluice.kafka.topics import read_topic, text_headers
from sluice.local.platform import LocalPlatform
from sluice.local.service import members
from sluice.observe.monitoring import run_audits
from sluice.state.ledger.audits import total
from sluice.state.ledger.ledger import Ledger
from tests.faults.world import wait_until
from tests.incidents.places import Places
from tests.integration.orders_view import dead_letters, differences, served
from tests.support.airflow_browser import chromium, open_airflow
from tests.support.airflow_database import provide_database
from tests.support.ports import free_port

pytestmark = pytest.mark.timeout(900)

PIPELINE = "orders"
PIPELINES = Path(__file__).parents[2] / "spark_jobs"
ROUTES = [
    "/v1/orders/count",
    "/v1/metadata/all",
    "/sluice/v1/stores",
    "/sluice/docs",
    "/sluice/openapi.json",
]
IDLE_S = 6.0
LINEAGE = "lineage.jsonl"


class MigratedPlatform(LocalPlatform):
    """A platform with a copy of a migrated database; the demo's tests migrate their own."""

    def migrate_database(self) -> None:
        provide_database(self.home / "airflow" / "airflow.db")


@pytest.fixture(scope="module")
def platform(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalPlatform]:
    home = tmp_path_factory.mktemp("platform")
    transport = {"type": "file", "log_file_path": str(home / LINEAGE), "append": True}
    environment = {
        "AIRFLOW__OPENLINEAGE__TRANSPORT": json.dumps(transport),
        # The scheduler looks for work less often than in the demo, which wants short waits.
        "AIRFLOW__SCHEDULER__SCHEDULER_IDLE_SLEEP_TIME": "1",
        # No file changes, so none needs to be imported again.
        "AIRFLOW__DAG_PROCESSOR__MIN_FILE_PROCESS_INTERVAL": "300",
    }
    # The orders, and a pipeline whose topics nobody has created. Each further pipeline costs
    # Airflow CPU time.
    (pipelines := home / "pipelines").mkdir()
    for file in (*PIPELINES.glob("orders*"), PIPELINES / "pos.py"):
        shutil.copy(file, pipelines)
    with MigratedPlatform(
        home, free_port(), free_port(), pipelines=pipelines, environment=environment
    ) as platform:
        sessions = platform.sessions
        platform.start(lambda: send(platform, 4_000, 1_670_230_527))
        yield platform
        sessions |= platform.sessions
    assert members(sessions) == []


def send(platform: LocalPlatform, count: int, start_s: int) -> None:
    produce_orders(
        platform.kafka_config,
        count=count,
        stores=20,
        bad_share=0.03,
        late_share=0.01,
        start_ms=start_s * 1000,
    )


def wait_for_runs(platform: LocalPlatform, count: int) -> list[dict[str, Any]]:
    """The pipeline's runs, once `count` of them have ended."""
    with platform.as_user() as airflow:
        for _ in platform.ticks(400, f"There are not {count} ended runs", pause_s=2.0):
            runs = airflow.runs(PIPELINE)
            if len(runs) >= count and all(run["state"] in ("success", "failed") for run in runs):
                return runs
    raise AssertionError


def idle(platform: LocalPlatform) -> None:
    for gone in platform.ticks(100 * IDLE_S, "idle"):
        if gone > IDLE_S:
            return


@pytest.fixture(scope="module")
def totals(platform: LocalPlatform) -> Totals:
    """Expected totals of the topic after the first run, computed in plain Python."""
    wait_for_runs(platform, 1)
    return totals_of_topic(platform.kafka_config)


def test_a_burst_starts_one_run_and_idle_topics_none(platform: LocalPlatform) -> None:
    wait_for_runs(platform, 1)
    idle(platform)
    (run,) = wait_for_runs(platform, 1)
    assert (run["state"], run["run_type"]) == ("success", "asset_triggered")


def test_all_eight_stores_match_the_topic(platform: LocalPlatform, totals: Totals) -> None:
    assert totals.late
    expected = totals.stores()
    with platform.as_user(platform.viewer) as airflow:
        result = served(airflow)
    assert len(expected) == 8
    assert differences(expected, result) == dict.fromkeys(expected, 0)


def test_the_queries_of_the_requirements(platform: LocalPlatform, totals: Totals) -> None:
    count, revenue = totals.running["GENERAL", STORE_1234]
    with platform.as_user(platform.viewer) as airflow:
        answer = airflow.ask("/v1/orders/count/general_orders", location_id=STORE_1234)
        assert answer.text == f'{{"locationId":"{STORE_1234}","orderCount":{count}}}'
        assert {path: airflow.json(path) for path in answers(0, Decimal(0))} == answers(
            count, revenue
        )


def test_bad_records_are_dead_letters_with_their_reason_and_bytes(
    platform: LocalPlatform, totals: Totals
) -> None:
    assert dead_letters(platform.kafka_config) == totals.dead_letters
    source = {
        (m.partition(), m.offset()): (m.key(), m.value())
        for m in read_topic(platform.kafka_config, "orders")
    }
    for letter in read_topic(platform.kafka_config, "orders_dead_letters"):
        headers = text_headers(letter)
        place = int(headers["sluice.partition"]), int(headers["sluice.offset"])
        assert (headers["sluice.topic"], source[place]) == (
            "orders",
            (letter.key(), letter.value()),
        )
        assert headers["sluice.detail"]


def test_the_output_topics(platform: LocalPlatform, totals: Totals) -> None:
    for kind in ("GENERAL", "RESTAURANT"):
        prefix = f"{kind.lower()}_orders"
        running = {
            location: total for (of, location), total in totals.running.items() if of == kind
        }
        amounts = [
            json.loads(m.value() or b"", parse_float=Decimal)
            for m in read_topic(platform.kafka_config, prefix)
        ]
        assert len(amounts) == sum(count for count, _ in running.values())
        assert sum(one["finalAmount"] for one in amounts) == sum(
            amount for _, amount in running.values()
        )

        latest = {
            m.key(): m.value() for m in read_topic(platform.kafka_config, f"{prefix}_revenue")
        }
        for location, (count, amount) in running.items():
            result = json.loads(latest[location.encode()] or b"", parse_float=Decimal)
            total = {"locationId": location, "runnuingOrderCount": count, "runningRevenue": amount}
            assert result["totalRevenue"] == total
            assert result["store"]["locationId"] == location


@pytest.mark.parametrize("route", ROUTES)
def test_without_a_log_in_every_query_is_401(platform: LocalPlatform, route: str) -> None:
    answer = httpx.get(platform.url + route, trust_env=False)
    assert answer.status_code == 401


def test_every_port_is_on_the_loopback_address(platform: LocalPlatform) -> None:
    addresses = set()
    for process in members(platform.sessions):
        with suppress(psutil.NoSuchProcess):  # it has ended meanwhile
            addresses |= {
                (process.name(), found.laddr.ip, found.laddr.port)
                for found in process.net_connections("inet")
                if found.status == psutil.CONN_LISTEN
            }
    assert addresses
    assert {ip for _, ip, _ in addresses} <= {"127.0.0.1", "::1", "::ffff:127.0.0.1"}, addresses


def test_no_secret_in_arguments_or_logs(platform: LocalPlatform, totals: Totals) -> None:
    secrets = [platform.admin.password, platform.viewer.password, *platform.secrets.values()]
    lines = []
    for process in members(platform.sessions):
        with suppress(psutil.NoSuchProcess):  # it has ended meanwhile
            lines.append(" ".join(process.cmdline()))
    folders = (platform.logs, platform.home / "airflow" / "logs")
    logs = [
        file.read_text(errors="replace") for folder in folders for file in folder.rglob("*.log")
    ]
    assert len(logs) > 4
    assert [secret for secret in secrets if any(secret in text for text in lines + logs)] == []


@pytest.fixture(scope="module")
def second_burst(platform: LocalPlatform, totals: Totals) -> float | None:
    """Sends more orders while a browser shows the pipeline.

    Returns how many seconds later the page has shown the run, None without a browser.
    """
    if shutil.which("chromium") is None:
        send(platform, 3_000, 1_670_230_527 + 20)
        return None
    with chromium() as browser:
        page = open_airflow(browser, platform.url, platform.viewer.user, platform.viewer.password)
        page.get_by_role("link", name="Sluice").click()
        sluice = page.frame_locator("iframe")
        sluice.get_by_role("link", name=PIPELINE, exact=True).click()
        rows = sluice.get_by_role("region", name="Runs").locator("tbody tr")
        expect(rows).to_have_count(1)
        send(platform, 3_000, 1_670_230_527 + 20)
        sent_at = time.monotonic()
        expect(rows).to_have_count(2)
        return time.monotonic() - sent_at


@pytest.mark.heavy  # tests/browser shows a snapshot that appears by itself
@pytest.mark.browser
def test_a_run_appears_on_the_open_page_by_itself(second_burst: float | None) -> None:
    if second_burst is None:
        pytest.skip("Chromium is not installed (apt-get install chromium)")
    print(f"the run appeared {second_burst:.1f} s after its records")


@pytest.mark.heavy  # test_trigger.py has events after a run, and tests/engine has runs that go on
def test_the_next_burst_starts_one_more_run(
    platform: LocalPlatform, totals: Totals, second_burst: float | None
) -> None:
    runs = wait_for_runs(platform, 2)
    assert [run["state"] for run in runs] == ["success", "success"]
    expected = totals_of_topic(platform.kafka_config)
    assert expected.read == totals.read + 3_000
    with platform.as_user() as airflow:
        assert differences(expected.stores(), served(airflow)) == dict.fromkeys(
            expected.stores(), 0
        )
    assert dead_letters(platform.kafka_config) == expected.dead_letters


@pytest.mark.heavy  # test_trigger.py restarts a trigger
def test_restarting_the_triggerer_starts_no_run(platform: LocalPlatform, totals: Totals) -> None:
    before = len(wait_for_runs(platform, 1))
    platform.stop_component("triggerer")
    platform.start_component("triggerer")
    platform.wait_for_airflow()
    idle(platform)
    assert len(wait_for_runs(platform, 1)) == before


@pytest.mark.heavy  # the last test starts a run by hand, and tests/engine runs without records
def test_a_manual_run_without_records_changes_nothing(
    platform: LocalPlatform, totals: Totals
) -> None:
    before = len(wait_for_runs(platform, 1))
    with platform.as_user() as airflow:
        snapshot = airflow.ask("/v1/orders/count").headers["x-sluice-snapshot"]
        airflow.trigger(PIPELINE)
        assert wait_for_runs(platform, before + 1)[-1]["state"] == "success"
        assert airflow.ask("/v1/orders/count").headers["x-sluice-snapshot"] == snapshot


def test_the_run_counts_what_happened_to_every_record(
    platform: LocalPlatform, totals: Totals
) -> None:
    (first, *_) = wait_for_runs(platform, 1)
    with platform.as_user() as airflow:
        (task,) = airflow.tasks(PIPELINE, first["dag_run_id"])
        tries = range(
            1, task["try_number"] + 1
        )  # more than one where Airflow had lost sight of the first for a while
        said = "".join(
            airflow.log(PIPELINE, first["dag_run_id"], "main", number) for number in tries
        )
    assert f"read={totals.read + 20}" in said


def test_openlineage_events_have_the_datasets_and_the_audit(
    platform: LocalPlatform, totals: Totals
) -> None:
    runs = [run["dag_run_id"] for run in wait_for_runs(platform, 1)]
    events = [json.loads(line) for line in (platform.home / LINEAGE).read_text().splitlines()]
    # If a task's heartbeat is late, on a busy machine, Airflow's scheduler ends the try. The
    # scheduler then sends the event FAIL itself, without datasets, because it does not have the
    # task's operator.
    events = [
        event
        for event in events
        if event["job"]["name"] == f"{PIPELINE}.main" and event["eventType"] != "FAIL"
    ]
    kafka, ledger = (
        f"kafka://{platform.kafka_config['bootstrap.servers']}",
        platform.home / "ledger.sqlite",
    )
    state = f"sluice://{ledger}"
    topics = {
        "general_orders",
        "restaurant_orders",
        "general_orders_revenue",
        "restaurant_orders_revenue",
    }
    written = {(kafka, name) for name in {*topics, "orders_dead_letters"}}
    stores = {(state, f"orders.{store}") for store in totals.stores()}
    for event in events:
        assert {named(each) for each in event["inputs"]} == {(kafka, "orders"), (kafka, "stores")}
        assert {named(each) for each in event["outputs"]} == written | stores

    completed = {event["run"]["facets"]["airflow"]["dagRun"]["run_id"]: event
                 for event in events if event["eventType"] == "COMPLETE"}  # fmt: skip
    assert set(completed) == set(runs)
    started = {event["run"]["runId"] for event in events if event["eventType"] == "START"}
    assert started >= {event["run"]["runId"] for event in completed.values()}
    first = completed[runs[0]]
    facet = first["run"]["facets"]["sluice_audit"]
    rows = {
        each["name"]: each["inputFacets"]["inputStatistics"]["rowCount"] for each in first["inputs"]
    }
    assert rows == {"orders": totals.read, "stores": 20}
    assert facet["recordsRead"] == totals.read + 20
    assert facet["deadLetters"] == totals.dead_letters
    assert facet["balanced"] is True
    with Ledger.open(f"sqlite:///{ledger}") as opened:
        audits = run_audits(opened, PIPELINE, f"{PIPELINE}/{runs[0]}/main")
    assert facet["recordsApplied"] == sum(source.applied for source in total(audits))
    versions = {
        each["facets"]["version"]["datasetVersion"]
        for each in first["outputs"]
        if named(each) in stores
    }
    assert versions == {facet["lastSnapshot"]} == {f"{audits[-1].generation}.{audits[-1].batch}"}
    sent = Counter[str]()
    for event in completed.values():
        for each in event["outputs"]:
            if named(each) in written and "outputStatistics" in each["outputFacets"]:
                sent[each["name"]] += each["outputFacets"]["outputStatistics"]["rowCount"]
    assert sent == {
        name: sum(1 for _ in read_topic(platform.kafka_config, name)) for _, name in written
    }


def named(dataset: dict[str, Any]) -> tuple[str, str]:
    return dataset["namespace"], dataset["name"]


def test_files_with_secrets_are_private(platform: LocalPlatform) -> None:
    assert Path(platform.home / "passwords.json").stat().st_mode & 0o077 == 0


@pytest.mark.heavy  # test_incidents.py names an input that is away, and test_trigger.py waits for one
@pytest.mark.fault(
    "F47", "the brokers are away while idle, and topics never existed (a sample of incidents)"
)
def test_the_page_and_the_command_name_an_input_that_is_away(
    platform: LocalPlatform, totals: Totals
) -> None:
    places, title = Places(platform), "The input is away"
    wait_for_runs(platform, 1)
    # Nobody has created the topics of the other pipelines.
    assert wait_until(
        lambda: places.page("pos", "input", "never read from there. Create it") == "waiting",
        60,
        0.5,
    )
    platform.kafka.stop()
    try:
        assert wait_until(
            lambda: places.page(PIPELINE, "input", "does not answer") == "waiting", 60, 0.5
        )
        assert places.status(PIPELINE, title, platform.kafka.bootstrap) == "waiting"
    finally:
        platform.kafka.start()
    assert wait_until(lambda: not places.page(PIPELINE, "input"), 60, 0.5)


@pytest.mark.heavy  # tests/browser starts a replay, and shows a failed run that links to its log
@pytest.mark.browser
def test_a_run_is_started_in_the_dags_tab_and_a_failed_one_is_red_with_its_log(
    platform: LocalPlatform, totals: Totals
) -> None:
    with platform.as_user() as admin:
        headers = {"Authorization": f"Bearer {admin.token}"}
    with httpx.Client(
        base_url=platform.url, headers=headers, trust_env=False, timeout=60
    ) as client:
        # So that the run stays queued.
        client.patch(f"/api/v2/dags/{PIPELINE}", json={"is_paused": True}).raise_for_status()
        with chromium() as browser:
            page = open_airflow(browser, platform.url, platform.admin.user, platform.admin.password)
            page.goto(f"{platform.url}/dags/{PIPELINE}")
            # The navigation has a link of this name too, which appears before the DAG's tabs do.
            page.locator(f"a[href*='/dags/{PIPELINE}/']", has_text="Sluice").click()
            sluice = page.frame_locator("iframe")
            sluice.get_by_role("button", name="Replay…").click()
            sluice.get_by_role("button", name="Replay into a new generation").click()
            # The message "is queued", which test_page.py expects, disappears if the page renders
            # itself again.
            expect(sluice.get_by_role("region", name="Runs")).to_contain_text("replay")

            run = client.get(f"/api/v2/dags/{PIPELINE}/dagRuns?order_by=-run_after").json()[
                "dag_runs"
            ][0]
            asked = run["conf"], run["triggering_user_name"], run["state"]
            assert asked == ({"action": "replay"}, platform.admin.user, "queued")
            marked = client.patch(
                f"/api/v2/dags/{PIPELINE}/dagRuns/{run['dag_run_id']}", json={"state": "failed"}
            )
            assert marked.status_code == 200, marked.text
            # The page turns red by itself, and links to the log.
            expect(sluice.locator("h1 .badge").first).to_have_text("failed")

            def overview() -> dict[str, Any]:
                pipelines: list[dict[str, Any]] = client.get("/sluice/v1/overview").json()
                return next(each for each in pipelines if each["pipeline"] == PIPELINE)

            # The page may have asked for the overview just before; answers are kept for a moment.
            assert wait_until(lambda: overview()["health"] == "failed", 120, 0.5)
            last = overview()["last_run"]
            assert last["state"] == "failed"
            assert last["log"].startswith(f"/dags/{PIPELINE}/runs/manual__")
            log = page.goto(platform.url + last["log"])
            assert log is not None
            assert log.ok
        refused = client.post(f"/sluice/v1/pipelines/{PIPELINE}/runs", json={"action": "explode"})
        assert refused.status_code == 422
    with platform.as_user(platform.viewer) as viewer:
        headers = {"Authorization": f"Bearer {viewer.token}"}
        refused = httpx.post(
            f"{platform.url}/sluice/v1/pipelines/{PIPELINE}/runs",
            json={},
            headers=headers,
            trust_env=False,
        )
        assert refused.status_code == 403
