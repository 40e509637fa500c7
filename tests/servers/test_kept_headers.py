"""Queries of stores that keep headers, through the servers of three hosts and without a server."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from sluice import Client, read_store
from sluice.answers import Entry, Header
from sluice.commands.cli import app
from sluice.settings import settings
from sluice.state.model import NO_WINDOW
from sluice.values.kept_headers import KEEPS_HEADERS
from tests.servers.hosts import TOKEN, Host
from tests.support.states import States, ledger_url

START = datetime(2026, 3, 29, 12, tzinfo=UTC)
START_MS = round(START.timestamp() * 1_000)
END = datetime(2026, 3, 29, 12, 0, 15, tzinfo=UTC)

TRACE = '[{"key":"trace","value":"MQ=="}]'
ODD = '[{"key":"trace","value":"/w=="},{"key":"empty","value":null}]'
TRACED = [Header("trace", "1")]


@pytest.fixture
def states(hosts: list[Host], tmp_path: Path) -> States:
    """A snapshot of stores with and without headers, whose four workers are on three hosts."""
    states = States(f"sqlite:///{tmp_path}", workers=4)
    made = f"count{KEEPS_HEADERS}"
    states.stores = (
        states.store("plain", group_id=0),
        states.store("totals", group_id=1, made=made),
        states.store("windows", "window", group_id=2, made=made),
        states.store("places", "global", group_id=3, made=KEEPS_HEADERS),
        states.store("seen", group_id=4, made=made),
    )
    states.ledger.generations.register(states.info())
    rows: list[Any] = [(0, "a", NO_WINDOW, NO_WINDOW, "[1]")]
    for key, value, headers in (("a", 1, TRACE), ("b", 3, ODD), ("c", 2, "null")):
        rows.append((1, key, NO_WINDOW, NO_WINDOW, f"[{value},{headers}]"))
    rows.append((2, "a", START_MS, START_MS + 15_000, f"[1,{TRACE}]"))
    rows.append((3, "a", NO_WINDOW, NO_WINDOW, f'["here",{TRACE}]'))
    rows.append((4, "a", NO_WINDOW, NO_WINDOW, f'[{{"x":1,"y":2}},{{"x":{TRACE}}}]'))
    states.publish(rows)
    return states


ENTRIES = [
    Entry("a", 1, headers=TRACED),
    Entry("b", 3, headers=[Header("trace", "�", "/w=="), Header("empty", None)]),
    Entry("c", 2),
]


@pytest.mark.usefixtures("states")
def test_every_query_returns_the_headers(hosts: list[Host]) -> None:
    for host in hosts:
        with Client(f"http://{host.address}", token=TOKEN) as client:
            assert client.get("totals", "b").entries == ENTRIES[1:2]
            assert client.multi_get("totals", ["c", "none", "a"]).entries == [
                ENTRIES[2],
                ENTRIES[0],
            ]
            assert [*client.range("totals")] == ENTRIES
            assert client.top("totals", limit=2).entries == ENTRIES[1:]
            (window,) = client.windows("windows", "a").entries
            assert window == Entry("a", 1, START, END, TRACED)
            assert client.get("places", "a").entries == [Entry("a", "here", headers=TRACED)]
            (seen,) = client.get("seen", "a").entries
            assert (seen.value, seen.headers) == ({"x": 1, "y": 2}, [])
            assert seen.headers_by_name == {"x": TRACED}
            assert client.get("plain", "a").entries == [Entry("a", 1)]
            assert client.count("totals").count == 3
            (group,) = client.combine("totals").groups
            assert (group.entries, group.sum) == (3, Decimal(6))
        shown = host.get("/sluice/v1/stores/totals/keys/a").json()["entries"]
        assert shown == [{"key": "a", "value": 1, "headers": [{"name": "trace", "value": "1"}]}]
        (shown,) = host.get("/sluice/v1/stores/plain/keys/a").json()["entries"]
        assert shown == {"key": "a", "value": 1}


def test_the_command_line_shows_the_headers(
    hosts: list[Host], states: States, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SLUICE_URL", f"http://{hosts[0].address}")
    monkeypatch.setenv("SLUICE_TOKEN", TOKEN)
    settings.cache_clear()
    run = CliRunner().invoke
    result = run(app, ["query", "range", "totals", "--format", "json"])
    headers = [{"name": "trace", "value": "1"}]
    first, *_, last = json.loads(result.stdout)
    assert first == {"key": "a", "headers": headers, "value": 1}
    assert last == {"key": "c", "value": 2}
    result = run(app, ["query", "get", "seen", "a", "--format", "json"])
    assert json.loads(result.stdout) == [{"key": "a", "headers": {"x": headers}, "x": 1, "y": 2}]
    table = run(app, ["query", "range", "totals"])
    assert table.exit_code == 0, table.output


def test_a_store_is_read_with_headers_without_a_server(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SLUICE_LEDGER", ledger_url(f"sqlite:///{tmp_path}/here"))
    settings.cache_clear()
    (tmp_path / "here").mkdir()
    states = States(f"sqlite:///{tmp_path}/here", workers=2)
    states.stores = (states.store("totals", made=f"count{KEEPS_HEADERS}"),)
    states.ledger.generations.register(states.info())
    states.publish({"a": f"[1,{TRACE}]", "b": f"[3,{ODD}]", "c": "[2,null]"})
    assert read_store("totals") == ENTRIES
