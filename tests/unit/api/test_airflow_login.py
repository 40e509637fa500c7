"""The log-in of Airflow's users: by a token, or by the cookies of a browser."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from typing import Any

import pytest
from airflow.api_fastapi.core_api import security
from airflow.models.dag import DagModel
from jwt import InvalidTokenError
from starlette.requests import Request
from starlette.responses import PlainTextResponse
from starlette.types import Receive, Scope, Send

from sluice.api.auth import airflow_login, airflow_permissions
from sluice.api.auth.airflow_login import LoginRequired
from sluice.api.auth.permissions import principal

pytestmark = pytest.mark.unit

TOKEN = "ann's token"


@dataclass
class User:
    """A user with the credentials with which the manager asks another server."""

    credentials: str = ""

    def get_name(self) -> str:
        return "ann"


@dataclass
class SplitManager:
    """A manager, as that of Keycloak, whose token alone does not say who the user is.

    A browser sends the user's credentials in a cookie of their own.
    """

    revoked: bool = False
    asked_with: list[str] = field(default_factory=list)

    async def get_user_from_token(self, token: str) -> None:
        await self.avalidated_claims(token)

    def _get_token_validator(self) -> SplitManager:
        return self

    async def avalidated_claims(self, token: str) -> dict[str, str]:
        if token != TOKEN or self.revoked:
            raise InvalidTokenError("forged")
        return {}

    def deserialize_user(self, token: dict[str, Any]) -> User:
        return User()

    def is_authorized_dag(self, *, method: str, user: User, details: Any) -> bool:
        self.asked_with.append(user.credentials)
        return user.credentials != ""


@dataclass
class Site:
    """The mounted app, behind Airflow's middleware, and the time."""

    manager: SplitManager
    now: float = 0.0

    def __post_init__(self) -> None:
        self.app = LoginRequired(self._answer, clock=lambda: self.now)

    async def _answer(self, scope: Scope, receive: Receive, send: Send) -> None:
        pipeline = scope["path"].removeprefix("/")
        may = await principal(Request(scope)).may_read(pipeline)
        await PlainTextResponse("", 200 if may else 404)(scope, receive, send)

    def get(
        self, pipeline: str, token: str = TOKEN, user: User | None = None, mark: object = None
    ) -> int:
        """Return the status of a browser's request, whose user Airflow's middleware has made."""
        state = {"user": user, "user_authenticated_via": mark} if user is not None else {}
        scope = {
            "type": "http",
            "method": "GET",
            "path": f"/{pipeline}",
            "headers": [(b"cookie", f"_token={token}".encode())],
            "state": state,
        }
        statuses = []

        async def receive() -> dict[str, Any]:
            return {"type": "http.request"}

        async def send(message: Any) -> None:
            if message["type"] == "http.response.start":
                statuses.append(message["status"])

        asyncio.run(self.app(scope, receive, send))
        return int(statuses[0])


@pytest.fixture
def site(monkeypatch: pytest.MonkeyPatch) -> Site:
    manager = SplitManager()
    for module in (airflow_login, airflow_permissions):
        monkeypatch.setattr(module, "get_auth_manager", lambda: manager)
    monkeypatch.setattr(DagModel, "get_team_name", lambda _: None)
    return Site(manager)


MARK = security.USER_INJECTED_BY_TRUSTED_MIDDLEWARE


def test_the_user_that_airflows_middleware_has_made_of_all_cookies_is_the_user(site: Site) -> None:
    assert site.get("orders", user=User("credentials"), mark=MARK) == 200


def test_a_token_without_the_other_cookies_is_no_log_in(site: Site) -> None:
    assert site.get("orders") == 401
    assert site.get("orders", user=User("credentials"), mark=MARK) == 200
    assert site.get("orders") == 401, "the cached user belongs to all the cookies"


def test_a_user_without_the_mark_of_airflows_middleware_is_not_trusted(site: Site) -> None:
    assert site.get("orders", user=User("credentials"), mark=object()) == 401


def test_the_token_must_be_valid_even_if_a_middleware_has_made_a_user(site: Site) -> None:
    assert site.get("orders", token="forged", user=User("credentials"), mark=MARK) == 401
    site.manager.revoked = True
    assert site.get("orders", user=User("credentials"), mark=MARK) == 401


def test_new_credentials_are_used_although_the_user_is_cached(site: Site) -> None:
    assert site.get("orders", user=User("expired"), mark=MARK) == 200
    assert site.get("fraud", user=User("renewed"), mark=MARK) == 200
    assert site.manager.asked_with == ["expired", "renewed"]


def test_a_token_that_is_revoked_works_no_longer_than_it_is_cached(site: Site) -> None:
    assert site.get("orders", user=User("credentials"), mark=MARK) == 200
    site.manager.revoked = True
    assert site.get("orders", user=User("credentials"), mark=MARK) == 200
    site.now = 5.0
    assert site.get("orders", user=User("credentials"), mark=MARK) == 401
