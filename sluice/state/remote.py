"""A shard on another host: read and written through the state server there."""

from __future__ import annotations

import ssl
from collections.abc import Iterable, Mapping
from functools import cache
from typing import Any, Self

import httpx
import msgspec
from typing_extensions import override

from sluice.errors import (
    LeaseError,
    QueryError,
    Refused,
    SettingsError,
    SluiceError,
    StateError,
    TooSlow,
    Unreachable,
)
from sluice.settings import settings
from sluice.state.checksums import NO_CHECKSUM
from sluice.state.drivers import Row
from sluice.state.model import Cell
from sluice.state.ranges import EVERYTHING, Range
from sluice.state.shard import Shard, Version, Written

_WRITE_SECONDS = 600.0
_CONNECT_SECONDS = 3.0
_KINDS: dict[str, type[SluiceError]] = {kind.title: kind for kind in (LeaseError, QueryError, Refused, TooSlow)}
"""Errors that mean the same here as at the server; every other one means that the shard is unavailable."""
_VERSIONS = msgspec.msgpack.Decoder(list[Version])


class BadAnswer(Exception):
    """What answered is no state server."""


class RemoteShard(Shard):
    """A shard behind a state server, with the same promises. StateError when the server does not answer."""

    blocking = True

    def __init__(self, address: str, client: httpx.Client) -> None:
        self._address = address
        self._client = client
        self.close = client.close

    @classmethod
    @override
    def open(cls, url: str, *, to_write: bool = False, token: str = "") -> Self:
        """Open a shard; StateError if the server has none."""
        shard = cls(url, httpx.Client(**ask_options(_WRITE_SECONDS, token)))
        shard.batches()
        return shard

    @classmethod
    @override
    def create(cls, url: str, *, anew: bool = False) -> Self:
        """Open a shard for writing, and make it if it is not there; `anew` also in place of one that was moved away."""
        shard = cls(url, httpx.Client(**ask_options(_WRITE_SECONDS)))
        shard._ask("PUT", f"?anew={str(anew).lower()}")
        return shard

    @override
    def is_current(self) -> bool:
        return True

    @override
    def write(self, batch: int, rows: Iterable[Row], epoch: int = 0) -> int:
        content = msgspec.msgpack.encode(list(rows))
        written: int = msgspec.json.decode(self._ask("PUT", f"/batches/{batch}?epoch={epoch}", content))
        return written

    @override
    def expire(self, batch: int, ends: Mapping[int, int], epoch: int = 0) -> str:
        path = f"/batches/{batch}/expire?epoch={epoch}"
        checksum: str = msgspec.json.decode(self._ask("POST", path, msgspec.json.encode(dict(ends))))
        return checksum

    @override
    def journal(self) -> list[Written]:
        return msgspec.json.decode(self._ask("GET", "/batches"), type=list[Written])

    @override
    def batches(self) -> dict[int, int]:
        return {one.batch: one.rows for one in self.journal()}

    @override
    def checksum(self, as_of: int) -> str:
        return next((one.checksum for one in reversed(self.journal()) if one.batch <= as_of), NO_CHECKSUM)

    @override
    def verify(self, as_of: int, checksum: str | None = None) -> None:
        self._ask("POST", "/verify", msgspec.json.encode([as_of, checksum]))

    def drop(self) -> None:
        """Remove the shard and all it holds."""
        self._ask("DELETE", "")
        self.close()

    @override
    def get(self, cell: int, key: str, as_of: int, window_start: int = -1) -> str | None:
        at = None if window_start < 0 else window_start
        found = self.scan(cell, as_of, Range.of_key(key, at, at), limit=1)
        return found[0].value if found else None

    @override
    def scan(
        self,
        cell: int,
        as_of: int,
        within: Range = EVERYTHING,
        *,
        after: tuple[str, int] | None = None,
        limit: int = 1_000,
    ) -> list[Cell]:
        asked = msgspec.json.encode({"cell": cell, "as_of": as_of, "within": within, "after": after, "limit": limit})
        return msgspec.json.decode(self._ask("POST", "/cells", asked), type=list[Cell])

    @override
    def compact(self, keep_from: int) -> int:
        removed: int = msgspec.json.decode(self._ask("POST", f"/compact?keep_from={keep_from}"))
        return removed

    @override
    def versions(self, since: int, after: tuple[int, str, int, int] | None, limit: int) -> list[Version]:
        asked = msgspec.json.encode([since, after, limit])
        return _VERSIONS.decode(self._ask("POST", "/versions", asked))

    @override
    def absorb(self, versions: Iterable[Version]) -> None:
        self._ask("PUT", "/versions", msgspec.msgpack.encode(list(versions)))

    @override
    def settle(self, since: int, batches: Iterable[Written]) -> None:
        self._ask("POST", "/settle", msgspec.json.encode([since, list(batches)]))

    @override
    def seal(self, *, sealed: bool = True) -> None:
        self._ask("POST", f"/seal?sealed={str(sealed).lower()}")

    def _ask(self, method: str, path: str, content: bytes = b"") -> bytes:
        try:
            answer = self._client.request(method, self._address + path, content=content)
            return checked(answer.status_code, answer.content)
        except httpx.HTTPError as error:
            raise Unreachable(f"The state server cannot be reached ({type(error).__name__}).") from None
        except BadAnswer:
            raise StateError("What answers at the shard's address is no state server.") from None


def ask_options(seconds: float | None = None, token: str = "") -> dict[str, Any]:
    """How this process speaks to state servers, as arguments of httpx's clients; SettingsError without a token."""
    return {
        "headers": {"Authorization": f"Bearer {token or shown_token()}"},
        "verify": trusted(),
        "timeout": httpx.Timeout(seconds, connect=_CONNECT_SECONDS),
        "trust_env": False,  # no proxy stands between servers
        "follow_redirects": False,
    }


def shown_token() -> str:
    """What state servers are shown; SettingsError if there is none."""
    token = settings().server_token
    if not token:
        raise SettingsError(
            "There is a state server to be asked, and no token to show it.",
            next_step="Set SLUICE_SERVER_TOKEN, or SLUICE_SERVER_TOKEN_FILE, to what the server was started with.",
        )
    return token


@cache
def trusted() -> ssl.SSLContext:
    """Whose certificates are taken for those of state servers."""
    known = settings().server_ca
    return ssl.create_default_context(cafile=None if known is None else str(known))


def checked(status: int, content: bytes) -> bytes:
    """The content of an answer; of a problem document the error it tells of. BadAnswer if it is neither."""
    if status == httpx.codes.OK:
        return content
    try:
        problem = msgspec.json.decode(content, type=dict[str, Any])
        detail, next_step = str(problem["detail"]), str(problem.get("nextStep", ""))
    except (msgspec.DecodeError, KeyError):
        raise BadAnswer from None
    kind = _KINDS.get(problem.get("title", ""), StateError)
    raise kind(detail, next_step=next_step)
