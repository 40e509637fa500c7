"""Who asks, as far as the routes need to know."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Protocol, cast

from starlette.requests import Request
from starlette.responses import Response
from starlette.types import Scope

from sluice.api.problems import problem

_STATE = "sluice_visitor"
_AGAIN = "sluice_visitor_again"


class Visitor(Protocol):
    """Somebody who is logged in."""

    async def may_read(self, pipeline: str) -> bool:
        """Whether they may read the pipeline, hence its stores."""


def let_in(scope: Scope, visitor: Visitor, again: Callable[[], Awaitable[Visitor | None]]) -> None:
    """Note who sent a request; `again` looks the log-in up once more, for answers that go on for long."""
    scope.setdefault("state", {}).update({_STATE: visitor, _AGAIN: again})


def visitor(request: Request) -> Visitor:
    """Who sent the request."""
    return cast("Visitor", request.scope["state"][_STATE])


async def visitor_again(request: Request) -> Visitor | None:
    """Who sent the request, if their log-in is still valid."""
    again: Callable[[], Awaitable[Visitor | None]] = request.scope["state"][_AGAIN]
    return await again()


def unauthorized(how: str) -> Response:
    """401; `how` says how to log in."""
    # A new one each time: Airflow's middleware changes the headers of what it passes on.
    said = "There is no log-in with this request, or it is no longer valid."
    return problem(401, said, how, headers={"WWW-Authenticate": "Bearer"})
