"""Invalid requests of every kind get a problem document with the reason, never a 5xx."""

from __future__ import annotations

import http.client
from urllib.parse import quote

import httpx
import msgspec
import pytest

from tests.servers.hosts import TOKEN, Host
from tests.support.states import States

COUNT = "/sluice/v1/stores/general_orders_count"
REVENUE = "/sluice/v1/stores/general_orders_revenue"
ROUTES = [
    "/sluice/v1/stores",
    COUNT,
    f"{COUNT}/keys/store_1",
    f"{COUNT}/keys?key=store_1",
    f"{COUNT}/count",
    f"{COUNT}/combine",
    f"{COUNT}/top",
    f"{COUNT}/changes",
    "/sluice/v1/pipelines",
    "/sluice/v1/pipelines/orders/snapshots",
    "/sluice/v1/pipelines/orders/workers",
    "/sluice/v1/pipelines/orders/topology",
    "/v1/orders/count",
    "/v1/orders/count/general_orders",
    "/v1/orders/revenue",
    "/v1/orders/revenue/general_orders",
    "/v1/orders/windows/count",
    "/v1/orders/windows/count/general_orders",
    "/v1/orders/windows/revenue/general_orders",
    "/v1/metadata/all",
    "/v1/metadata/general_orders/store_1",
]
SENSELESS = [
    f"{COUNT}?%",
    f"{COUNT}?a=%ff",
    f"{COUNT}?limit=%ed%a0%80",
    f"{COUNT}?=1",
    f"{COUNT}?&&=&limit",
    f"{COUNT}?limit=1&limit=1",
    f"{COUNT}?cursor=",
    f"{COUNT}?cursor=%00",
    f"{COUNT}?prefix={'x' * 2_001}",
    f"{COUNT}?pipeline={'x' * 201}",
    f"{COUNT}/keys",
    f"{COUNT}/keys?key={'x' * 2_001}",
    f"{COUNT}/keys/{'x' * 2_001}",
    f"{COUNT}/keys/",
    f"{COUNT}/top?smallest=perhaps",
    f"{COUNT}/combine?order=cheapest",
    f"{COUNT}?require=some",
    f"{COUNT}/nothing",
    "/sluice/v1/stores//count",
    f"/sluice/v1/stores/{'x' * 10_000}",
    "/sluice/v1/stores?entries=2",
    "/sluice/v1/pipelines/orders/snapshots?limit=0",
    "/sluice/v1/pipelines/orders/topology?format=pdf",
    "/sluice/v1/pipelines/%00/workers",
    "/v1/orders/count/none",
    "/v1/orders/windows/count?from_time=tomorrow",
    f"/v1/orders/windows/count?to_time={'9' * 90}",
    "/v1/metadata/none/x",
    "/v1/metadata/general_orders/",
]
"""Parameter values that are not text, empty, too long or duplicated, and paths that do not exist."""
HUGE = [
    "-1",
    "1e400",
    "NaN",
    "Infinity",
    "-Infinity",
    "1.5",
    "",
    " ",
    "0x10",
    "1_000",
    "²",
    "9" * 20,
    "9" * 4_000,
]
"""Values that are not numbers, or that do not fit any type."""


def answered(
    host: Host, path: str, method: str = "GET", **headers: str
) -> tuple[int, dict[str, str], bytes]:
    """The response to a path that is sent unmodified."""
    raw = http.client.HTTPConnection("127.0.0.1", host.port, timeout=30)
    raw.request(method, path, headers={"Authorization": f"Bearer {TOKEN}"} | headers)
    answer = raw.getresponse()
    content = (
        b"" if path.split("?")[0].endswith("/changes") and answer.status == 200 else answer.read()
    )
    raw.close()
    return answer.status, {name.lower(): value for name, value in answer.getheaders()}, content


def refused(host: Host, path: str, method: str = "GET", **headers: str) -> dict[str, object]:
    """The problem document of a response. Raises AssertionError if the response is not one."""
    status, said, content = answered(host, path, method, **headers)
    assert 400 <= status < 500, (path, status, content[:300])
    assert said["content-type"] == "application/problem+json", path
    document: dict[str, object] = msgspec.json.decode(content)
    assert document["status"] == status
    assert document["title"]
    assert document["detail"]
    return document


