"""Whatever answers at the address, the clients raise errors of `sluice.errors` with a next step."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from datetime import UTC, datetime
from http.server import BaseHTTPRequestHandler, HTTPServer
from typing import ClassVar

import msgspec
import pytest
from typing_extensions import override

from sluice import Client
from sluice.answers import Change, Snapshot
from sluice.errors import SluiceError, StateError

pytestmark = pytest.mark.unit

PAGE = b"<html>Sign in</html>"
CHANGE = Change(
    pipeline="p", store="s", snapshot=Snapshot("1.7", datetime(2026, 11, 21, tzinfo=UTC), 1.0, {}), changed=[],
    more=False, workers=(),
)  # fmt: skip
EVENT = b"event: snapshot\ndata: %b\n\n" % msgspec.json.encode(CHANGE)


class Other(BaseHTTPRequestHandler):
    """A server that is not Airflow."""

    log_in = PAGE
    since: ClassVar[list[str | None]] = []
    """The header Last-Event-ID of each request for changes."""

    def do_POST(self) -> None:
        self.answer(200, self.log_in)

    def do_GET(self) -> None:
        if self.path.endswith("/changes"):
            self.since.append(self.headers.get("Last-Event-ID"))
            self.answer(200, EVENT)
        elif self.path.endswith("/count"):
            self.answer(200, PAGE, ("Content-Encoding", "gzip"))
        else:
            self.answer(401 if "Authorization" not in self.headers else 200, b"[]")

    def answer(self, status: int, body: bytes, *headers: tuple[str, str]) -> None:
        self.send_response(status)
        for name, value in headers:
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    @override
    def log_message(self, format: str, *args: object) -> None:
        pass


@pytest.fixture
def address() -> Iterator[str]:
    Other.since.clear()
    server = HTTPServer(("127.0.0.1", 0), Other)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    thread.join()
    server.server_close()


@pytest.mark.parametrize("log_in", [PAGE, b"{}", b'{"access_token": 1}', b"null", b"\xff"])
def test_a_log_in_that_answers_without_a_token(
    address: str, log_in: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Other, "log_in", log_in)
    with (
        Client(address, user="me", password="secret") as client,
        pytest.raises(StateError) as refused,
    ):
        client.stores()
    assert "/auth/token did not answer with a token" in refused.value.detail
    assert "proxy" in refused.value.next_step
    assert "secret" not in str(refused.value)


def test_a_body_that_cannot_be_decoded(address: str) -> None:
    with (
        Client(address, token="t") as client,
        pytest.raises(SluiceError, match="DecodingError") as refused,
    ):
        client.count("s")
    assert refused.value.next_step


def test_a_stream_whose_log_in_expires_goes_on_after_another_log_in(
    address: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Other, "log_in", b'{"access_token": "t"}')
    monkeypatch.setattr("sluice.client.queries._SHORT_SECONDS", 0.0)
    with Client(address, user="me", password="secret") as client:
        changes = client.changes("s")
        assert [next(changes).snapshot.id for _ in range(3)] == ["1.7"] * 3
    assert Other.since == [None, "1.7", "1.7"]


def test_a_stream_of_changes_that_the_server_ends(address: str) -> None:
    with Client(address, token="t") as client:
        changes = client.changes("s")
        assert next(changes).snapshot.id == "1.7"
        with pytest.raises(StateError, match="ended the stream") as ended:
            next(changes)
    assert "since='1.7'" in ended.value.next_step
