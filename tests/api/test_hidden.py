"""Hidden names look like missing ones: same status, text, headers, ETags and cursors."""

from __future__ import annotations

from collections.abc import Iterator

import httpx
import pytest

from tests.support.airflow_server import AirflowServer

pytestmark = pytest.mark.api

STORES = "/sluice/v1/stores"
HIDDEN, MISSING = "payroll", "payrolx"
"""Names of equal length, so that responses have equal lengths too."""
OF_A_PIPELINE = [
    f"/sluice/v1/pipelines/{{}}/{what}"
    for what in (
        "snapshots",
        "batches",
        "runs",
        "generations",
        "workers",
        "topology",
        "topology?format=svg",
    )
]
OF_A_STORE = [
    f"{STORES}/totals{what}pipeline={{}}"
    for what in (
        "?", "?as_of=1.0&", "?min_snapshot=9.9&", "?limit=0&", "?as_of=x&", "?worker=99&", "?require=complete&",
        "/keys/boss?", "/keys/none?", "/keys?key=boss&", "/count?", "/combine?", "/top?", "/changes?",
    )
]  # fmt: skip
BY_NAME = [
    f"{STORES}/{{}}",
    f"{STORES}/{{}}/keys/boss",
    f"{STORES}/{{}}/count",
    f"{STORES}/{{}}/changes",
]


@pytest.fixture(scope="module")
def stranger(airflow: AirflowServer) -> Iterator[httpx.Client]:
    """A user who may read no DAG."""
    with airflow.client("stranger") as client:
        yield client


def told(answer: httpx.Response, name: str) -> tuple[int, str, dict[str, str]]:
    """A response without the requested name and the time."""
    headers = {key: value for key, value in answer.headers.items() if key != "date"}
    return answer.status_code, answer.text.replace(name, "…"), headers


@pytest.mark.parametrize("method", ["GET", "HEAD"])
@pytest.mark.parametrize("path", [*OF_A_PIPELINE, *OF_A_STORE])
@pytest.mark.attack(
    "S2", "every route with the name of a hidden pipeline, compared with a missing name"
)
def test_a_hidden_pipeline_looks_like_a_missing_one(
    viewer: httpx.Client, method: str, path: str
) -> None:
    hidden = told(viewer.request(method, path.format(HIDDEN)), HIDDEN)
    assert hidden == told(viewer.request(method, path.format(MISSING)), MISSING)
    assert hidden[0] == 404 or "limit=0" in path


@pytest.mark.parametrize("path", BY_NAME)
@pytest.mark.attack("S2", "the names of hidden stores, compared with missing names")
def test_a_hidden_store_looks_like_a_missing_one(
    admin: httpx.Client, viewer: httpx.Client, path: str
) -> None:
    if not path.endswith("changes"):
        assert admin.get(path.format("totals")).status_code == 200
    hidden = told(viewer.get(path.format("totals")), "totals")
    assert hidden == told(viewer.get(path.format("totalx")), "totalx")
    assert hidden[0] == 404


@pytest.mark.attack("S2", "an ETag and a cursor of another user")
def test_etags_and_cursors_of_other_users_open_nothing(
    admin: httpx.Client, viewer: httpx.Client
) -> None:
    page = admin.get(f"{STORES}/totals", params={"pipeline": HIDDEN, "limit": 1})
    known = {"If-None-Match": page.headers["ETag"]}
    path = f"{STORES}/totals?pipeline="
    assert admin.get(path + HIDDEN, headers=known).status_code == 304
    hidden, missing = (viewer.get(path + name, headers=known) for name in (HIDDEN, MISSING))
    assert told(hidden, HIDDEN) == told(missing, MISSING)
    assert hidden.status_code == 404
    assert (
        viewer.get(f"{STORES}/totals", params={"cursor": page.json()["cursor"]}).status_code == 404
    )


@pytest.mark.attack("S2", "the lists of stores and pipelines")
def test_lists_omit_what_the_user_may_not_read(
    admin: httpx.Client, viewer: httpx.Client, stranger: httpx.Client
) -> None:
    def pipelines(client: httpx.Client) -> set[str]:
        stores = {
            store["pipeline"] for store in client.get(STORES, params={"entries": True}).json()
        }
        for path in ("pipelines", "overview"):
            assert stores == {
                pipeline["pipeline"] for pipeline in client.get(f"/sluice/v1/{path}").json()
            }
        return stores

    assert pipelines(admin) == {"orders", "payroll"}
    assert pipelines(viewer) == {"orders"}
    assert pipelines(stranger) == set()


@pytest.mark.parametrize(
    "path",
    [
        "orders/count",
        "orders/count/general_orders",
        "orders/count/general_orders?location_id=store_1234",
        "orders/revenue",
        "orders/revenue/restaurant_orders",
        "orders/windows/count",
        "orders/windows/count/general_orders",
        "orders/windows/revenue/general_orders",
        "metadata/all",
        "metadata/general_orders/store_1234",
    ],
)
@pytest.mark.attack("S2", "the orders view without permission for its DAG")
def test_the_orders_view_needs_permission_for_its_pipeline(
    viewer: httpx.Client, stranger: httpx.Client, path: str
) -> None:
    assert viewer.get(f"/v1/{path}").status_code == 200
    hidden = stranger.get(f"/v1/{path}")
    missing = stranger.get(
        f"/v1/{path.replace('orders', 'orderz').replace('metadata', 'metadatum')}"
    )
    assert (
        (hidden.status_code, hidden.json()["title"])
        == (404, "Not Found")
        == (missing.status_code, missing.json()["title"])
    )
    assert (
        hidden.json()["detail"].replace("orders", "orderz").replace("metadata", "metadatum")
        == missing.json()["detail"]
    )
