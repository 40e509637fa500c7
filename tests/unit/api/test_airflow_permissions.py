"""Airflow's auth managers are asked in the same way, also those that ask another server."""

from __future__ import annotations

import asyncio
import threading
from collections import Counter
from dataclasses import dataclass, field
from typing import Any

import pytest
from airflow.models.dag import DagModel

from sluice.api.auth import airflow_permissions
from sluice.api.auth.airflow_permissions import AirflowUser
from sluice.errors import PermissionUnknown

pytestmark = pytest.mark.unit


class User:
    def get_name(self) -> str:
        return "ann"


@dataclass
class RemoteManager:
    """A manager, as that of Keycloak, which asks a server about each DAG and may fail."""

    readable: tuple[str, ...] = ()
    editable: tuple[str, ...] = ()
    failures: int = 0
    """How many of the next questions fail."""
    meeting: threading.Barrier | None = None
    """Where questions wait for each other."""
    asked: Counter[tuple[str, str, str | None]] = field(default_factory=Counter)
    """Method, DAG and team of each question."""

    def is_authorized_dag(self, *, method: str, user: Any, details: Any) -> bool:
        assert user.get_name() == "ann"
        self.asked[method, details.id, details.team_name] += 1
        if self.meeting is not None:
            self.meeting.wait(30)
        if self.failures:
            self.failures -= 1
            raise ConnectionError("Keycloak does not answer.")
        return details.id in (self.readable if method == "GET" else self.editable)


@pytest.fixture
def manager(monkeypatch: pytest.MonkeyPatch) -> RemoteManager:
    manager = RemoteManager()
    monkeypatch.setattr(airflow_permissions, "get_auth_manager", lambda: manager)
    teams = {"orders": "shop"}
    monkeypatch.setattr(DagModel, "get_team_name", teams.get)
    return manager


def user() -> AirflowUser:
    ann: Any = User()
    return AirflowUser(ann)


def test_the_manager_is_told_the_dag_and_its_team(manager: RemoteManager) -> None:
    manager.readable = manager.editable = ("orders",)

    async def ask(ann: AirflowUser) -> tuple[bool, bool]:
        return await ann.may_read("orders"), await ann.may_edit("orders")

    assert asyncio.run(ask(user())) == (True, True)
    assert manager.asked == {("GET", "orders", "shop"): 1, ("PUT", "orders", "shop"): 1}


def test_who_may_edit_a_dag_but_not_read_it_may_do_neither(manager: RemoteManager) -> None:
    manager.editable = ("orders",)
    assert not asyncio.run(user().may_edit("orders"))


def test_a_manager_that_does_not_answer_allows_nothing_and_is_asked_again(
    manager: RemoteManager,
) -> None:
    manager.readable, manager.failures = ("orders",), 1

    async def ask(ann: AirflowUser) -> bool:
        with pytest.raises(PermissionUnknown):
            await ann.may_read("orders")
        return await ann.may_read("orders")

    assert asyncio.run(ask(user()))
    assert manager.asked.total() == 2


def test_all_pipelines_of_a_list_are_asked_about_at_the_same_time(manager: RemoteManager) -> None:
    # Each question waits until there are three of them.
    manager.meeting = threading.Barrier(3)
    manager.readable = ("a", "c")
    assert asyncio.run(user().readable(["a", "b", "c"])) == ["a", "c"]


def test_requests_at_the_same_time_share_a_question(manager: RemoteManager) -> None:
    manager.readable = ("orders",)

    async def ask(ann: AirflowUser) -> list[bool]:
        return await asyncio.gather(*[ann.may_read("orders") for _ in range(5)])

    assert asyncio.run(ask(user())) == [True] * 5
    assert manager.asked.total() == 1
