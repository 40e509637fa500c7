"""The Python client and `sluice query`, against the REST API of two hosts."""

from __future__ import annotations

import asyncio
import csv
import io
import json
import threading
import time
from collections import Counter
from collections.abc import Iterator
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any

import httpx
import pytest
from msgspec import structs
from typer.testing import CliRunner, Result

from sluice import AsyncClient, Client
from sluice.answers import Entries, WorkerStatus
from sluice.api.routes import change_streams
from sluice.client import Change, ChangedKey
from sluice.client.queries import Connection, Query
from sluice.commands.cli import app
from sluice.errors import (
    Gone,
    Incomplete,
    NotFound,
    NotReached,
    QueryError,
    Refused,
    SettingsError,
    StateError,
)
from sluice.settings import settings
from sluice.state.model import GenerationRef
from tests.api.states import totals, windows
from tests.servers.conftest import LOCATIONS
from tests.servers.hosts import TOKEN, Host
from tests.support.states import States

COUNT, REVENUE, WINDOWS = (
    "general_orders_count",
    "general_orders_revenue",
    "general_orders_count_window",
)


@pytest.fixture
def client(hosts: list[Host], states: States) -> Iterator[Client]:
    with Client(f"http://{hosts[0].address}", token=TOKEN) as client:
        yield client


def test_every_method(client: Client) -> None:
    assert {store.store for store in client.stores()} >= {COUNT, REVENUE, "stores"}
    revenue = client.get(REVENUE, "store_7")
    assert revenue.value == {"runningOrderCount": 8, "runningRevenue": Decimal("7.00")}
    assert (str(revenue.value["runningRevenue"]), revenue.snapshot.id, revenue.partial) == (
        "7.00",
        "1.0",
        False,
    )
    assert [
        entry.key for entry in client.multi_get(COUNT, ["store_2", "none", "store_1"]).entries
    ] == [
        "store_2",
        "store_1",
    ]
    (window,) = client.windows(WINDOWS, "store_1", start="2022-12-05T08:55:00").entries
    assert (window.value, str(window.start)) == (1, "2022-12-05 08:55:15+00:00")
    assert client.windows(WINDOWS, "store_1", end="2022-12-05T08:55:15").entries == [window]
    assert [entry.key for entry in client.range(COUNT, limit=7)] == sorted(LOCATIONS)
    assert {entry.key for entry in client.range(COUNT, prefix="store_3", limit=3)} == {
        "store_3", *(f"store_3{n}" for n in range(10)),
    }  # fmt: skip
    assert client.count(COUNT).count == 40
    assert client.count(COUNT, prefix="store_3").count == 11
    assert [entry.value for entry in client.top(COUNT, limit=2, smallest=True).entries] == [1, 2]
    (group,) = client.combine(REVENUE, "runningRevenue").groups
    assert (group.entries, group.sum, group.max) == (40, Decimal("780.00"), Decimal("39.00"))
    assert len(client.page(COUNT, worker=0).entries) < 40


def test_the_activity_of_a_pipeline(client: Client, states: States) -> None:
    states.ledger.activities.add("orders", "pause", "ada", "new prices")
    states.ledger.activities.add("orders", "resume", "bob")
    resumed, paused = client.activity("orders")
    assert (resumed.by, resumed.action) == ("bob", "resume")
    assert (paused.by, paused.detail) == ("ada", "new prices")
    assert client.activity("orders", limit=1) == [resumed]


def test_the_next_page_keeps_the_bounds_of_the_first(client: Client) -> None:
    page = client.page(COUNT, limit=3, min_snapshot="1.0")
    assert client.page(COUNT, limit=3, cursor=page.cursor or "", min_snapshot="1.0").entries
    with pytest.raises(NotReached):
        client.page(COUNT, limit=3, cursor=page.cursor or "", min_snapshot="1.77")
    assert client.page(COUNT, limit=3, cursor=page.cursor or "", as_of=page.snapshot.id).entries
    with pytest.raises(QueryError, match=r"The cursor belongs to snapshot 1\.0"):
        client.page(COUNT, limit=3, cursor=page.cursor or "", as_of="1.77")


def test_a_repeated_key_is_in_the_answer_once(client: Client) -> None:
    keys = ["store_1", "store_2", *(f"none_{number}" for number in range(1_200)), "store_1"]
    assert [entry.key for entry in client.multi_get(COUNT, keys).entries] == ["store_1", "store_2"]


