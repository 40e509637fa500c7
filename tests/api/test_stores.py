"""The routes for any store."""

from __future__ import annotations

import base64
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from sqlalchemy import make_url

from sluice.api.routes.api_state import CACHE_SECONDS
from sluice.errors import EngineError, TopologyError
from sluice.state.ledger.failures import Failure
from sluice.values.key_owners import owner
from tests.support.states import States

pytestmark = pytest.mark.api

STORES = "/sluice/v1/stores"
REFERENCE = Path(__file__).parents[2] / "docs" / "rest.md"


def keys(answer: httpx.Response) -> list[str]:
    return [entry["key"] for entry in answer.json()["entries"]]


def test_a_key_is_answered_with_its_snapshot_and_worker(viewer: httpx.Client) -> None:
    answer = viewer.get(f"{STORES}/general_orders_revenue/keys/store_1234")
    assert '"value":{"runningOrderCount":2,"runningRevenue":54.00}' in answer.text
    body = answer.json()
    assert body["snapshot"].pop("age_seconds") >= 0
    assert body["snapshot"] == {
        "id": "1.1",
        "published_at": "2026-11-21T12:00:00Z",
        "positions": {"orders": {"0": 20, "1": 5}},
    }
    assert [worker["status"] for worker in body["workers"]] == ["ok"]
    assert not body["partial"]


def test_the_windows_of_a_key(viewer: httpx.Client) -> None:
    path = f"{STORES}/general_orders_count_window/keys/store_1234"
    assert [
        (entry["start"], entry["end"], entry["value"])
        for entry in viewer.get(path).json()["entries"]
    ] == [
        ("2022-12-05T08:55:15Z", "2022-12-05T08:55:30Z", 1),
        ("2022-12-05T08:55:30Z", "2022-12-05T08:55:45Z", 1),
    ]
    between = viewer.get(path, params={"from": "2022-12-05T08:55:30", "to": "2022-12-05T08:55:30Z"})
    assert [entry["start"] for entry in between.json()["entries"]] == ["2022-12-05T08:55:30Z"]
    assert viewer.get(path, params={"from": "2023-01-01"}).status_code == 404
    assert viewer.get(f"{STORES}/general_orders_count/keys/store_1234?from=0").status_code == 400


def test_keys_may_contain_any_character(viewer: httpx.Client) -> None:
    answer = viewer.get(f"{STORES}/general_orders_count/keys/a%2Fb%20%3Ci%3E")
    assert keys(answer) == ["a/b <i>"]


def test_everything_page_by_page(viewer: httpx.Client) -> None:
    path, cursor = f"{STORES}/general_orders_count", None
    results: list[list[str]] = []
    while not results or cursor:
        answer = viewer.get(path, params={"limit": 2} | ({"cursor": cursor} if cursor else {}))
        results.append(keys(answer))
        cursor = answer.json().get("cursor")
    assert results == [["a/b <i>", "store_1234"], ["store_5"]]


@pytest.mark.parametrize(
    ("asked", "found"),
    [
        ({"prefix": "store_"}, ["store_1234", "store_5"]),
        ({"prefix": "store_5"}, ["store_5"]),
        ({"first": "store_2"}, ["store_5"]),
        ({"last": "store_1234"}, ["a/b <i>", "store_1234"]),
        ({"first": "b", "last": "c"}, []),
        ({"prefix": "%"}, []),
        ({"prefix": "' OR 1=1 --"}, []),
    ],
)
def test_a_range_has_the_keys_between_its_bounds(
    viewer: httpx.Client, asked: dict[str, str], found: list[str]
) -> None:
    assert keys(viewer.get(f"{STORES}/general_orders_count", params=asked)) == found


def test_an_earlier_snapshot(viewer: httpx.Client) -> None:
    earlier = viewer.get(f"{STORES}/general_orders_count?as_of=1.0")
    assert keys(earlier) == ["store_1234", "store_5"]
    assert earlier.json()["entries"][0]["value"] == 1
    assert earlier.headers["X-Sluice-Snapshot"] == "1.0"
    assert viewer.get(f"{STORES}/general_orders_count?as_of=1.9").status_code == 404