def test_every_route_works_without_parameters(host: Host) -> None:
    for path in ROUTES:
        assert answered(host, path)[0] == 200, path


@pytest.mark.parametrize("path", ROUTES)
@pytest.mark.attack("S5", "unknown and duplicate parameters")
def test_a_misspelled_parameter_is_named(host: Host, path: str) -> None:
    for name in ("as_off", "store", "%00", "a%20b", "%3Cb%3E"):
        problem = refused(host, f"{path}{'&' if '?' in path else '?'}{name}=1.0")
        assert (problem["status"], problem["title"]) == (422, "Invalid parameters")
        assert "has no parameter" in str(problem["detail"])
    assert "'as_off'" in str(refused(host, f"{COUNT}?as_off=1.0")["detail"])
    assert "as_of" in str(refused(host, f"{COUNT}?as_off=1.0")["nextStep"])
    assert (
        refused(host, f"{COUNT}?as_of=1.0&as_of=1.1")["detail"]
        == "The parameter as_of is given twice."
    )


@pytest.mark.parametrize(
    ("path", "named"),
    [
        ("/top?field=runningRevenu", "field: "),
        ("/top?field=runningRevenue.cents", "field: "),
        ("/combine?field=revenue", "field: "),
        ("/combine?group_by=city", "group_by: "),
    ],
)
def test_a_field_that_no_value_has_is_named(host: Host, path: str, named: str) -> None:
    problem = refused(host, REVENUE + path)
    assert (problem["status"], problem["title"]) == (422, "Unknown field")
    assert str(problem["detail"]).startswith(named)
    for right in ("/top?field=runningRevenue", "/combine?field=runningRevenue&group_by=_key"):
        assert answered(host, REVENUE + right)[0] == 200


@pytest.mark.parametrize(
    ("path", "status"),
    [
        ("?limit={}", 422),
        ("?worker={}", 422),
        ("/top?limit={}", 422),
        ("/combine?limit={}", 422),
        ("?as_of=1.{}", 400),
        ("?as_of={}.1", 400),
        ("?as_of={}", 400),
        ("?min_snapshot=1.{}", 400),
        ("?min_snapshot={}.1", 400),
        ("?min_position=orders:{}:1", 400),
        ("?min_position=orders:1:{}", 400),
        ("?from={}", 400),
        ("?to={}", 400),
    ],
)
@pytest.mark.attack(
    "S5", "numbers that are too large, too small or not numbers, in every parameter"
)
def test_any_number_gets_a_response_below_500(host: Host, path: str, status: int) -> None:
    for number in HUGE:
        if number == "-1" and path in ("?from={}", "?to={}", "?as_of={}"):
            continue  # a time before 1970
        problem = refused(host, COUNT + path.format(quote(number)))
        assert problem["status"] in {status, 400, 404, 410, 412, 422}, (number, problem)
    assert refused(host, f"{COUNT}?as_of=1.9223372036854775808")["status"] == 400
    assert refused(host, f"{COUNT}?as_of=1.9223372036854775807")["status"] == 404


@pytest.mark.parametrize(
    "since", ["1.9223372036854775808", "9" * 20 + ".1", "x", "1.-1", "", "\xff"]
)
@pytest.mark.attack("S5", "a stream of changes since an impossible snapshot")
def test_a_stream_begins_at_a_snapshot(host: Host, since: str) -> None:
    assert refused(host, f"{COUNT}/changes", **{"Last-Event-ID": since})["status"] == 400


@pytest.mark.parametrize("path", [*SENSELESS, "/", "/..", "/%2e%2e/local"])
@pytest.mark.attack(
    "S5", "queries that are not text, empty, too long or duplicated, and missing paths"
)
def test_invalid_parameters_get_a_problem_document(host: Host, path: str) -> None:
    refused(host, path)


@pytest.mark.parametrize("method", ["POST", "PUT", "PATCH", "DELETE", "OPTIONS", "TRACE", "FROB"])
@pytest.mark.attack("S5", "unsupported methods")
def test_unsupported_methods_are_405(host: Host, method: str) -> None:
    for path in ROUTES:
        status, headers, content = answered(host, path, method)
        # The HTTP server itself rejects a name that is not a method.
        assert (status, headers.get("allow")) == (405, "GET, HEAD") or (
            method == "FROB" and status == 400
        ), path
        assert content