@pytest.mark.usefixtures("states")
def test_a_token_that_no_header_can_have(hosts: list[Host]) -> None:
    with Client(f"http://{hosts[0].address}", token=f"{TOKEN}\n") as client:  # read from a file
        assert client.count(COUNT).count == 40
    for token in ("tökén", "a\nb"):
        with pytest.raises(SettingsError, match="The token has characters"):
            Client(f"http://{hosts[0].address}", token=token)


def test_changes_end_with_an_error_when_the_server_does(client: Client, hosts: list[Host]) -> None:
    changes = client.changes(COUNT)
    assert next(changes).snapshot.id == "1.0"
    hosts[0].stop()
    with pytest.raises(StateError, match="cannot be reached"):
        next(changes)


def test_keys_may_contain_any_character(client: Client, states: States) -> None:
    for key in ("a/b?c#d&e=f", "ключ", "..", ".", "a/../b", "/", "%2e", "a b+c", "a\nb", "\r"):
        states.publish(totals("general", {key: (5, "1.00")}))
        (entry,) = client.get(COUNT, key, min_snapshot=f"1.{states.batch}").entries
        assert (entry.key, entry.value) == (key, 5)


def test_a_key_of_any_type_is_looked_up_by_its_text(
    client: Client, sluice: CliRunner, states: States
) -> None:
    keys = {
        7: "7", 1.0: "1.0", Decimal("12.50"): "12.5", date(2026, 3, 29): "2026-03-29", b"tea": "tea",
        datetime(2026, 3, 29, 8, tzinfo=UTC): "2026-03-29 08:00:00", ("a", None): '["a",null]',
    }  # fmt: skip
    by_two = {"shop": "Oslo", "item": 'tea "green"/1'}
    text_of_two = r'{"item":"tea \"green\"/1","shop":"Oslo"}'
    texts = [*keys.values(), text_of_two]
    states.publish(totals("general", {text: (number, "1.00") for number, text in enumerate(texts)}))
    states.publish(windows("general", text_of_two, {"2022-12-05T08:55:15": (7, "1.00")}))
    newest = f"1.{states.batch}"
    assert [client.get(COUNT, key, min_snapshot=newest).value for key in (*keys, by_two)] == [
        *range(len(texts))
    ]
    assert [entry.key for entry in client.multi_get(COUNT, [by_two, *keys]).entries] == [
        text_of_two,
        *keys.values(),
    ]
    assert client.windows(WINDOWS, by_two).value == 7
    rows = json.loads(query(sluice, "get", COUNT, *texts, "--format", "json").stdout)
    assert [row["key"] for row in rows] == texts
    with pytest.raises(QueryError, match="None cannot be a key"):
        client.get(COUNT, None)


def test_a_key_may_be_empty(client: Client, sluice: CliRunner, states: States) -> None:
    states.publish(
        [
            *totals("general", {"": (5, "1.00")}),
            *windows("general", "", {"2022-12-05T08:55:15": (7, "1.00")}),
        ]
    )
    assert [client.get(COUNT, "").value, client.multi_get(COUNT, [""]).value] == [5, 5]
    assert [client.get(WINDOWS, "").value, client.windows(WINDOWS, "").value] == [7, 7]
    assert json.loads(query(sluice, "get", COUNT, "", "--format", "json").stdout) == [
        {"key": "", "value": 5}
    ]


def test_many_long_keys_are_read_from_one_snapshot(
    client: Client, states: States, monkeypatch: pytest.MonkeyPatch
) -> None:
    keys = [f"{number:04}{'é' * 70}" for number in range(1_000)]
    states.publish(totals("general", dict.fromkeys(keys, (1, "1.00"))))
    snapshots = set[str]()
    lengths = list[int]()
    send = Connection.request

    def publish_more(connection: Connection, asked: Query[Any]) -> dict[str, Any]:
        lengths.append(len(str(httpx.URL("http://x", params=asked.parameters))))
        snapshots.update(value for name, value in asked.parameters if name == "as_of")
        if len(lengths) == 2:
            states.publish(totals("general", dict.fromkeys(keys, (2, "2.00"))))
        return send(connection, asked)

    monkeypatch.setattr(Connection, "request", publish_more)
    answer = client.multi_get(COUNT, [*keys, "none"], require="complete")
    assert [(entry.key, entry.value) for entry in answer.entries] == [(key, 1) for key in keys]
    assert snapshots == {answer.snapshot.id}
    assert [worker.number for worker in answer.workers] == [*range(4)]
    assert max(lengths) < 8_000
    with pytest.raises(QueryError, match="no valid URL"):
        client.get(COUNT, "x" * 70_000)


