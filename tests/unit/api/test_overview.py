"""The overview of all pipelines: status, unread records, and dead letters of the last day."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any, Literal

import pytest

from sluice.answers import Run
from sluice.api import services
from sluice.api.runs import DagState
from sluice.errors import EngineError, InputAway, RegistryAway, TopologyError
from sluice.kafka.open_transactions import HeldPartitions
from sluice.kafka.unread_records import Lag
from sluice.state.ledger.failures import Failure
from sluice.state.ledger.leases import Holder
from tests.support.api_client import Api, User
from tests.support.states import States

pytestmark = pytest.mark.unit

OVERVIEW = "/v1/overview"


@pytest.fixture(autouse=True)
def _soon(monkeypatch: pytest.MonkeyPatch) -> None:
    """Lower the timeout for a broker that does not respond."""
    monkeypatch.setattr("sluice.kafka.unread_records.ANSWER_SECONDS", 0.1)


@pytest.fixture
def ends(monkeypatch: pytest.MonkeyPatch) -> dict[str, dict[int, int]]:
    """The topics' end offsets, in place of a broker's."""
    results: dict[str, dict[int, int]] = {"orders": {0: 10, 1: 5}}
    monkeypatch.setattr(
        services, "read_lag", lambda _admin, _topics, positions: Lag(results, positions, {})
    )
    return results


def run(state: Literal["queued", "running", "success", "failed"]) -> DagState:
    began = datetime(2026, 11, 21, 12, tzinfo=UTC)
    return DagState(
        False, Run("manual__1", state, began, None, "/dags/orders/runs/manual__1/tasks/main", "run")
    )


def failed(pipeline: str = "orders") -> Failure:
    return Failure.of(
        EngineError("Kafka does not answer."), pipeline, run="orders/manual__1/totals"
    )


def only(api: Api) -> dict[str, Any]:
    (overview,) = api.get(OVERVIEW)
    return dict(overview)


def test_a_pipeline_that_has_read_everything_is_idle(
    api: Api, states: States, ends: dict[str, dict[int, int]]
) -> None:
    states.publish({"a": "[1,2]"})
    overview = only(api)
    assert (overview["pipeline"], overview["health"], overview["unread"]) == ("orders", "idle", 0)
    assert overview["snapshot"]["id"] == "1.0"
    assert overview["last_run"] is None


def test_unread_records_are_counted_by_topic_and_partition(
    api: Api, states: States, ends: dict[str, dict[int, int]]
) -> None:
    states.publish({"a": "[1,2]"})
    ends["orders"] = {0: 17, 1: 5, 2: 3}
    overview = only(api)
    assert (overview["health"], overview["unread"]) == ("behind", 10)
    assert [tuple(lag.values()) for lag in overview["lag"]] == [
        ("orders", 0, 10, 17, 7, 0),
        ("orders", 1, 5, 5, 0, 0),
        ("orders", 2, None, 3, 3, 0),
    ]


def test_records_that_a_hanging_transaction_holds_back_are_unread_and_named(
    api: Api, states: States, monkeypatch: pytest.MonkeyPatch
) -> None:
    states.publish({"a": "[1,2]"})
    ends, lasts = {"orders": {0: 10, 1: 5}}, {"orders": {0: 1_011, 1: 5}}
    monkeypatch.setattr(
        services, "read_lag", lambda _admin, _topics, read: Lag(ends, read, {}, lasts)
    )
    overview = only(api)
    assert (overview["health"], overview["unread"], overview["held_since"]) == (
        "behind",
        1_001,
        None,
    )
    assert tuple(overview["lag"][0].values()) == ("orders", 0, 10, 1_011, 1_001, 1_001)
    monkeypatch.setattr(services, "HELD_SECONDS", -1)
    overview = only(api)
    assert overview["health"] == "held"
    assert datetime.now(UTC) - datetime.fromisoformat(overview["held_since"]) < timedelta(minutes=1)


def test_a_transaction_hangs_from_when_it_is_first_seen() -> None:
    held, start, later = (
        HeldPartitions(),
        datetime(2026, 1, 1, tzinfo=UTC),
        datetime(2026, 1, 2, tzinfo=UTC),
    )
    lag, next_lag, free = (Lag({"t": {0: end}}, {}, {}, {"t": {0: 9}}) for end in (5, 7, 9))
    assert [held.since(each, start) for each in (free, lag)] == [None, start]
    assert [held.since(each, later) for each in (lag, next_lag, free)] == [start, later, None]


def test_without_a_broker_only_the_lag_is_unknown(api: Api, states: States) -> None:
    states.publish({"a": "[1,2]"})
    overview = only(api)
    assert (overview["unread"], overview["lag"], overview["health"]) == (None, [], "waiting")
    assert "Kafka at 127.0.0.1:1 does not answer" in overview["lag_error"]


@pytest.mark.parametrize(
    ("state", "has_failed", "health"),
    [
        ("running", False, "running"),
        ("running", True, "running"),
        ("queued", False, "running"),
        ("success", False, "behind"),
        ("success", True, "failed"),
        ("failed", False, "failed"),
        ("failed", True, "failed"),
    ],
)
def test_health_follows_the_last_run(
    api: Api,
    states: States,
    ends: dict[str, dict[int, int]],
    state: Any,
    has_failed: bool,
    health: str,
) -> None:
    states.publish({"a": "[1,2]"})
    ends["orders"] = {0: 11, 1: 5}
    api.runs.states["orders"] = run(state)
    if has_failed:
        states.ledger.failures.keep(failed())
    overview = only(api)
    assert overview["health"] == health
    assert overview["last_run"]["log"] == "/dags/orders/runs/manual__1/tasks/main"
    assert [failure["detail"] for failure in overview["failures"]] == [
        "Kafka does not answer."
    ] * has_failed


def test_a_run_that_waits_for_the_schema_registry_is_not_at_work(
    api: Api, states: States, ends: dict[str, dict[int, int]]
) -> None:
    states.publish({"a": "[1,2]"})
    api.runs.states["orders"] = run("running")
    away = RegistryAway.of("http://registry:8081", "connection refused")
    states.ledger.failures.keep(Failure.of(away, "orders", kind="registry"))
    assert only(api)["health"] == "waiting"
    states.ledger.failures.clear("orders", "registry")
    assert only(api)["health"] == "running"


def test_a_driver_that_holds_the_lease_makes_a_pipeline_running_without_airflow(
    api: Api, states: States
) -> None:
    states.publish({"a": "[1,2]"})
    states.ledger.leases.take(states.ref, Holder(host="h", pid=1, process="p"), None)
    assert only(api)["health"] == "running"


def test_a_dag_that_never_ran_is_listed_with_its_paused_state(api: Api) -> None:
    api.runs.states["fresh"] = DagState(paused=True, last_run=None)
    overviews = {one["pipeline"]: one for one in api.get(OVERVIEW)}
    assert (overviews["fresh"]["paused"], overviews["fresh"]["health"]) == (True, "not_started")
    assert overviews["fresh"]["failures"] == [], "although no broker answers"
    assert "Kafka at 127.0.0.1:1 does not answer" in overviews["fresh"]["lag_error"]
    assert overviews["fresh"]["snapshot"] is None


def test_a_pipeline_that_has_never_run_waits_without_an_alarm(api: Api, states: States) -> None:
    api.runs.states["fresh"] = DagState(False, None, tags=("payments",), owner="shop")
    missing = InputAway("Topic pos does not exist.")
    states.ledger.failures.keep(Failure.of(missing, "fresh", kind="input"))
    (fresh,) = api.get(OVERVIEW, pipeline="fresh")
    assert (fresh["health"], fresh["failures"]) == ("not_started", [])
    assert fresh["lag_error"] == "Topic pos does not exist."
    assert (fresh["tags"], fresh["owner"]) == (["payments"], "shop")
    statuses = {one["pipeline"]: one for one in api.get("/v1/pipelines")}
    assert (statuses["fresh"]["status"], statuses["fresh"]["failures"]) == ("not_started", [])
    # What fails in a run is a failure of a pipeline that has never published, too.
    states.ledger.failures.keep(failed("fresh"))
    (fresh,) = api.get(OVERVIEW, pipeline="fresh")
    assert fresh["health"] == "failed"


def test_the_overview_has_the_records_of_the_newest_batches(api: Api, states: States) -> None:
    for count in range(35):
        states.publish({"a": "[1,2]"}, counts={"read": count})
    overview = only(api)
    assert overview["records"] == [*range(5, 35)]
    assert overview["newest_event"] == "2022-12-05T08:55:27Z"


def test_only_readable_pipelines_can_be_chosen(api: Api, states: States) -> None:
    states.publish({"a": "[1,2]"})
    assert [one["pipeline"] for one in api.get(OVERVIEW, pipeline="orders")] == ["orders"]
    api.user = User(hidden=("orders",))
    assert api.get(OVERVIEW, pipeline="orders") == []


def test_a_retired_pipeline_needs_nothing(api: Api, states: States) -> None:
    states.publish({"a": "[1,2]"})
    states.ledger.generations.retire("orders")
    api.runs.states["orders"] = run("failed")
    overview = only(api)
    assert (overview["health"], overview["failures"]) == ("retired", []), (
        "although no broker answers"
    )
    (status,) = api.get("/v1/pipelines")
    assert status["status"] == "retired"


def test_the_worst_comes_first(api: Api, states: States) -> None:
    for name in ("broken", "failed"):
        States(states.database, pipeline=name)
    states.ledger.failures.keep(failed("failed"))
    states.ledger.failures.set_files([Failure.of(TopologyError("x.py:1"), "broken", kind="file")])
    assert [one["pipeline"] for one in api.get(OVERVIEW)] == ["broken", "failed", "orders"]


def test_dead_letters_of_24_hours_are_counted_by_reason(api: Api, states: States) -> None:
    now = datetime.now(UTC)
    older = {"read": 9, "dead_letter/contract": 9}
    states.publish(published_at=now - timedelta(hours=25), counts=older)
    states.publish(
        published_at=now - timedelta(hours=2), counts={"read": 9, "dead_letter/contract": 2}
    )
    states.publish(
        published_at=now,
        counts={
            "read": 9,
            "dead_letter/digits": 3,
            "unwritten/totals": 1,
            "failed/double": 5,
            "output/orders_dead_letters": 6,
        },
    )
    # Two failures became dead letters; the other three of the step were skipped.
    assert only(api)["dead_letters"] == {
        "digits": 3,
        "contract": 2,
        "processing": 2,
        "unwritten": 1,
    }


@pytest.mark.attack("S2", "the overview of hidden pipelines, with and without a DAG")
def test_hidden_pipelines_are_left_out(api: Api, states: States) -> None:
    api.user = User(hidden=("orders", "secret"))
    api.runs.states["secret"] = run("failed")
    states.ledger.failures.keep(failed())
    assert api.get(OVERVIEW) == []


def test_the_overview_names_the_pipelines_that_the_user_may_edit(api: Api, states: States) -> None:
    States(states.database, pipeline="pages")
    api.user = User(editable=("pages",))
    assert {one["pipeline"]: one["may_edit"] for one in api.get(OVERVIEW)} == {
        "orders": False,
        "pages": True,
    }


def test_pipelines_are_chosen_and_the_worst_come_first(api: Api, states: States) -> None:
    states.publish({"a": "1"})
    api.runs.states |= {
        "bills": DagState(False, None, tags=("money",), owner="ann"),
        "coins": DagState(False, None, tags=("money", "shop"), owner="bob"),
    }
    states.ledger.failures.keep(failed("coins"))

    def names(**parameters: object) -> list[str]:
        return [each["pipeline"] for each in api.get(OVERVIEW, **parameters)]

    assert names()[0] == "coins"
    assert names(limit=1) == ["coins"]
    assert names(health="failed") == ["coins"]
    assert names(tag="money", owner="ann") == ["bills"]
    assert names(name="OI") == ["coins"]
    assert api.ask("GET", OVERVIEW, params={"health": "bad"}).status_code == 422


def test_the_summary_counts_all_readable_pipelines(api: Api, states: States) -> None:
    states.publish({"a": "1"})
    api.runs.states |= {
        "bills": DagState(False, None, tags=("money",), owner="ann"),
        "coins": DagState(False, None, tags=("money", "shop"), owner="ann"),
        "secret": DagState(False, None, tags=("hidden",)),
    }
    api.user = User(hidden=("secret",))
    summary = api.get(f"{OVERVIEW}/summary", tag="shop")
    assert (summary["pipelines"], summary["matching"]) == (3, 1)
    assert (summary["owners"], summary["tags"]) == ({"": 1, "ann": 2}, {"money": 2, "shop": 1})
    assert sum(summary["health"].values()) == 3
    assert summary["first"] == []
    (first,) = api.get(f"{OVERVIEW}/summary", tag="money", limit=1)["first"]
    line = api.get(OVERVIEW, tag="money", limit=1)[0]
    # Two requests can say in different words that Kafka is away.
    assert first | {"lag_error": ""} == line | {"lag_error": ""}
