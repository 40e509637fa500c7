"""Requests and what their answers are, whichever client sends them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from decimal import Decimal
from typing import Any, Generic, TypeVar
from urllib.parse import quote

import httpx
import msgspec

from sluice.client.answers import Change, Count, Entries, Groups, Part, ReadPoint, Store
from sluice.errors import Busy, Gone, NotFound, NotReached, QueryError, Refused, SluiceError, StateError

T = TypeVar("T")

STORES = "/sluice/v1/stores"
_ERRORS: dict[int, type[SluiceError]] = {
    401: Refused, 403: Refused, 404: NotFound, 410: Gone, 412: NotReached, 429: Busy, 502: StateError, 503: StateError,
}  # fmt: skip


@dataclass(frozen=True)
class Ask(Generic[T]):
    """A request, and what its answer is."""

    path: str
    type: type[T]
    parameters: list[tuple[str, str]] = field(default_factory=list)

    def read(self, answer: httpx.Response) -> T:
        """The answer; the error that it tells of is raised."""
        if answer.status_code == httpx.codes.OK:
            return _decode(answer.content, self.type)
        raise error_of(answer)


def ask(path: str, kind: type[T], asked: Any = None, **more: Any) -> Ask[T]:
    """A request with its parameters; those that are None are left out."""
    known = {"start": "from", "end": "to"} if asked is not None else {}
    given = {known.get(name, name): value for name, value in {**(asked or {}), **more}.items() if value is not None}
    pairs = [(name, one) for name, value in given.items() for one in (value if isinstance(value, list) else [value])]
    return Ask(path, kind, [(name, _text(value)) for name, value in pairs])


class Caller:
    """What both clients know: where to ask, and as whom."""

    def __init__(self, address: str, token: str | None, user: str | None, password: str | None) -> None:
        self._address = address.rstrip("/")
        self._user, self._password = user, password
        self._headers = {"Authorization": f"Bearer {token}"} if token else {}

    @property
    def _can_log_in(self) -> bool:
        return self._user is not None and self._password is not None

    def _log_in_request(self) -> dict[str, Any]:
        return {"url": f"{self._address}/auth/token", "json": {"username": self._user, "password": self._password}}

    def _logged_in(self, answer: httpx.Response) -> None:
        if answer.status_code not in (httpx.codes.OK, httpx.codes.CREATED):
            raise Refused(f"Airflow refused the log-in of {self._user}: {answer.status_code}.")
        self._headers = {"Authorization": f"Bearer {answer.json()['access_token']}"}

    def _request(self, asked: Ask[Any], since: str | None = None) -> dict[str, Any]:
        headers = self._headers | ({"Last-Event-ID": since} if since else {})
        return {"url": self._address + asked.path, "params": asked.parameters or None, "headers": headers}


class Events:
    """Server-sent events, line by line."""

    def __init__(self) -> None:
        self._fields: dict[str, str] = {}

    def read(self, line: str) -> Iterator[Change]:
        """The change that a line completes, if it does."""
        if line:
            name, _, value = line.partition(":")
            self._fields[name] = value.removeprefix(" ")
            return
        event, data = self._fields.get("event", ""), self._fields.get("data", "")
        self._fields.clear()
        if event == "trouble":
            raise StateError(msgspec.json.decode(data)["detail"])
        if data:
            yield msgspec.structs.replace(_decode(data.encode(), Change), event=event)


def page_of(store: str, limit: int, cursor: str, worker: int | None, part: Part) -> Ask[Entries]:
    """A request for a page of a store."""
    return ask(_path(store), Entries, part, limit=limit, cursor=cursor or None, worker=worker)


def stores_of(entries: bool = False) -> Ask[list[Store]]:
    """A request for all stores."""
    return ask(STORES, list[Store], entries=entries)


def key_of(store: str, key: str, moment: ReadPoint | Part) -> Ask[Entries]:
    """A request for a key, or for its windows."""
    return ask(f"{_path(store, 'keys')}/{quote(key, safe='')}", Entries, moment)


def keys_of(store: str, keys: Iterable[str], moment: ReadPoint) -> Ask[Entries]:
    """A request for several keys."""
    return ask(_path(store, "keys"), Entries, moment, key=list(keys))


def count_of(store: str, part: Part) -> Ask[Count]:
    """A request for the number of entries."""
    return ask(_path(store, "count"), Count, part)


def top_of(store: str, part: Part, **more: Any) -> Ask[Entries]:
    """A request for the largest or smallest entries."""
    return ask(_path(store, "top"), Entries, part, **more)


def figures_of(store: str, part: Part, **more: Any) -> Ask[Groups]:
    """A request for figures by group."""
    return ask(_path(store, "combine"), Groups, part, **more)


def changes_of(store: str, pipeline: str | None) -> Ask[Change]:
    """A request for a stream of changes."""
    return ask(_path(store, "changes"), Change, pipeline=pipeline)


def _path(store: str, what: str = "") -> str:
    return f"{STORES}/{quote(store, safe='')}{'/' + what if what else ''}"


def _text(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def _decode(content: bytes, kind: type[T]) -> T:
    try:
        plain = msgspec.json.Decoder(float_hook=Decimal).decode(content)
        return msgspec.convert(plain, kind)
    except msgspec.MsgspecError as error:
        raise StateError(f"The answer is none of this REST view: {error}") from None


def error_of(answer: httpx.Response) -> SluiceError:
    """The error that a problem document tells of."""
    try:
        problem = msgspec.json.decode(answer.content, type=dict[str, Any])
        detail, next_step = str(problem["detail"]), str(problem.get("nextStep", ""))
    except (msgspec.MsgspecError, KeyError):
        problem, detail, next_step = {}, f"The server answered {answer.status_code}.", ""
    kind = _ERRORS.get(answer.status_code, QueryError)
    return kind(detail, next_step=next_step, extensions=problem)


def unreachable(error: httpx.TransportError) -> StateError:
    """The error of a server that does not answer."""
    return StateError(f"The REST view cannot be reached ({type(error).__name__}).", next_step="See that it runs.")