def test_the_client_raises_the_servers_errors(
    client: Client, states: States, hosts: list[Host]
) -> None:
    states.publish(totals("general", {"store_1": (5, "1.00")}))
    states.ledger.snapshots.forget(GenerationRef("orders", 1), 1)
    cases = {
        NotFound: {"key": "none"},
        NotReached: {"min_snapshot": "9.9"},
        QueryError: {"as_of": "x"},
    }
    for kind, asked in cases.items():
        with pytest.raises(kind):
            client.get(COUNT, **({"key": "store_1"} | asked))  # type: ignore[arg-type]
    with pytest.raises(Gone) as gone:
        client.get(COUNT, "store_1", as_of="1.0", min_snapshot="1.0")
    assert gone.value.extensions["newest"] == "1.1"
    hosts[1].stop()
    with pytest.raises(StateError, match="Some workers cannot be read"):
        client.count(COUNT, require="complete")
    assert client.count(REVENUE).partial
    assert issubclass(Incomplete, StateError)


def test_an_unreachable_server() -> None:
    with (
        Client("http://127.0.0.1:9", token="x") as client,
        pytest.raises(StateError, match=r"at http://127\.0\.0\.1:9 cannot be reached"),
    ):
        client.stores()


def test_a_wrong_token(hosts: list[Host]) -> None:
    with (
        Client(f"http://{hosts[0].address}", token="wrong") as client,
        pytest.raises(Refused, match="no valid log-in"),
    ):
        client.stores()


def test_the_asynchronous_client(hosts: list[Host], states: States) -> None:
    async def run() -> tuple[object, int, list[str]]:
        async with AsyncClient(f"http://{hosts[1].address}", token=TOKEN) as client:
            several = await asyncio.gather(*(client.get(COUNT, location) for location in LOCATIONS))
            return (
                (await client.get(REVENUE, "store_7")).value["runningRevenue"],
                sum(one.value for one in several),
                [entry.key async for entry in client.range(COUNT, limit=9)],
            )

    assert asyncio.run(run()) == (Decimal("7.00"), 820, sorted(LOCATIONS))


class Listening(threading.Thread):
    """Collects a number of changes."""

    def __init__(self, client: Client, wanted: int, since: str | None = None) -> None:
        super().__init__(daemon=True)
        self.client, self.wanted, self.since = client, wanted, since
        self.found: list[Change] = []
        self.heard = threading.Event()

    def run(self) -> None:
        for change in self.client.changes(COUNT, since=self.since):
            self.found.append(change)
            self.heard.set()
            if len(self.found) == self.wanted:
                return


def test_changes_report_new_snapshots_and_changed_keys(client: Client, states: States) -> None:
    listening = Listening(client, 2)
    listening.start()
    assert listening.heard.wait(10)
    states.publish(totals("general", {"store_3": (50, "1.00"), "store_1": (51, "1.00")}))
    listening.join(10)
    first, second = listening.found
    assert (first.snapshot.id, first.changed) == ("1.0", [])
    assert (second.snapshot.id, [one.key for one in second.changed], second.more) == (
        "1.1",
        ["store_1", "store_3"],
        False,
    )

    # A reconnected stream continues after the last snapshot that it received.
    states.publish(totals("general", {"store_4": (52, "1.00")}))
    again = Listening(client, 1, since="1.1")
    again.start()
    again.join(10)
    assert [(one.event, one.snapshot.id, one.changed) for one in again.found] == [
        ("snapshot", "1.2", [ChangedKey("store_4")])
    ]
    unknown = Listening(client, 1, since="2.7")
    unknown.start()
    unknown.join(10)
    assert [one.event for one in unknown.found] == ["reset"]


