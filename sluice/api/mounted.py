"""An app that is only imported where it is asked."""

from __future__ import annotations

from functools import cached_property
from importlib import import_module

from starlette.types import ASGIApp, Receive, Scope, Send


class Mounted:
    """The app that a function of `sluice.api.app` makes, made at its first request.

    Airflow loads plugins in every process, each task's included; what an app needs would cost each of them two seconds.
    """

    def __init__(self, factory: str) -> None:
        self._factory = factory

    @cached_property
    def app(self) -> ASGIApp:
        """The app itself."""
        made: ASGIApp = getattr(import_module("sluice.api.app"), self._factory)()
        return made

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request."""
        await self.app(scope, receive, send)
