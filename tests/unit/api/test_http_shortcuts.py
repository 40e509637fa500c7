"""The shortcuts of the REST API, which save time per request, compared with Starlette's plain way."""

from __future__ import annotations

import pytest
from starlette.requests import Request
from starlette.responses import Response

from sluice.api.http.replies import JsonResponse
from sluice.api.http.request_headers import header

pytestmark = pytest.mark.unit


def test_a_json_response_has_the_body_and_headers_of_starlettes() -> None:
    body = '{"city":"Zürich"}'.encode()
    shortcut = JsonResponse(body, ((b"etag", b'W/"1"'),))
    plain = Response(
        body,
        headers={"ETag": 'W/"1"', "X-Content-Type-Options": "nosniff"},
        media_type="application/json",
    )
    assert shortcut.body == plain.body
    assert sorted(shortcut.raw_headers) == sorted(plain.raw_headers)
    assert shortcut.status_code == plain.status_code


@pytest.mark.parametrize("name", [b"accept", b"cookie", b"missing"])
def test_a_header_is_found_as_by_starlette(name: bytes) -> None:
    scope = {
        "type": "http",
        "headers": [(b"accept", b"text/html"), (b"accept", b"*/*"), (b"cookie", b"a=1")],
    }
    assert header(scope, name).decode() == Request(scope).headers.get(name.decode(), "")