def test_the_number_of_change_streams_is_limited(hosts: list[Host], states: States) -> None:
    """Of 300 concurrent requests, as many as the limit succeed; later requests succeed after these have ended."""

    async def ask(count: int) -> Counter[int]:
        limits = httpx.Limits(max_connections=count)
        headers = {"Authorization": f"Bearer {TOKEN}"}
        async with httpx.AsyncClient(
            headers=headers, limits=limits, timeout=30, trust_env=False
        ) as client:
            address = f"http://{hosts[0].address}/sluice/v1/stores/{COUNT}/changes"
            requests = [client.build_request("GET", address) for _ in range(count)]
            answers = await asyncio.gather(
                *(client.send(request, stream=True) for request in requests)
            )
            reported = [await anext(answer.aiter_bytes()) for answer in answers]
            assert all(
                (b"event: snapshot" in first) == (a.status_code == 200)
                for a, first in zip(answers, reported, strict=True)
            )
            for answer in answers:
                await answer.aclose()
        return Counter(answer.status_code for answer in answers)

    limit = change_streams.MAX_STREAMS
    assert asyncio.run(ask(300)) == {200: limit, 429: 300 - limit}
    deadline = time.monotonic() + 10
    while change_streams._Stream.open_streams:
        assert time.monotonic() < deadline
        time.sleep(0.05)
    for _ in range(3):
        assert hosts[0].ask("HEAD", f"/sluice/v1/stores/{COUNT}/changes").status_code == 200
    assert change_streams._Stream.open_streams == 0, "HEAD must not open a stream"
    assert asyncio.run(ask(5)) == {200: 5}


@pytest.fixture
def sluice(
    hosts: list[Host], states: States, monkeypatch: pytest.MonkeyPatch
) -> Iterator[CliRunner]:
    monkeypatch.setenv("SLUICE_URL", f"http://{hosts[0].address}")
    monkeypatch.setenv("SLUICE_TOKEN", TOKEN)
    settings.cache_clear()
    yield CliRunner()
    settings.cache_clear()


def query(runner: CliRunner, *arguments: str) -> Result:
    result = runner.invoke(app, ["query", *arguments])
    assert TOKEN not in result.output
    return result


def test_the_command_prints_tables_json_and_csv(sluice: CliRunner) -> None:
    table = query(sluice, "get", REVENUE, "store_7", "store_1").stdout.splitlines()
    assert [line.split() for line in table] == [
        ["key", "runningOrderCount", "runningRevenue"], ["store_7", "8", "7.00"], ["store_1", "2", "1.00"],
    ]  # fmt: skip
    result = query(sluice, "get", REVENUE, "store_7", "--format", "json").stdout
    assert '"runningRevenue":7.00' in result
    assert json.loads(result) == [{"key": "store_7", "runningOrderCount": 8, "runningRevenue": 7.0}]
    rows = list(
        csv.DictReader(io.StringIO(query(sluice, "range", COUNT, "--format", "csv").stdout))
    )
    assert {row["key"]: int(row["value"]) for row in rows} == {
        key: n + 1 for n, key in enumerate(LOCATIONS)
    }
    window = query(
        sluice, "range", WINDOWS, "--from", "2022-12-05", "--format", "csv"
    ).stdout.splitlines()
    assert window[1] == "store_1,2022-12-05T08:55:15+00:00,2022-12-05T08:55:30+00:00,1"


@pytest.mark.parametrize(
    ("arguments", "found"),
    [
        (("stores",), COUNT),
        (("count", COUNT, "--prefix", "store_3"), "11"),
        (("top", COUNT, "--limit", "1"), "store_39"),
        (("combine", REVENUE, "--field", "runningRevenue"), "780.00"),
        (("get", WINDOWS, "store_1"), "2022-12-05T08:55:15"),
        (("range", WINDOWS, "--from", "20221205"), "2022-12-05T08:55:15"),
        (("combine", REVENUE), "40"),
    ],
)
def test_subcommands_of_query(sluice: CliRunner, arguments: tuple[str, ...], found: str) -> None:
    result = query(sluice, *arguments)
    assert (result.exit_code, result.stderr) == (0, "")
    assert found in result.stdout


def test_output_beyond_the_limit_is_reported(sluice: CliRunner) -> None:
    result = query(sluice, "range", COUNT, "--limit", "3")
    assert len(result.stdout.splitlines()) == 4
    assert "There are more than 3" in result.stderr


def test_an_error_is_one_sentence(sluice: CliRunner) -> None:
    result = query(sluice, "get", "nothing", "k")
    assert result.exit_code == 1
    assert "There is no store 'nothing'" in result.stderr


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("range", WINDOWS, "--from", "zzz", "--local"), "`--from` is not a time."),
        (("range", WINDOWS, "--from", "2022"), "epoch milliseconds with at least 10 digits"),
        (("get", COUNT, "store_1", "--as-of", "2022"), "is not a snapshot, run or time"),
    ],
)
def test_times_that_are_not_understood(
    sluice: CliRunner, arguments: tuple[str, ...], message: str
) -> None:
    result = query(sluice, *arguments)
    assert result.exit_code == 1
    assert message in " ".join(result.stderr.split())


