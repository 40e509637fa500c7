"""Two snapshots of a store compared: how many entries are the same, changed, missing and added, with examples."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from sluice.query import differences
from tests.support.api_client import Api, User
from tests.support.states import States

pytestmark = pytest.mark.unit

DIFF = "/v1/stores/totals/diff"


@pytest.fixture
def states(tmp_path: Path) -> States:
    states = States(f"sqlite:///{tmp_path}")
    states.publish({"same": "[1,1]", "changed": "[1,1]", "deleted": "[1,1]", "later": None})
    states.publish({"changed": "[2,1]", "deleted": None, "later": "[5,1]"})
    return states


def numbers(diff: dict[str, Any]) -> tuple[int, ...]:
    return tuple(diff[name] for name in ("same", "changed", "missing", "added"))


def test_entries_that_changed_went_and_came(api: Api) -> None:
    diff = api.get(DIFF, before="1.0")
    assert (diff["before"]["id"], diff["after"]["id"], numbers(diff)) == (
        "1.0",
        "1.1",
        (1, 1, 1, 1),
    )
    assert diff["examples"] == [
        {"key": "changed", "kind": "changed", "before": 1, "after": 2},
        {"key": "deleted", "kind": "missing", "before": 1},
        {"key": "later", "kind": "added", "after": 5},
    ]


def test_a_column_of_a_row_that_another_store_changed_is_the_same(api: Api) -> None:
    assert numbers(api.get("/v1/stores/revenue/diff", before="1.0")) == (2, 0, 1, 1)


def test_a_snapshot_compared_with_itself(api: Api) -> None:
    diff = api.get(DIFF, before="1.1", after="1.1")
    assert (numbers(diff), diff["examples"]) == ((3, 0, 0, 0), [])


def test_windows_are_compared_one_by_one(states: States, api: Api) -> None:
    start = 1_670_230_500_000
    states.publish(
        [(1, "k", start, start + 15_000, "[1]"), (1, "k", start + 15_000, start + 30_000, "[1]")]
    )
    states.publish([(1, "k", start + 15_000, start + 30_000, "[2]")])
    diff = api.get("/v1/stores/windows/diff", before="1.2")
    assert numbers(diff) == (1, 1, 0, 0)
    assert [diff["examples"][0][name] for name in ("start", "end")] == [
        "2022-12-05T08:55:15Z",
        "2022-12-05T08:55:30Z",
    ]


def test_a_generation_built_beside_the_current_one_is_compared_with_it(
    states: States, api: Api
) -> None:
    shadow = replace(states, generation=2, stores=states.stores)
    shadow.ledger.generations.promote(states.ref)  # the first stays what queries read
    shadow.publish({"same": "[1,1]", "changed": "[3,1]", "later": "[5,1]"})
    diff = api.get(DIFF, before="1.1", after="2.0")
    assert numbers(diff) == (2, 1, 0, 0)
    assert diff["examples"] == [{"key": "changed", "kind": "changed", "before": 2, "after": 3}]
    assert api.get("/v1/stores/totals/keys/changed")["entries"][0]["value"] == 2


def test_all_pages_are_compared_and_only_a_few_examples_shown(
    states: States, api: Api, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(differences, "_PAGE", 7)
    states.publish({f"k{number:03}": "[1,1]" for number in range(100)})
    states.publish({f"k{number:03}": "[2,1]" for number in range(0, 100, 2)})
    diff = api.get(DIFF, before="1.2")
    assert numbers(diff) == (53, 50, 0, 0)
    assert len(diff["examples"]) == differences.EXAMPLES


@pytest.mark.parametrize(
    ("asked", "status"),
    [
        ({}, 422),
        ({"before": "1.9"}, 404),
        ({"before": "yesterday"}, 400),
        ({"before": "run:x"}, 404),
    ],
)
def test_a_snapshot_that_there_is_not(api: Api, asked: dict[str, str], status: int) -> None:
    assert api.ask("GET", DIFF, params=asked).status_code == status


@pytest.mark.attack("S2", "comparing snapshots of a store that one may not read")
def test_a_hidden_store_looks_like_a_missing_one(api: Api) -> None:
    api.user = User(hidden=("orders",))
    assert api.ask("GET", DIFF, params={"before": "1.0"}).status_code == 404
