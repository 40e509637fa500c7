"""Numbers in the query of a request to a custom route."""

from __future__ import annotations

from decimal import Decimal
from urllib.parse import quote

import msgspec
import pytest

from sluice.api.http.route import InvalidParameters, ParameterReader
from sluice.api.routes.custom_routes import Routes, Stores

routes = Routes("orders")


@routes.get("/orders")
async def orders(stores: Stores, least: Decimal, share: float | None = None, limit: int = 5) -> list[str]:
    return []


def read(**values: str) -> msgspec.Struct:
    query = "&".join(f"{name}={quote(value)}" for name, value in values.items())
    return ParameterReader(routes.routes[0]).read({}, query.encode())


def test_numbers_are_read_as_json_writes_them() -> None:
    assert msgspec.structs.astuple(read(least="1.50", share="-2e-1", limit="7")) == (Decimal("1.50"), -0.2, 7)


@pytest.mark.parametrize("number", ["1_000", " 5 ", "+5", "\uff15", "nan", "inf", "0x10", "", "1,5"])
@pytest.mark.parametrize("name", ["least", "share", "limit"])
def test_other_texts_are_no_numbers(name: str, number: str) -> None:
    with pytest.raises(InvalidParameters, match=f"{name}: Expected"):
        read(**{"least": "1", name: number})
