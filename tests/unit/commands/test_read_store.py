"""`read_store` and `sluice query --local` read a store without a server."""

from __future__ import annotations

import asyncio
import gc
import json
from collections.abc import Iterator
from datetime import UTC, datetime
from decimal import Decimal
from pathlib import Path

import pytest
from typer.testing import CliRunner

from sluice import read_store
from sluice.answers import Entry
from sluice.commands.cli import app
from sluice.errors import Incomplete, NotFound, QueryError
from sluice.settings import settings
from tests.soak.sizes import assert_flat, own_size
from tests.support.states import States

pytestmark = pytest.mark.unit

START, END = (
    datetime(2022, 12, 5, 8, 55, 15, tzinfo=UTC),
    datetime(2022, 12, 5, 8, 55, 30, tzinfo=UTC),
)
START_MS = round(START.timestamp() * 1_000)


@pytest.fixture
def states(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[States]:
    monkeypatch.setenv("SLUICE_HOME", str(tmp_path))
    settings.cache_clear()
    states = States(f"sqlite:///{tmp_path}")
    states.publish({"a": "[1,2.50]"})
    states.publish([(0, "b", -1, -1, "[3,4.00]"), (1, "a", START_MS, START_MS + 15_000, "[7]")])
    yield states
    settings.cache_clear()


def test_entries_are_decoded_and_in_order(states: States) -> None:
    assert read_store("totals") == [Entry("a", 1), Entry("b", 3)]
    assert read_store("revenue", first="b") == [Entry("b", Decimal("4.00"))]
    assert read_store("totals", as_of="1.0", pipeline="orders") == [Entry("a", 1)]
    assert read_store("windows", start="2022-12-05T08:55:15") == [Entry("a", 7, START, END)]


def test_many_reads_leave_no_threads_and_files(states: States) -> None:
    read_store("totals")
    before = own_size()
    gc.disable()
    try:
        for _ in range(20):
            read_store("totals")
            with pytest.raises(NotFound):
                read_store("unknown")
        assert_flat(before, own_size())
    finally:
        gc.enable()


def test_a_limit_reads_the_first_entries_of_a_store_that_is_too_large_to_read_whole(
    states: States, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sluice.query.reader.MAX_ENTRIES", 1)
    with pytest.raises(QueryError, match="more than 1 entries"):
        read_store("totals")
    assert read_store("totals", limit=1) == [Entry("a", 1)]
    assert (
        read_store("totals", limit=2)
        == read_store("totals", limit=10)
        == [Entry("a", 1), Entry("b", 3)]
    )
    result = CliRunner().invoke(
        app, ["query", "range", "totals", "--local", "--limit", "1", "--format", "json"]
    )
    assert [entry["key"] for entry in json.loads(result.stdout)] == ["a"]
    assert "There are more than 1 entries" in result.stderr
    with pytest.raises(QueryError, match="at least 1"):
        read_store("totals", limit=0)
    with pytest.raises(QueryError, match=r"`limit` is 1\.5, but must be a whole number"):
        read_store("totals", limit=1.5)  # type: ignore[arg-type]


def test_a_bound_that_is_not_unicode_is_an_error(states: States) -> None:
    with pytest.raises(QueryError, match=r"prefix='\\ud800' is not valid Unicode text"):
        read_store("totals", prefix="\ud800")


def test_read_store_works_inside_a_running_event_loop(states: States) -> None:
    async def run() -> list[Entry]:
        return read_store("totals")

    assert len(asyncio.run(run())) == 2


def test_errors_have_a_next_step(states: States) -> None:
    with pytest.raises(NotFound, match="Stores in this ledger: revenue, totals, windows"):
        read_store("nothing")
    States(states.database, pipeline="other").publish({"a": "[1,1]"})
    with pytest.raises(QueryError, match="Choose one of: orders, other"):
        read_store("totals")
    Path(states.location(1).removeprefix("sqlite:///")).unlink()
    with pytest.raises(Incomplete, match="worker 1: "):
        read_store("totals", pipeline="orders")


def test_the_command_reads_without_a_server(states: States) -> None:
    result = CliRunner().invoke(
        app, ["query", "range", "revenue", "--local", "--format", "json", "--limit", "1"]
    )
    assert (result.exit_code, json.loads(result.stdout)) == (0, [{"key": "a", "value": 2.5}])
    assert "There are more than 1 entries" in result.stderr


def test_the_command_looks_keys_up_without_a_server(states: States) -> None:
    result = CliRunner().invoke(
        app, ["query", "get", "revenue", "b", "a", "z", "--local", "--format", "json"]
    )
    assert (result.exit_code, [entry["key"] for entry in json.loads(result.stdout)]) == (
        0,
        ["b", "a"],
    )
    result = CliRunner().invoke(app, ["query", "get", "revenue", "z", "--local"])
    assert (result.exit_code, result.stderr.strip()) == (
        1,
        "Not found: Store 'revenue' has none of these keys.\n"
        "List its keys: sluice query scan revenue.",
    )