def test_head_has_the_headers_of_get(host: Host) -> None:
    for path in ROUTES:
        status, headers, content = answered(host, path, "HEAD")
        assert (status, content) == (200, b""), path
        assert headers["content-type"] == answered(host, path)[1]["content-type"]


@pytest.mark.parametrize(
    "headers",
    [
        {"If-None-Match": "\xff\xfe"},
        {"If-None-Match": '"' * 5_000},
        {"Accept": "text/plain;q=0, */*;q=0"},
        {"Content-Type": "application/json; charset=\xff"},
        {"Accept-Encoding": "br;q=9, ,"},
        {"X-Forwarded-For": "\xff", "X-Forwarded-Proto": "gopher", "Forwarded": "for=;;;"},
        {"Range": "bytes=-1"},
        {"Cookie": "=;=;;\xff=\xff"},
        {"Expect": "100-continue"},
    ],
)
def test_irrelevant_headers_change_nothing(host: Host, headers: dict[str, str]) -> None:
    status, _, content = answered(host, COUNT, **headers)
    assert (status, msgspec.json.decode(content)["partial"]) == (200, False)


@pytest.mark.parametrize(
    "body", [b"{", b"[" * 100_000, b"\xff", b"null", b'{"a": 1e999}', b"x" * 100_000]
)
def test_the_body_of_a_get_request_is_not_read(host: Host, body: bytes) -> None:
    answer = host.ask("GET", COUNT, content=body)
    assert answer.status_code == 200


@pytest.mark.attack("S7", "a cursor truncated at every length")
def test_a_truncated_cursor_is_rejected(host: Host) -> None:
    cursor = host.get(COUNT, limit=1).json()["cursor"]
    for length in range(len(cursor) - 1):
        assert refused(host, f"{COUNT}?cursor={cursor[:length]}")["status"] == 400


def test_keys_may_contain_nul(host: Host) -> None:
    for path in ("keys/%00", "keys/store_1%00", "keys/%00shared"):
        assert refused(host, f"{COUNT}/{path}")["status"] == 404
    for path in (
        "keys?key=%00",
        "?prefix=%00",
        "?first=%00&last=%00",
        "?prefix=a%00b",
        "?limit=1&prefix=%00",
    ):
        answer = msgspec.json.decode(
            answered(host, COUNT + ("/" if path[0] == "k" else "") + path)[2]
        )
        assert (answer["entries"], answer["partial"]) == ([], False)
    assert refused(host, f"{COUNT}?as_of=run:%00")["status"] == 404


def test_a_pipeline_without_stores_has_workers(hosts: list[Host], states: States) -> None:
    states.ledger.generations.register(
        msgspec.structs.replace(states.info(), pipeline="steps", stores=())
    )
    body = hosts[0].get("/sluice/v1/pipelines/steps/workers").json()
    assert [(worker["number"], worker["stores"], worker["reason"]) for worker in body] == [
        (number, [], "Nothing is published yet.") for number in range(4)
    ]


@pytest.mark.parametrize("levels", [90, 960, 5_000])
@pytest.mark.attack("S5", "a value nested as deeply as JSON decoders allow, and deeper")
def test_a_deeply_nested_value_is_not_a_500(hosts: list[Host], states: States, levels: int) -> None:
    states.stores = tuple(
        msgspec.structs.replace(store, value="") if store.name == "general_orders_count" else store
        for store in states.stores
    )
    states.ledger.generations.register(states.info())
    deep = f"[{'[' * levels}{']' * levels},1]"
    states.publish([(0, "deep", -1, -1, deep)])
    results: dict[str, int] = {}
    for path in ("", "/keys/deep", "/keys?key=deep", "/count", "/combine?field=a", "/top?field=a"):
        status, _, content = answered(hosts[0], COUNT + path)
        results[path] = status
        # This test cannot parse a response with the deeply nested value, because its own stack is
        # deep already.
        assert status in (200, 400) or (status, msgspec.json.decode(content)["title"]) == (
            503,
            "State unavailable",
        )
    if levels == 90:
        assert set(results.values()) == {200}
    assert httpx.get(f"http://{hosts[0].address}/v1/x", timeout=10).status_code == 401, (
        "the server still responds"
    )