@pytest.mark.fault("F17", "positions and a snapshot that are not there yet, asked for over HTTP")
@pytest.mark.parametrize(
    "bound",
    [{"min_position": "orders:0:21"}, {"min_position": "orders:7:1"}, {"min_snapshot": "1.2"}],
)
def test_a_bound_that_is_not_reached_is_412_with_the_current_state(
    viewer: httpx.Client, bound: dict[str, str]
) -> None:
    for path in ("", "/keys/store_1234", "/count", "/combine", "/keys"):
        key = {"key": "store_1234"} if path == "/keys" else {}
        refused = viewer.get(f"{STORES}/general_orders_count{path}", params=bound | key)
        assert (refused.status_code, refused.json()["snapshot"]) == (412, "1.1")
        assert refused.json()["positions"] == {"orders": {"0": 20, "1": 5}}
    reached = {"min_position": "orders:0:20,orders:1:5", "min_snapshot": "1.1"}
    assert keys(viewer.get(f"{STORES}/general_orders_count", params=reached)) == [
        "a/b <i>",
        "store_1234",
        "store_5",
    ]


def test_the_list_of_stores(viewer: httpx.Client) -> None:
    stores: dict[str, dict[str, Any]] = {
        store["store"]: store for store in viewer.get(STORES, params={"entries": True}).json()
    }
    assert len(stores) == 9
    windows = stores["general_orders_count_window"]
    assert (
        windows["kind"],
        windows["window_ms"],
        windows["entries"],
        windows["snapshot"]["id"],
    ) == (
        "window",
        15_000,
        2,
        "1.1",
    )
    assert windows["workers"] == [{"number": 0, "status": "ok"}, {"number": 1, "status": "ok"}]
    assert stores["stores"]["entries"] == 1
    assert viewer.get(windows["topology"]).text.startswith("pipeline orders")


def test_a_pipeline_is_failed_or_broken_until_it_recovers(
    viewer: httpx.Client, states: States
) -> None:
    def told() -> list[tuple[str, str, list[tuple[str, str, str]]]]:
        time.sleep(2.1)  # the figures of pipelines are cached for two seconds
        return [
            (one["pipeline"], one["status"],
             [(failure["run"], failure["title"], failure["detail"]) for failure in one["failures"]])
            for one in viewer.get("/sluice/v1/pipelines").json()
        ]  # fmt: skip

    failures = states.ledger.failures
    failures.keep(Failure.of(EngineError("No broker\nat all"), "orders", run="r1"))
    failures.set_files([Failure.of(TopologyError("fraud.py:3 is wrong."), "fraud", kind="file")])
    try:
        assert told() == [
            ("fraud", "broken", [("", "Invalid topology", "fraud.py:3 is wrong.")]),
            ("orders", "failed", [("r1", "The run stopped", "No broker.")]),
        ]
    finally:
        failures.clear("orders", "run")
        failures.set_files([])
    assert told() == [("orders", "ok", [])]


def test_pipelines_and_snapshots(viewer: httpx.Client) -> None:
    (pipeline,) = viewer.get("/sluice/v1/pipelines").json()
    assert pipeline["topics"] == ["orders"]
    snapshots = viewer.get("/sluice/v1/pipelines/orders/snapshots").json()
    assert [snapshot["snapshot"]["id"] for snapshot in snapshots] == ["1.1", "1.0"]
    assert snapshots[0]["counts"]["dead_letter/malformed"] == 2


def test_topologies(viewer: httpx.Client) -> None:
    path = "/sluice/v1/pipelines/orders/topology"
    assert viewer.get(path).text.startswith("pipeline orders")
    drawing = viewer.get(f"{path}?format=svg")
    assert drawing.headers["Content-Type"] == "image/svg+xml"
    assert "default-src 'none'" in drawing.headers["Content-Security-Policy"]
    assert viewer.get(f"{path}?format=exe").status_code == 422


