"""Who may see a pipeline.

Every request has a principal: the user or the program that sends it. Every route asks the
principal, through `routes.access`, whether it may see a pipeline. A user of Airflow may see a
pipeline if Airflow lets the user read the pipeline's DAG. The user may start its runs if Airflow
lets the user edit the DAG: `airflow_permissions.airflow_allows` decides. The holder of a state
server's token may
see every pipeline and start its runs.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection
from typing import Protocol

from starlette.requests import Request
from starlette.responses import Response
from starlette.types import Scope

from sluice.api.http.problems import problem

_PRINCIPAL = "sluice_principal"
_REFRESH = "sluice_principal_refresh"


class Principal(Protocol):
    """A user, or a program with a token."""

    @property
    def name(self) -> str:
        """The name that Airflow records for runs that the principal starts."""

    async def may_read(self, pipeline: str) -> bool:
        """Return whether the principal may read the pipeline and its stores."""

    async def may_edit(self, pipeline: str) -> bool:
        """Return whether the principal may start the pipeline's runs and re-drive dead letters."""

    async def readable(self, pipelines: Collection[str]) -> Collection[str]:
        """Return the pipelines that the principal may read.

        Always look up all pipelines, so that the time of a response does not reveal a hidden
        pipeline.
        """
        return [pipeline for pipeline in pipelines if await self.may_read(pipeline)]


Refresh = Callable[[], Awaitable[Principal | None]]


def authenticate(scope: Scope, principal: Principal, refresh: Refresh) -> None:
    """Attach the principal to a request.

    Long streaming responses use `refresh` to check the log-in again.
    """
    state = scope.setdefault("state", {})
    state[_PRINCIPAL], state[_REFRESH] = principal, refresh


def principal(request: Request) -> Principal:
    """Return the user or program that sent a request, according to its log-in."""
    checked: Principal = request.scope["state"][_PRINCIPAL]
    return checked


async def refresh_principal(request: Request) -> Principal | None:
    """Check the log-in of a request again.

    Return the principal, or None if the log-in is no longer valid.
    """
    refresh: Refresh = request.scope["state"][_REFRESH]
    return await refresh()


def unauthorized(how_to_log_in: str) -> Response:
    """Return a new 401 response.

    Each request gets its own, because Airflow's middleware changes the headers of a response.
    """
    detail = "The request has no valid log-in."
    return problem(401, detail, how_to_log_in, headers={"WWW-Authenticate": "Bearer"})
