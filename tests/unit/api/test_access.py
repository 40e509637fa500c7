"""Response times reveal nothing: hidden and missing names cost the same look-ups."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from starlette.requests import Request

from sluice.api.routes.access import Access
from sluice.api.routes.api_state import ApiState
from sluice.errors import NotFound
from sluice.query import Reader
from tests.support.api_client import Clerk
from tests.support.states import States

pytestmark = pytest.mark.unit

PIPELINES = ("orders", "payroll", "pensions")


@pytest.fixture
def state(tmp_path: Path) -> ApiState:
    """Three pipelines; `salaries` is a store of the second only."""
    for name in PIPELINES:
        states = States(f"sqlite:///{tmp_path}", workers=1, pipeline=name)
        states.publish({"a": "[1,2]"})
        if name == "payroll":
            states.stores = (*states.stores, states.store("salaries"))
            states.ledger.generations.register(states.info())
    return ApiState(states.ledger, Reader(states.ledger))


def looked_up(state: ApiState, store: str, pipeline: str | None) -> set[str]:
    """The look-ups for a new user whose query finds nothing."""
    clerk = Clerk("orders")
    ask = Access(Request({"type": "http", "headers": []}), state, clerk)
    with pytest.raises(NotFound):
        asyncio.run(_ask(ask, store, pipeline))
    return clerk.looked_up


async def _ask(ask: Access, store: str, pipeline: str | None) -> None:
    if store or pipeline is None:
        await ask.pin(store, pipeline)
    else:
        await ask.generation(pipeline)


@pytest.mark.parametrize(
    ("store", "pipeline"),
    [
        ("salaries", None),
        ("nothing", None),
        ("totals", "payroll"),
        ("totals", "nothing"),
        ("", "payroll"),
        ("", "nothing"),
    ],
)
@pytest.mark.attack("S2", "measuring the response time for a name")
def test_a_hidden_name_costs_as_many_look_ups_as_a_missing_one(
    state: ApiState, store: str, pipeline: str | None
) -> None:
    assert looked_up(state, store, pipeline) == set(PIPELINES)
