"""An app that is only imported where it is asked."""

from __future__ import annotations

import gc
from functools import cached_property

from starlette.types import ASGIApp, Receive, Scope, Send


def settled() -> None:
    """Have Python's collector leave alone what is loaded by now: it stays.

    Airflow's API server holds some million objects. To look through them takes 0.4 s, in which nobody is answered, and
    under load that happened every second; in a state server it takes 0.1 s and more.
    """
    gc.collect()
    gc.freeze()


class Mounted:
    """One of the apps of `sluice.api.app` behind Airflow's log-in, made at its first request.

    Airflow loads plugins in every process, each task's included; what an app needs would cost each of them two seconds.
    To whoever is not logged in there is nothing, neither the app's description nor a 404.
    """

    def __init__(self, factory: str) -> None:
        self._factory = factory

    @cached_property
    def app(self) -> ASGIApp:
        """The app itself."""
        from sluice.api import app, login

        made = login.LoginRequired(getattr(app, self._factory)())
        settled()
        return made

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request."""
        await self.app(scope, receive, send)
