"""ASGI apps for Airflow's plugin, imported only in the process that serves them."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from functools import cached_property, partial

from starlette.types import ASGIApp, Receive, Scope, Send

from sluice.support.startup import freeze_imports


class Mounted:
    """An app of `sluice.api.apps` that requires Airflow's log-in, created at the first request.

    Airflow loads plugins in every process, even in each task's process. Importing the apps takes
    two seconds, so only a process that gets a request imports them.
    """

    def __init__(self, factory: str) -> None:
        self._factory = factory

    @cached_property
    def app(self) -> ASGIApp:
        """The app, which answers only requests with a log-in."""
        from sluice.airflow_connections import kafka_or_settings
        from sluice.api import apps
        from sluice.api.airflow_runs import AirflowRuns
        from sluice.api.auth.airflow_login import LoginRequired
        from sluice.api.services import Services

        services = Services(AirflowRuns(), kafka_or_settings)
        app_with_login = LoginRequired(getattr(apps, self._factory)(services=services))
        freeze_imports()
        return app_with_login

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await self.app(scope, receive, send)


class CausesNoted:
    """A middleware of Airflow's API server that notes the causes of failures."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "lifespan":
            await self._app(scope, receive, send)
            return
        noting = asyncio.create_task(self._note())
        try:
            await self._app(scope, receive, send)
        finally:
            noting.cancel()

    async def _note(self) -> None:
        # Importing takes a second. In another thread, the import does not delay answers to other
        # requests.
        note_causes_repeatedly = await asyncio.to_thread(_import_note_causes)
        await note_causes_repeatedly()


def _import_note_causes() -> Callable[[], Awaitable[None]]:
    from sluice.api.airflow_causes import note_causes_repeatedly
    from sluice.api.airflow_runs import AirflowRuns

    return partial(note_causes_repeatedly, AirflowRuns())
