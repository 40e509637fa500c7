"""Routes of an application: responses, errors, permissions, and invalid files."""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from starlette.testclient import TestClient
from starlette.types import ASGIApp, Receive, Scope, Send

from sluice.api.apps import custom_routes_app, generic_app
from sluice.api.auth.permissions import Principal, authenticate
from sluice.api.routes import custom_route_files, custom_routes
from sluice.api.routes.api_state import API_STATE, ApiState
from sluice.errors import TooSlow
from sluice.query import Reader
from sluice.query.catalogue import FRESH_SECONDS
from sluice.support.single_flight import SingleFlightCache
from tests.docs.pages import files, read
from tests.support.api_client import Clerk
from tests.support.states import States

PAGE = "docs/how-to/routes.md"
COUNTS = """
import asyncio, sys
from datetime import date
from typing import Any
from sluice import Routes, Stores
from sluice.errors import QueryError

routes = Routes("orders")
computed = 0

class Odd(QueryError):
    title = "Odd"
    extensions = {"hint": "even"}

@routes.get("/counts/{key:path}")
async def count(stores: Stores, key: str, least: int = 0) -> dict[str, int]:
    entry = await stores.get("totals", key)
    return {key: max(entry.decode(int), least) if entry else 0}

@routes.get("/counts")
async def counts(stores: Stores) -> list[str]:
    async def compute() -> list[str]:
        global computed
        computed += 1
        return [f"{entry.key}={entry.decode(int)} {computed}" for entry in await stores.all("totals")]
    return await stores.cached(compute)

@routes.get("/counts-of-sizes")
async def sizes(stores: Stores) -> list[str]:
    sizes = {"length": 2, "unit": "m"}
    found = [await stores.get("totals", 7.0), *await stores.multi_get("totals", [date(2026, 3, 29), 8, sizes])]
    return [f"{entry.key}={entry.decode(int)}" for entry in found]

@routes.get("/counts-workers", etag=False)
async def workers(stores: Stores) -> int:
    return len(await stores.workers("totals"))

@routes.get("/counts-bad/{how}")
async def bad(stores: Stores, how: str) -> Any:
    if how == "odd":
        raise Odd("It is odd.")
    if how == "exit":
        sys.exit(1)
    if how == "slow":
        await asyncio.sleep(5)
    if how == "store":
        return await stores.count("nothing")
    return 1 / 0 if how == "crash" else object()
"""
PAYROLL = """
from sluice import Routes, Stores
routes = Routes("payroll")

@routes.get("/salaries")
async def salaries(stores: Stores) -> list[int]:
    return [entry.decode(int) for entry in await stores.all("totals")]
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    folder = tmp_path / "pipelines"
    folder.mkdir()
    return folder


def published(home: Path) -> States:
    for pipeline in ("payroll", "orders"):
        states = States(f"sqlite:///{home}", pipeline=pipeline)
        states.publish({"a": "[1,2]", "b/c": "[3,4]"})
    return states


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    home = tmp_path_factory.mktemp("served")
    (home / "pipelines").mkdir()
    write(home / "pipelines", counts=COUNTS, payroll=PAYROLL)
    return home


@pytest.fixture(scope="module")
def states(home: Path) -> States:
    return published(home)


@pytest.fixture(scope="module")
def v1(home: Path, states: States) -> Iterator[TestClient]:
    with client(custom_routes_app(home / "pipelines"), states, "/v1") as http:
        yield http


def client(app: ASGIApp, states: States, prefix: str, pipeline: str = "orders") -> TestClient:
    """A client of a user who may read one pipeline."""
    clerk = Clerk(pipeline)
    state = ApiState(states.ledger, Reader(states.ledger))
    state.responses = SingleFlightCache(60.0, 10**6)  # however slow the machine is

    async def refresh() -> Principal:
        return clerk

    async def with_log_in(scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http":
            scope.setdefault("state", {})[API_STATE] = state
            scope["root_path"] = prefix
            authenticate(scope, clerk, refresh)
            await app(scope, receive, send)
        else:
            for answer in ("lifespan.startup.complete", "lifespan.shutdown.complete"):
                await receive()
                await send({"type": answer})

    return TestClient(with_log_in, raise_server_exceptions=False)


def write(folder: Path, **contents: str) -> None:
    for name, text in contents.items():
        (folder / f"{name}_routes.py").write_text(text)


def test_responses_have_the_headers_of_the_rest_api(v1: TestClient, states: States) -> None:
    answer = v1.get("/v1/counts/d/e")
    assert (answer.status_code, answer.json()) == (200, {"d/e": 0})
    assert answer.headers["X-Sluice-Snapshot"] == "1.0"
    assert answer.headers["X-Sluice-Partial"] == "false"
    tag = {"If-None-Match": answer.headers["ETag"]}
    assert v1.get("/v1/counts/d/e", headers=tag).status_code == 304
    states.publish({"d/e": "[5,6]"})
    time.sleep(2 * FRESH_SECONDS)
    assert v1.get("/v1/counts/d/e", headers=tag).json() == {"d/e": 5}
    live = v1.get("/v1/counts-workers")
    assert (live.json(), live.headers["Cache-Control"], "ETag" in live.headers) == (
        2,
        "no-store",
        False,
    )


def test_a_key_of_any_type_is_looked_up_by_its_text(v1: TestClient, states: States) -> None:
    states.publish({"7.0": "[1,1]", "2026-03-29": "[2,2]", '{"length":2,"unit":"m"}': "[3,3]"})
    time.sleep(2 * FRESH_SECONDS)
    assert v1.get("/v1/counts-of-sizes").json() == [
        "7.0=1",
        "2026-03-29=2",
        '{"length":2,"unit":"m"}=3',
    ]


def test_concurrent_requests_share_a_computation(v1: TestClient) -> None:
    first = v1.get("/v1/counts")
    assert {"a=1 1", "b/c=3 1"} <= set(first.json())
    assert v1.get("/v1/counts").json() == first.json()
    assert first.headers["X-Sluice-Partial"] == "false"


@pytest.mark.parametrize(
    ("path", "status", "members"),
    [
        ("counts/a?least=x", 422, {"title": "Invalid parameters"}),
        ("counts/a?most=1", 422, {"nextStep": "Its parameters: least."}),
        ("counts-bad/odd", 400, {"title": "Odd", "hint": "even"}),
        ("counts-bad/store", 404, {"detail": "There is no store 'nothing'."}),
        ("counts-bad/crash", 500, {"detail": "The request failed."}),
        ("counts-bad/exit", 500, {"detail": "The request failed."}),
        ("counts-bad/unencodable", 500, {"detail": "The request failed."}),
        ("nothing", 404, {"detail": "There is nothing at this path."}),
    ],
)
def test_every_error_is_a_problem_document(
    v1: TestClient, path: str, status: int, members: dict[str, str]
) -> None:
    answer = v1.get(f"/v1/{path}")
    assert answer.headers["Content-Type"] == "application/problem+json"
    assert (answer.status_code, answer.json()["status"]) == (status, status)
    assert members.items() <= answer.json().items()
    assert v1.post("/v1/counts").status_code == 405


def test_a_route_has_a_time_limit(v1: TestClient, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(custom_routes, "ROUTE_SECONDS", 0.1)
    answer = v1.get("/v1/counts-bad/slow")
    assert (answer.status_code, answer.json()["title"]) == (503, TooSlow.title)


def shape(answer: Any) -> tuple[int, str, set[str]]:
    return answer.status_code, answer.text, set(answer.headers)


@pytest.mark.attack("S2", "routes of a hidden pipeline, and their description")
def test_routes_of_a_hidden_pipeline_look_like_missing_ones(
    v1: TestClient, home: Path, states: States
) -> None:
    for how in ("?", "?x=1"):
        assert shape(v1.get(f"/v1/salaries{how}")) == shape(v1.get(f"/v1/salariex{how}"))
    assert shape(v1.post("/v1/salaries")) == shape(v1.post("/v1/salariex"))
    with client(generic_app(home / "pipelines"), states, "/sluice") as sluice:
        described = sluice.get("/sluice/openapi.json").json()
    assert "/v1/counts/{key}" in described["paths"]
    assert "salaries" not in str(described)


def test_a_broken_file_does_not_affect_others(
    folder: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    write(
        folder,
        counts=COUNTS,
        exits="import sys; sys.exit(4)",
        raises="1 / 0",
        empty="",
        dies="import os; os._exit(5)",
    )
    write(
        folder,
        zz=COUNTS,
        text=PAYROLL.replace("-> list[int]", ""),
        any=PAYROLL.replace("/salaries", "/{name}"),
    )
    with (
        caplog.at_level(logging.ERROR),
        client(custom_routes_app(folder), published(tmp_path), "/v1") as http,
    ):
        assert http.get("/v1/counts/a").json() == {"a": 1}
    broken = {
        file.stem.partition("_")[0]: str(error)
        for file, error in custom_route_files.load_routes(folder).broken.items()
    }
    assert set(broken) == {"exits", "raises", "empty", "dies", "zz", "text", "any"}
    assert "ZeroDivisionError: division by zero" in broken["raises"]
    assert "with status 5" in broken["dies"]
    assert 'Add: routes = Routes("PIPELINE").' in broken["empty"]
    assert "salaries does not annotate return" in broken["text"]
    assert "belong to counts_routes.py" in broken["zz"]
    assert "any_routes.py" in caplog.text


def test_a_file_that_hangs_is_an_error(folder: Path) -> None:
    write(folder, hangs="while True: pass")
    (error,) = custom_route_files.load_routes(folder, seconds=0.5).broken.values()
    assert "is still being imported after 0.5 s" in str(error)


def test_the_example_of_the_documentation(folder: Path, tmp_path: Path) -> None:
    states = States(f"sqlite:///{tmp_path}", pipeline="pages")
    states.stores = (states.store("views_count"),)
    states.ledger.generations.register(states.info())
    states.publish({"home": "[7]"})
    (text,) = (text for path, text in files(read(PAGE)).items() if path.endswith("pages_routes.py"))
    write(folder, pages=text)
    with client(custom_routes_app(folder), states, "/v1", "pages") as http:
        assert http.get("/v1/pages/home/views").json() == {"page": "home", "views": 7}
        assert http.get("/v1/pages/none/views").json()["detail"] == "Nobody has viewed 'none'."


def test_a_folder_is_loaded_once_for_concurrent_first_requests(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    loads: list[Path] = []
    load = custom_route_files.load_routes

    def counted(of: Path) -> custom_route_files.RouteFiles:
        loads.append(of)
        time.sleep(0.2)
        return load(of)

    monkeypatch.setattr(custom_route_files, "load_routes", counted)
    with ThreadPoolExecutor(4) as pool:
        routes = {*pool.map(custom_route_files.routes_in, [folder] * 4)}
    assert loads == [folder]
    assert len(routes) == 1
