"""A shard on another host: read and written through the state server there."""

from __future__ import annotations

import ssl
from collections.abc import Iterable, Mapping, Sequence
from functools import cache
from typing import Any, Self

import httpx
import msgspec
from typing_extensions import override

from sluice.errors import (
    DamagedState,
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
from sluice.state.model import StateRow
from sluice.state.shard.drivers import Row
from sluice.state.shard.operator_states import Remembered, State, StateVersion
from sluice.state.shard.ranges import EVERYTHING, Range
from sluice.state.shard.shard import Checksums, Journal, Shard, Version

_WRITE_SECONDS = 600.0
_CONNECT_SECONDS = 3.0
_KINDS: dict[str, type[SluiceError]] = {
    kind.title: kind for kind in (DamagedState, LeaseError, QueryError, Refused, TooSlow)
}
"""Errors that mean the same here as at the server; every other one means that the shard is unavailable."""
_VERSIONS = msgspec.msgpack.Decoder(list[Version])
_STATE_VERSIONS = msgspec.msgpack.Decoder(list[StateVersion])
_REMEMBERED = msgspec.msgpack.Decoder(dict[str, Remembered])
_KEYS_AT_ONCE = 10_000


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
    def expire(self, batch: int, ends: Mapping[int, int], epoch: int = 0) -> None:
        self._ask("POST", f"/batches/{batch}/expire?epoch={epoch}", msgspec.json.encode(dict(ends)))

    @override
    def read_states(
        self, operator: int, keys: Sequence[str], before: int, epoch: int, *, shared: bool = False
    ) -> dict[str, Remembered]:
        found: dict[str, Remembered] = {}
        for start in range(0, len(keys), _KEYS_AT_ONCE):
            asked = (operator, list(keys[start : start + _KEYS_AT_ONCE]), before, epoch, shared)
            found |= _REMEMBERED.decode(self._ask("POST", "/states", msgspec.msgpack.encode(asked)))
        return found

    @override
    def due(self, operator: int, until: int, before: int, epoch: int, clock: str = "due") -> list[str]:
        asked = msgspec.json.encode((operator, until, before, epoch, clock))
        return msgspec.json.decode(self._ask("POST", "/states/due", asked), type=list[str])

    @override
    def write_states(self, batch: int, numbers: Iterable[int], states: Sequence[State], epoch: int) -> None:
        content = msgspec.msgpack.encode((list(numbers), states))
        self._ask("PUT", f"/states/{batch}?epoch={epoch}", content)

    @override
    def begin(self, epoch: int, as_of: int) -> Checksums:
        return msgspec.json.decode(self._ask("POST", "/begin", msgspec.json.encode((epoch, as_of))), type=Checksums)

    @override
    def journal(self) -> Journal:
        return msgspec.json.decode(self._ask("GET", "/batches"), type=Journal)

    @override
    def batches(self) -> dict[int, int]:
        return {one.batch: one.rows for one in self.journal().batches if one.operator < 0}

    @override
    def checksums(self, as_of: int) -> Checksums:
        return msgspec.json.decode(self._ask("POST", "/checksums", msgspec.json.encode(as_of)), type=Checksums)

    @override
    def checksum(self, as_of: int) -> str:
        return self.checksums(as_of).state_rows

    @override
    def verify(self, as_of: int, published: Checksums | None = None) -> None:
        self._ask("POST", "/verify", msgspec.json.encode((as_of, published)))

    @override
    def verify_states(self, as_of: int, published: Checksums | None = None) -> None:
        self._ask("POST", "/states/verify", msgspec.json.encode((as_of, published)))

    def drop(self) -> None:
        """Remove the shard and all it holds."""
        self._ask("DELETE", "")
        self.close()

    @override
    def get(self, group_id: int, key: str, as_of: int, window_start: int = -1) -> str | None:
        at = None if window_start < 0 else window_start
        found = self.scan(group_id, as_of, Range.of_key(key, at, at), limit=1)
        return found[0].value if found else None

    @override
    def scan(
        self,
        group_id: int,
        as_of: int,
        within: Range = EVERYTHING,
        *,
        after: tuple[str, int] | None = None,
        limit: int = 1_000,
        checked: bool = False,
    ) -> list[StateRow]:
        page = {
            "group_id": group_id,
            "as_of": as_of,
            "within": within,
            "after": after,
            "limit": limit,
            "checked": checked,
        }
        asked = msgspec.json.encode(page)
        return msgspec.json.decode(self._ask("POST", "/state_rows", asked), type=list[StateRow])

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
    def state_versions(self, since: int, after: tuple[int, int, str, int] | None, limit: int) -> list[StateVersion]:
        asked = msgspec.json.encode((since, after, limit))
        return _STATE_VERSIONS.decode(self._ask("POST", "/states/versions", asked))

    @override
    def absorb_states(self, versions: Iterable[StateVersion]) -> None:
        self._ask("PUT", "/states/versions", msgspec.msgpack.encode(list(versions)))

    @override
    def settle(self, since: int, journal: Journal) -> None:
        self._ask("POST", "/settle", msgspec.json.encode((since, journal)))

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
