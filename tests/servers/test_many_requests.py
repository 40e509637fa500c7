"""A state server and the REST API answer many requests with the same threads and files."""

from __future__ import annotations

import http.client
import itertools

from tests.servers.hosts import TOKEN, Host
from tests.soak.sizes import assert_flat, own_size

STORE = "/sluice/v1/stores/general_orders_count"
QUERY = b'{"type":"Value","group_id":0,"store_column":0,"as_of":0,"key":"store_1"}'
REQUESTS = [
    *[("GET", f"{STORE}/keys/store_{number}", b"") for number in range(40)],
    ("GET", STORE, b""),
    ("GET", f"{STORE}/top?limit=3", b""),
    ("GET", f"{STORE}/keys/absent", b""),
    ("GET", "/sluice/v1/pipelines", b""),
    ("GET", "/sluice/v1/stores/unknown", b""),
    ("POST", "/local/orders/1/0/query", QUERY),
    ("POST", "/local/orders/1/0/query", b"{"),
    ("GET", "/local/orders/1/0/batches", b""),
    ("GET", "/nothing", b""),
]
NEW_CONNECTION = 100
"""Every hundredth request has a connection of its own."""


def test_three_thousand_requests_leave_no_threads_and_files(host: Host) -> None:
    ask(host, 500)
    before = own_size()
    statuses = ask(host, 3_000)
    assert_flat(before, own_size())
    assert statuses == {200, 400, 404}


def ask(host: Host, count: int) -> set[int]:
    """Send requests of all kinds. Returns the statuses of the answers."""
    connection, statuses = connect(host), set()
    for number, (method, path, body) in enumerate(
        itertools.islice(itertools.cycle(REQUESTS), count)
    ):
        if number % NEW_CONNECTION == 0:
            connection.close()
            connection = connect(host)
        connection.request(method, path, body, {"Authorization": f"Bearer {TOKEN}"})
        answer = connection.getresponse()
        answer.read()
        statuses.add(answer.status)
    connection.close()
    return statuses


def connect(host: Host) -> http.client.HTTPConnection:
    return http.client.HTTPConnection("127.0.0.1", host.port, timeout=60)