def test_a_window_may_end_after_the_year_9999(
    client: Client, sluice: CliRunner, states: States
) -> None:
    late = [
        (
            2,
            "late",
            253_402_300_790_000,
            253_402_300_805_000,
            '[7,{"runningOrderCount":7,"runningRevenue":1.00}]',
        )
    ]
    states.publish(late)
    (entry,) = client.windows(WINDOWS, "late").entries
    assert entry.start is not None
    assert entry.end == datetime.max.replace(tzinfo=UTC)
    assert client.page(
        WINDOWS, start=entry.start.isoformat(), end=entry.end.isoformat()
    ).entries == [entry]
    assert "9999-12-31T23:59:50" in query(sluice, "get", WINDOWS, "late").stdout
    with pytest.raises(QueryError, match="is not a snapshot"):
        client.get(COUNT, "store_1", min_snapshot="2026-11-21")
    assert client.get(COUNT, "store_1", as_of=entry.end.isoformat()).value == 2


def test_missing_workers_are_reported(sluice: CliRunner, hosts: list[Host]) -> None:
    hosts[1].stop()
    result = query(sluice, "combine", COUNT)
    assert "The answer is incomplete: worker 1" in result.stderr


def test_a_worker_that_is_missing_on_one_page_is_reported(
    sluice: CliRunner, client: Client, hosts: list[Host], monkeypatch: pytest.MonkeyPatch
) -> None:
    page, missing = Client.page, [WorkerStatus(1, "unavailable", "Timed out.")]

    def missing_at_first(client: Client, store: str, *, limit: int, **part: Any) -> Entries:
        answer = page(client, store, limit=min(limit, 30), **part)
        return (
            answer if "cursor" in part else structs.replace(answer, partial=True, workers=missing)
        )

    monkeypatch.setattr(Client, "page", missing_at_first)
    result = query(sluice, "range", COUNT)
    assert len(result.stdout.splitlines()) > len(LOCATIONS)
    assert "The answer is incomplete: worker 1: Timed out." in result.stderr
    monkeypatch.undo()
    hosts[1].stop()
    with pytest.raises(StateError, match="Some workers cannot be read: worker 1"):
        list(client.range(COUNT))


def test_keys_without_values_are_not_found(sluice: CliRunner) -> None:
    result = query(sluice, "get", COUNT, "no_1", "no_2")
    assert (result.exit_code, "has none of these keys" in " ".join(result.stderr.split())) == (
        1,
        True,
    )


def test_control_characters_do_not_reach_the_terminal(sluice: CliRunner, states: States) -> None:
    states.publish(totals("general", {"\x1b]0;owned\x07[red]x": (1, "1.00")}))
    result = query(sluice, "range", COUNT, "--as-of", "1.1", "--prefix", "\x1b").stdout
    assert "\x1b]0;" not in result
    assert "[red]x" in result


def test_a_field_named_key_does_not_replace_the_key(sluice: CliRunner, states: States) -> None:
    value = '{"key":"of the value","runningOrderCount":1,"value.key":2}'
    states.publish([(0, "store_1", -1, -1, f"[1,{value}]")])
    (row,) = json.loads(query(sluice, "get", REVENUE, "store_1", "--format", "json").stdout)
    assert row == {
        "key": "store_1",
        "value.value.key": "of the value",
        "runningOrderCount": 1,
        "value.key": 2,
    }


def test_long_keys_are_not_truncated_in_tables(sluice: CliRunner, states: States) -> None:
    key = "store [of] " + "x" * 100
    states.publish(windows("general", key, {"2022-12-05T08:55:15.001": (1, "1.00")}))
    result = query(sluice, "get", WINDOWS, key).stdout.splitlines()
    assert result[1].split() == [
        *key.split(), "2022-12-05T08:55:15.001+00:00", "2022-12-05T08:55:30.001+00:00", "1",
    ]  # fmt: skip


def test_names_in_brackets_are_shown(sluice: CliRunner, states: States) -> None:
    states.publish([(0, "store_1", -1, -1, '[1,{"[bold]":1,"a[/]":"\\\\"}]')])
    result = query(sluice, "get", REVENUE, "store_1").stdout.splitlines()
    assert [line.split() for line in result] == [["key", "[bold]", "a[/]"], ["store_1", "1", "\\"]]
