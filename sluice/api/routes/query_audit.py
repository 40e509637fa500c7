"""Logs who queried which store, if SLUICE_AUDIT_QUERIES says so.

The log has no keys, no values and no parameters of a query.
"""

from __future__ import annotations

import structlog
from starlette.requests import Request

from sluice.api.auth.permissions import Principal
from sluice.query import Pin
from sluice.settings import settings

log = structlog.get_logger(__name__)


def note_query(request: Request, user: Principal, pin: Pin) -> None:
    """Log a query of a store. Do not log lists of all stores, which read no values."""
    if not settings().audit_queries:
        return
    kind = _kind(request.scope["path"], pin.store.name)
    if kind:
        log.info(
            "store queried",
            user=user.name,
            pipeline=pin.store.pipeline,
            store=pin.store.name,
            kind=kind,
            snapshot=pin.snapshot.id,
        )


def _kind(path: str, store: str) -> str:
    """Return the kind of a query: `entries`, `key`, or the last part of its route's path.

    Return `route` for a custom route, and an empty text if the request queries no store.
    """
    _, is_of_store, rest = path.partition("/v1/stores")
    if not is_of_store:
        return "route"
    if not rest.strip("/"):
        return ""
    of_store = rest.removeprefix(f"/{store}").strip("/")
    if not of_store:
        return "entries"
    kind, _, key = of_store.partition("/")
    return "key" if key else kind
