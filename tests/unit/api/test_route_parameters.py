"""Parameters in the query of a request to a route."""

from __future__ import annotations

from decimal import Decimal
from urllib.parse import parse_qsl, quote

import msgspec
import pytest

from sluice.api.http.route import InvalidParameters, ParameterReader, query_pairs
from sluice.api.routes.custom_routes import Routes, Stores

routes = Routes("orders")


@routes.get("/orders")
async def orders(
    stores: Stores, least: Decimal, share: float | None = None, limit: int = 5
) -> list[str]:
    return []


def read(**values: str) -> msgspec.Struct:
    query = "&".join(f"{name}={quote(value)}" for name, value in values.items())
    return ParameterReader(routes.routes[0]).read({}, query.encode())


def test_numbers_are_read_as_json_writes_them() -> None:
    assert msgspec.structs.astuple(read(least="1.50", share="-2e-1", limit="7")) == (
        Decimal("1.50"),
        -0.2,
        7,
    )


@pytest.mark.parametrize(
    "number", ["1_000", " 5 ", "+5", "\uff15", "nan", "inf", "0x10", "", "1,5"]
)
@pytest.mark.parametrize("name", ["least", "share", "limit"])
def test_other_texts_are_no_numbers(name: str, number: str) -> None:
    with pytest.raises(InvalidParameters, match=f"{name}: Expected"):
        read(**{"least": "1", name: number})


@pytest.mark.parametrize(
    "query",
    [
        "key=store_1234",
        "key",
        "key=",
        "=",
        "=a",
        "a=b=c",
        "a;b=c",
        "key=a%20b",
        "a=1&b=2",
        "a=1+2",
        "?a=/",
    ],
)
def test_a_query_with_one_plain_parameter_is_read_like_any_other(query: str) -> None:
    assert query_pairs(query) == parse_qsl(query, keep_blank_values=True, errors="strict")
