"""The orders routes and their responses."""

from __future__ import annotations

import httpx
import pytest

from tests.support.airflow_server import AirflowServer

pytestmark = pytest.mark.api

ODD = '{"locationId":"a/b <i>","orderCount":1'
REVENUE_1234 = (
    '{"locationId":"store_1234","orderType":"GENERAL",'
    '"totalRevenue":{"locationId":"store_1234","runnuingOrderCount":2,"runningRevenue":54.00}}'
)
REVENUE_ODD = (
    '{"locationId":"a/b <i>","orderType":"GENERAL",'
    '"totalRevenue":{"locationId":"a/b <i>","runnuingOrderCount":1,"runningRevenue":1.00}}'
)
REVENUE_5 = (
    '{"locationId":"store_5","orderType":"GENERAL",'
    '"totalRevenue":{"locationId":"store_5","runnuingOrderCount":2,"runningRevenue":5.10}}'
)
REVENUE_RESTAURANT = (
    '{"locationId":"store_1234","orderType":"RESTAURANT",'
    '"totalRevenue":{"locationId":"store_1234","runnuingOrderCount":3,"runningRevenue":0.00}}'
)
AT_15 = (
    '{"locationId":"store_1234","orderCount":1,"orderType":"GENERAL",'
    '"startWindow":"2022-12-05T08:55:15","endWindow":"2022-12-05T08:55:30"}'
)
AT_30 = (
    '{"locationId":"store_1234","orderCount":1,"orderType":"GENERAL",'
    '"startWindow":"2022-12-05T08:55:30","endWindow":"2022-12-05T08:55:45"}'
)
RESTAURANT_AT_15 = (
    '{"locationId":"store_9","orderCount":3,"orderType":"RESTAURANT",'
    '"startWindow":"2022-12-05T08:55:15","endWindow":"2022-12-05T08:55:30"}'
)
WINDOW_REVENUE = (
    '{"locationId":"store_9",'
    '"totalRevenue":{"locationId":"store_9","runnuingOrderCount":3,"runningRevenue":9.90},"orderType":"RESTAURANT",'
    '"startWindow":"2022-12-05T08:55:15","endWindow":"2022-12-05T08:55:30"}'
)
COUNTS = f'{ODD}}},{{"locationId":"store_1234","orderCount":2}},{{"locationId":"store_5","orderCount":2}}'
TYPED_COUNTS = (
    f'{ODD},"orderType":"GENERAL"}},{{"locationId":"store_1234","orderCount":2,"orderType":"GENERAL"}},'
    '{"locationId":"store_5","orderCount":2,"orderType":"GENERAL"},'
    '{"locationId":"store_1234","orderCount":3,"orderType":"RESTAURANT"}'
)


@pytest.mark.parametrize(
    ("path", "body"),
    [
        (
            "count/general_orders?location_id=store_1234",
            '{"locationId":"store_1234","orderCount":2}',
        ),
        (
            "count/restaurant_orders?location_id=store_1234",
            '{"locationId":"store_1234","orderCount":3}',
        ),
        ("count/general_orders?location_id=a%2Fb%20%3Ci%3E", f"{ODD}}}"),
        ("count/general_orders", f"[{COUNTS}]"),
        ("count/general_orders?query_other_hosts=false", f"[{COUNTS}]"),
        ("count", f"[{TYPED_COUNTS}]"),
        ("revenue/general_orders?location_id=store_1234", REVENUE_1234),
        ("revenue/general_orders", f"[{REVENUE_ODD},{REVENUE_1234},{REVENUE_5}]"),
        ("revenue", f"[{REVENUE_ODD},{REVENUE_1234},{REVENUE_5},{REVENUE_RESTAURANT}]"),
        ("windows/count/general_orders", f"[{AT_15},{AT_30}]"),
        ("windows/count", f"[{AT_15},{AT_30},{RESTAURANT_AT_15}]"),
        (
            "windows/count?from_time=2022-12-05T08:55:15&to_time=2022-12-05T08:55:15",
            f"[{AT_15},{RESTAURANT_AT_15}]",
        ),
        ("windows/count?from_time=2022-12-05T08:55:16", f"[{AT_30}]"),
        ("windows/count?to_time=2022-12-05T09:55:29%2B01:00", f"[{AT_15},{RESTAURANT_AT_15}]"),
        ("windows/count?from_time=1670230530000&to_time=1670230530000", f"[{AT_30}]"),
        ("windows/count?from_time=2023-01-01T00:00:00", "[]"),
        ("windows/revenue/restaurant_orders", f"[{WINDOW_REVENUE}]"),
    ],
)
def test_a_route_answers_with_this_body(viewer: httpx.Client, path: str, body: str) -> None:
    answer = viewer.get(f"/v1/orders/{path}")
    assert (answer.status_code, answer.text) == (200, body)
    assert answer.headers["Content-Type"] == "application/json"
    assert answer.headers["X-Sluice-Snapshot"] == "1.1"
    assert answer.headers["X-Sluice-Partial"] == "false"


def test_addresses_of_the_workers(viewer: httpx.Client, airflow: AirflowServer) -> None:
    here = f'"host":"127.0.0.1","port":{airflow.port}'
    assert viewer.get("/v1/metadata/all").text == f"[{{{here}}}]"
    response = viewer.get("/v1/metadata/general_orders/store_1234")
    assert response.text == f'{{{here},"key":"store_1234"}}'


@pytest.mark.parametrize(
    "path",
    [
        "orders/count/x",
        "orders/revenue/generalorders",
        "orders/windows/count/GENERAL",
        "orders/windows/revenue/x",
        "metadata/x/s",
    ],
)
def test_an_unknown_type_of_orders(viewer: httpx.Client, path: str) -> None:
    answer = viewer.get(f"/v1/{path}")
    assert answer.headers["Content-Type"] == "application/problem+json"
    assert answer.json() == {
        "type": "about:blank",
        "title": "Unknown order type",
        "status": 400,
        "detail": "The order type is not known.",
        "nextStep": "Use one of: general_orders, restaurant_orders.",
        "additionalInfo": "Please pass a Valid Order Type",
    }
    assert answer.status_code == 400


@pytest.mark.parametrize(
    "path", ["count/general_orders", "count/restaurant_orders", "revenue/general_orders"]
)
def test_a_missing_key(viewer: httpx.Client, path: str) -> None:
    answer = viewer.get(f"/v1/orders/{path}", params={"location_id": "nowhere"})
    assert (answer.status_code, answer.json()["status"]) == (404, 404)


@pytest.mark.parametrize("time", ["yesterday", "2022-13-01", "9" * 30, "", "1e3"])
def test_an_invalid_time(viewer: httpx.Client, time: str) -> None:
    answer = viewer.get("/v1/orders/windows/count", params={"from_time": time})
    assert (answer.status_code, answer.json()["detail"]) == (400, "`from_time` is not a time.")


def test_a_parameter_of_the_wrong_type(viewer: httpx.Client) -> None:
    answer = viewer.get("/v1/orders/count?query_other_hosts=<script>")
    assert (answer.status_code, answer.json()["title"]) == (422, "Invalid parameters")
    assert "script" not in answer.text
