"""ASGI apps that are imported only in the process that serves them."""

from __future__ import annotations

import gc
from functools import cached_property

from starlette.types import ASGIApp, Receive, Scope, Send


def freeze_imports() -> None:
    """Exclude everything loaded so far from garbage collection.

    Airflow's API server holds about a million objects. Scanning them takes 0.4 s, during which no request is answered,
    and under load that happened every second; in a state server it takes 0.1 s and more.
    """
    gc.collect()
    gc.freeze()


class Mounted:
    """An app of `sluice.api.app` behind Airflow's log-in, created at its first request.

    Airflow loads plugins in every process, including each task's; importing the apps takes two seconds.
    """

    def __init__(self, factory: str) -> None:
        self._factory = factory

    @cached_property
    def app(self) -> ASGIApp:
        """The app, behind the log-in."""
        from sluice.api import app
        from sluice.api.airflow_runs import AirflowRuns
        from sluice.api.auth.airflow import LoginRequired
        from sluice.api.services import Services
        from sluice.connections import kafka_or_settings

        services = Services(AirflowRuns(), kafka_or_settings)
        app_with_login = LoginRequired(getattr(app, self._factory)(services=services))
        freeze_imports()
        return app_with_login

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await self.app(scope, receive, send)
