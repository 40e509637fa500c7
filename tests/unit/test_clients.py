"""The client that waits and the one that is awaited are the same, but for that."""

from __future__ import annotations

import inspect

import pytest

from sluice import AsyncClient, Client

pytestmark = pytest.mark.unit

METHODS = [name for name in vars(Client) if not name.startswith("_")]


def test_both_have_the_same_methods() -> None:
    assert set(METHODS) == {name for name in vars(AsyncClient) if not name.startswith("_")}
    assert "multi_get" in METHODS


@pytest.mark.parametrize("name", [*METHODS, "__init__"])
def test_a_method_takes_and_promises_the_same(name: str) -> None:
    blocking, awaited = (getattr(client, name) for client in (Client, AsyncClient))
    assert inspect.getdoc(blocking) == inspect.getdoc(awaited)
    assert inspect.signature(blocking).parameters == inspect.signature(awaited).parameters
