"""Reads bodies of requests within limits of size and time."""

from __future__ import annotations

from starlette.requests import Request

from sluice.errors import QueryError
from sluice.support.time_limit import finish_within


class TooBig(QueryError):
    """The body of a request exceeds its size limit."""

    status = 413
    title = "Too big"


class TooLate(QueryError):
    """The body of a request did not arrive in time."""

    status = 408
    title = "Took too long to arrive"


async def read_body(request: Request, most: int, seconds: float) -> bytes:
    """Read the body. Raise TooBig or TooLate, after which the protocol closes the connection."""

    def late() -> TooLate:
        return TooLate(f"The request did not arrive within {seconds:g} s.")

    return await finish_within(seconds, _read(request, most), late)


async def _read(request: Request, most: int) -> bytes:
    body = bytearray()
    async for chunk in request.stream():
        body += chunk
        # Compare the received bytes with the limit, because a request need not have a
        # Content-Length.
        if len(body) > most:
            raise TooBig(f"The request exceeds the limit of {most:,} bytes.")
    return bytes(body)