@pytest.mark.parametrize(
    ("path", "status"),
    [
        ("missing", 404),
        ("missing/keys/k", 404),
        ("general_orders_count/keys/none", 404),
        ("../../etc/passwd", 404),
        ("%2e%2e%2fledger/keys/k", 404),
        ("general_orders_count%00", 404),
        ("general_orders_count?limit=0", 422),
        ("general_orders_count?limit=1000000000", 422),
        ("general_orders_count?as_of=../1", 400),
        ("general_orders_count?cursor=x", 400),
        ("general_orders_count?cursor=é", 400),
        ("general_orders_count?cursor=" + "A" * 20_000, 422),
        ("general_orders_count?pipeline=other", 404),
    ],
)
def test_an_invalid_request_gets_a_problem_document(
    viewer: httpx.Client, path: str, status: int
) -> None:
    answer = viewer.get(f"{STORES}/{path}")
    assert answer.headers["Content-Type"] == "application/problem+json"
    assert answer.json()["status"] == answer.status_code == status
    assert {"type", "title", "detail"} <= answer.json().keys()


@pytest.mark.attack("S7", "forged cursors: a pickle, another pipeline, another snapshot, not text")
@pytest.mark.parametrize(
    "content",
    [
        b"gASVAAAAAAA=",
        b'["orders","restaurant_orders_count","1.1","k",-1]',
        b'["payroll","general_orders_count","1.1","k",-1]',
        b'["orders","general_orders_count","9.9","k",-1]',
        b'["orders","general_orders_count","1.1","k",99999999999999999999]',
        b'["orders","general_orders_count","1.1","\\ud800",-1]',
        b"{}",
    ],
)
def test_forged_cursors_are_rejected(viewer: httpx.Client, content: bytes) -> None:
    cursor = base64.urlsafe_b64encode(content).decode()
    answer = viewer.get(f"{STORES}/general_orders_count", params={"cursor": cursor})
    assert answer.status_code == 400


def test_every_response_is_documented(viewer: httpx.Client) -> None:
    document = viewer.get("/sluice/openapi.json").json()
    assert document["openapi"].startswith("3.")
    text = viewer.get("/sluice/openapi.json").text
    for name in {part.split('"')[0] for part in text.split("#/components/schemas/")[1:]}:
        assert name in document["components"]["schemas"]
    page, reference = viewer.get("/sluice/docs").text, REFERENCE.read_text()
    for path in document["paths"]:
        assert path in page
        assert f"`{path}`" in reference


@pytest.fixture
def lost_worker(states: States) -> Iterator[int]:
    """The worker that owns store_1234 is unavailable."""
    number = owner("store_1234", 2)
    shard = Path(make_url(states.location(number)).database or "")
    away = shard.rename(shard.with_suffix(".away"))
    time.sleep(CACHE_SECONDS)
    yield number
    away.rename(shard)


@pytest.mark.fault("F12", "a worker's shard gone, behind Airflow")
def test_a_lost_worker_makes_responses_partial_and_its_keys_503(
    viewer: httpx.Client, lost_worker: int
) -> None:
    everything = viewer.get(f"{STORES}/general_orders_count")
    assert everything.json()["partial"]
    (lost,) = [worker for worker in everything.json()["workers"] if worker["status"] != "ok"]
    assert (lost["number"], lost["status"]) == (lost_worker, "unavailable")
    assert "unable to open" in lost["reason"]
    assert "store_1234" not in keys(everything)

    orders = viewer.get("/v1/orders/count")
    assert (orders.status_code, orders.headers["X-Sluice-Partial"]) == (200, "true")
    assert orders.headers["X-Sluice-Unavailable"] == str(lost_worker)

    for path in (
        f"{STORES}/general_orders_count/keys/store_1234",
        "/v1/orders/count/general_orders?location_id=store_1234",
    ):
        gone = viewer.get(path)
        assert (gone.status_code, gone.json()["title"]) == (503, "State unavailable")
        assert gone.headers["Retry-After"]
    # Every worker has all of a global table.
    assert keys(viewer.get(f"{STORES}/stores")) == ["store_1234"]


def test_the_empty_key_has_a_route(viewer: httpx.Client) -> None:
    refused = viewer.get(f"{STORES}/general_orders_count/keys/")
    assert refused.status_code == 404
    assert refused.json()["detail"].startswith("Store 'general_orders_count' has no such key")
