"""The queries of the REST API, without the transport, which `AsyncClient` and `Client` add."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Iterable, Iterator
from contextlib import AbstractAsyncContextManager, contextmanager
from dataclasses import dataclass
from decimal import Decimal
from typing import Any, Generic, Literal, TypedDict, TypeVar
from urllib.parse import quote

import httpx
import msgspec
from typing_extensions import Unpack

from sluice.answers import (
    MAX_KEYS,
    Activity,
    BatchHistory,
    Change,
    Count,
    Diff,
    Entries,
    Entry,
    Generation,
    Groups,
    Overview,
    Run,
    Store,
    WorkerStatus,
)
from sluice.errors import (
    Busy,
    Gone,
    NotFound,
    NotReached,
    QueryError,
    Refused,
    SettingsError,
    SluiceError,
    StateError,
    sentence,
)
from sluice.support.masking import shown_url
from sluice.values.keys import lookup_key

T = TypeVar("T")

STORES = "/sluice/v1/stores"
_ERRORS: dict[int, type[SluiceError]] = {
    error.status: error for error in (Refused, NotFound, Gone, NotReached, Busy, StateError)
}
# Airflow answers 401 if the log-in is missing or invalid; a proxy answers 502 if its server does
# not answer.
_ERRORS |= {401: Refused, 502: StateError}
"""Status of a response → the error that the client raises. All other errors become QueryError."""
_QUERY_LENGTH = 6_000
"""The keys in a request have at most this many characters together. Many servers and proxies limit
the first line of a request to 8 KB."""
_SHORT_SECONDS = 2.0
"""If the server ends a stream of changes sooner than this, an expired log-in is not the cause."""
_OTHER_NAMES = {"start": "from", "end": "to"}
"""Parameters that have another name in the REST API."""


class ReadPoint(TypedDict, total=False):
    """The snapshot that a query reads, as in the REST API's parameters."""

    pipeline: str
    as_of: str
    min_snapshot: str
    min_position: str
    require: Literal["complete"]


class RangeParameters(ReadPoint, total=False):
    """Keys from `first` to `last`, or with a prefix; windows that start from `start` to `end`."""

    first: str
    last: str
    prefix: str
    start: str
    end: str


@dataclass(frozen=True)
class Query(Generic[T]):
    """A request, and the type of its answer."""

    path: str
    type: type[T]
    parameters: list[tuple[str, str]]

    def decode(self, response: httpx.Response) -> T:
        """Decode the answer. Raises the error that the response reports."""
        if response.status_code == httpx.codes.OK:
            return _decode(response.content, self.type)
        raise error_of(response)


class Queries:
    """The methods of both clients."""

    _connection: Connection

    async def stores(self, *, entries: bool = False) -> list[Store]:
        """Return all stores that you may read.

        With `entries=True`, each store has its number of entries.
        """
        return await self._send(_query(STORES, list[Store], entries=entries))

    async def overview(self) -> list[Overview]:
        """Return each pipeline's health, unread records, last run and dead letters.

        The worst health comes first. Dead letters are counted over the last 24 hours.
        """
        return await self._send(_query("/sluice/v1/overview", list[Overview]))

    async def batches(self, pipeline: str, *, limit: int = 100) -> list[BatchHistory]:
        """Return the newest batches of a pipeline with their audits, newest first."""
        path = _of_pipeline(pipeline, "batches")
        return await self._send(_query(path, list[BatchHistory], limit=limit))

    async def runs(self, pipeline: str, *, limit: int = 20) -> list[Run]:
        """Return the newest runs of a pipeline's DAG in Airflow, newest first.

        A state server returns an empty list.
        """
        return await self._send(_query(_of_pipeline(pipeline, "runs"), list[Run], limit=limit))

    async def activity(self, pipeline: str, *, limit: int = 100) -> list[Activity]:
        """Return who did what to a pipeline, and when, newest first.

        Changes of the topology and of Sluice's version, which a run has found, have no user.
        """
        path = _of_pipeline(pipeline, "activity")
        return await self._send(_query(path, list[Activity], limit=limit))

    async def generations(self, pipeline: str) -> list[Generation]:
        """Return a pipeline's current generation, and those of unfinished rebuilds and replays."""
        return await self._send(_query(_of_pipeline(pipeline, "generations"), list[Generation]))

    async def get(self, store: str, key: Any, **read_point: Unpack[ReadPoint]) -> Entries:
        """Return the value of one key, or in a store with windows, the values of all its windows.

        Raises NotFound if there is no value. A key that is not a str, such as a number, a date or a
        dict, is first turned into the text that `sluice.key_text` returns.
        """
        text = lookup_key(key)
        if "\n" not in text and "\r" not in text:
            return await self._send(_query(_path(store, "keys", text), Entries, read_point))
        # Airflow's router accepts no line break in a path.
        answer = await self.multi_get(store, [text], **read_point)
        if not answer.entries:
            raise NotFound(f"Store {store!r} has no key {text!r} in snapshot {answer.snapshot.id}.")
        return answer

    async def multi_get(
        self, store: str, keys: Iterable[Any], **read_point: Unpack[ReadPoint]
    ) -> Entries:
        """Return the values of several keys, in the order of `keys`.

        Keys without a value are left out. If the keys are too long for one request, the client
        sends several; all answers are from one snapshot.
        """
        texts = dict.fromkeys(lookup_key(key) for key in keys)
        first, *others = _requested_keys(list(texts))
        path = _path(store, "keys")
        answers = [await self._send(_query(path, Entries, read_point, key=first))]
        if not others:
            return answers[0]
        # The first answer says which snapshot the other requests must read.
        pinned: ReadPoint = {"pipeline": answers[0].pipeline, "as_of": answers[0].snapshot.id}
        if "require" in read_point:
            pinned["require"] = read_point["require"]
        for more in others:
            answers.append(await self._send(_query(path, Entries, pinned, key=more)))
        return join_answers(answers)

    async def windows(self, store: str, key: Any, **selection: Unpack[RangeParameters]) -> Entries:
        """Return the windows of a key that start between `start` and `end` (included), in order."""
        return await self._send(_query(_path(store, "keys", lookup_key(key)), Entries, selection))

    async def page(
        self,
        store: str,
        *,
        limit: int = 100,
        cursor: str = "",
        worker: int | None = None,
        **selection: Unpack[RangeParameters],
    ) -> Entries:
        """Return a page of entries, in order, from all workers or from one worker."""
        query = _query(
            _path(store), Entries, selection, limit=limit, cursor=cursor or None, worker=worker
        )
        return await self._send(query)

    async def range(
        self,
        store: str,
        *,
        limit: int = 1_000,
        worker: int | None = None,
        **selection: Unpack[RangeParameters],
    ) -> AsyncIterator[Entry]:
        """Yield all entries in order, from one snapshot. Request `limit` entries at a time.

        Raises StateError if a worker is unavailable. In this case, `page` still returns the entries
        of the other workers.
        """
        # If a page could be partial, entries would be missing and the caller would not notice.
        complete: RangeParameters = {"require": "complete", **selection}
        cursor = ""
        while True:
            page = await self.page(store, limit=limit, cursor=cursor, worker=worker, **complete)
            for entry in page.entries:
                yield entry
            cursor = page.cursor or ""
            if not cursor:
                return

    async def count(self, store: str, **selection: Unpack[RangeParameters]) -> Count:
        return await self._send(_query(_path(store, "count"), Count, selection))

    async def top(
        self,
        store: str,
        field: str = "",
        *,
        limit: int = 10,
        smallest: bool = False,
        **selection: Unpack[RangeParameters],
    ) -> Entries:
        """Return the entries with the largest numbers in a field, or with the smallest."""
        query = _query(
            _path(store, "top"), Entries, selection, field=field, limit=limit, smallest=smallest
        )
        return await self._send(query)

    async def diff(
        self,
        store: str,
        *,
        before: str,
        after: str | None = None,
        pipeline: str | None = None,
    ) -> Diff:
        """Compare two snapshots of a store.

        Returns how many entries are equal, changed, missing in `after` or added in `after`, and
        examples.
        """
        return await self._send(
            _query(_path(store, "diff"), Diff, before=before, after=after, pipeline=pipeline)
        )

    async def combine(
        self,
        store: str,
        field: str = "",
        *,
        group_by: str = "_all",
        order: str = "group",
        limit: int = 1_000,
        **selection: Unpack[RangeParameters],
    ) -> Groups:
        """Return each group's number of entries, and the sum, minimum and maximum of a field."""
        options = {"field": field, "group_by": group_by, "order": order, "limit": limit}
        return await self._send(_query(_path(store, "combine"), Groups, selection, **options))

    async def changes(
        self, store: str, *, pipeline: str | None = None, since: str | None = None
    ) -> AsyncIterator[Change]:
        """Yield each new snapshot when it is published.

        The first snapshot is the newest or, with `since`, the first one after `since`. The
        iterator never ends by itself. The iterator raises StateError if the server ends the stream,
        for example when somebody stops the server. To continue, call `changes` again with the last
        snapshot as `since`.
        """
        query = _query(_path(store, "changes"), Change, pipeline=pipeline)
        is_renewable = True
        while is_renewable:
            # This request logs in if necessary, because `_lines` does not.
            await self.stores()
            begun = time.monotonic()
            headers = {"Last-Event-ID": since} if since else {}
            async with self._lines(query, headers) as lines:
                events = _Events()
                async for line in lines:
                    for change in events.read(line):
                        since = change.snapshot.id
                        yield change
            # The server ends a stream when its log-in expires. The next request logs in again.
            is_renewable = self._connection.can_log_in and time.monotonic() - begun > _SHORT_SECONDS
        example = f": since={since!r}" if since else ""
        raise StateError(
            "The server ended the stream of changes.",
            next_step="Ask again for the changes since the last snapshot that you have "
            f"received{example}.",
        )

    async def _send(self, query: Query[T]) -> T:
        raise NotImplementedError

    def _lines(
        self,
        query: Query[Any],
        headers: dict[str, str],
    ) -> AbstractAsyncContextManager[AsyncIterator[str]]:
        raise NotImplementedError


class _Token(msgspec.Struct):
    access_token: str


class Connection:
    """The address of a REST API, and the log-in."""

    def __init__(
        self,
        address: str,
        token: str | None,
        user: str | None,
        password: str | None,
    ) -> None:
        _require_url(address)
        token = token and token.strip()
        if token and not (token.isascii() and token.isprintable()):
            raise SettingsError(
                "The token has characters that are not allowed in an HTTP header.",
                next_step="Copy the token again. For sluice query, SLUICE_TOKEN sets it.",
            )
        self._address = address.rstrip("/")
        self._user, self._password = user, password
        self._headers = {"Authorization": f"Bearer {token}"} if token else {}

    @property
    def can_log_in(self) -> bool:
        """Whether there is a user and a password."""
        return self._user is not None and self._password is not None

    def log_in_request(self) -> dict[str, Any]:
        """Return the arguments of the POST request that logs in."""
        return {
            "url": f"{self._address}/auth/token",
            "json": {"username": self._user, "password": self._password},
        }

    def store_token(self, response: httpx.Response) -> None:
        """Store the token from a log-in response."""
        if response.status_code not in (httpx.codes.OK, httpx.codes.CREATED):
            raise Refused(
                f"Airflow refused the log-in of {self._user}: {response.status_code}.",
                next_step="Correct the user name or the password.",
            )
        try:
            token = msgspec.json.decode(response.content, type=_Token).access_token
        except msgspec.MsgspecError:
            raise StateError(
                f"{shown_url(self._address)}/auth/token did not answer with a token of Airflow.",
                next_step=(
                    "Check the address: another server, such as a proxy, may have answered. "
                    "Or pass a token."
                ),
            ) from None
        self._headers = {"Authorization": f"Bearer {token}"}

    def request(self, query: Query[Any]) -> dict[str, Any]:
        """Return the arguments of the GET request of a query."""
        return {
            "url": self._address + query.path,
            "params": query.parameters or None,
            "headers": self._headers,
        }


def _require_url(address: str) -> None:
    """Raise SettingsError if the address is not the URL of a server.

    The error does not show the address, because it may contain a password.
    """
    try:
        url = httpx.URL(address)
        is_url = url.scheme in ("http", "https") and bool(url.host)
    except httpx.InvalidURL:
        is_url = False
    if not is_url:
        raise SettingsError(
            "The address of the REST API is not a URL with http:// or https:// and a host.",
            next_step=(
                "Write for example http://127.0.0.1:8080. For sluice query, SLUICE_URL sets the "
                "address."
            ),
        )


class _Events:
    """Reads server-sent events line by line."""

    def __init__(self) -> None:
        self._fields: dict[str, str] = {}

    def read(self, line: str) -> Iterator[Change]:
        """Read a line, and yield a change if the line completes an event."""
        if line:
            name, _, value = line.partition(":")
            self._fields[name] = value.removeprefix(" ")
            return
        event, data = self._fields.get("event", ""), self._fields.get("data", "")
        self._fields.clear()
        if event == "trouble":
            raise StateError(msgspec.json.decode(data)["detail"])
        if data:
            # The name of the event is on a separate line, outside the data.
            yield msgspec.structs.replace(_decode(data.encode(), Change), event=event)


def _query(path: str, answer: type[T], selection: Any = None, **options: Any) -> Query[T]:
    """Build a query from all parameters that are not None."""
    parameters: dict[str, Any] = {}
    for name, value in (selection or {}).items():
        parameters[_OTHER_NAMES.get(name, name)] = value
    parameters |= options
    pairs: list[tuple[str, str]] = []
    for name, value in parameters.items():
        if isinstance(value, list):
            for item in value:
                pairs.append((name, str(item)))
        elif isinstance(value, bool):
            # The REST API has true and false in lower case.
            pairs.append((name, str(value).lower()))
        elif value is not None:
            pairs.append((name, str(value)))
    return Query(path, answer, pairs)


def _requested_keys(keys: list[str]) -> list[list[str]]:
    """Split the keys of `multi_get` into requests that are small enough."""
    requests: list[list[str]] = [[]]
    length = 0
    for key in keys:
        key_length = len(quote(key, safe="")) + len("&key=")
        is_full = length + key_length > _QUERY_LENGTH or len(requests[-1]) == MAX_KEYS
        if requests[-1] and is_full:
            requests.append([])
            length = 0
        requests[-1].append(key)
        length += key_length
    return requests


def join_answers(answers: list[Entries]) -> Entries:
    """Join several answers into one.

    A worker counts as unavailable if it was unavailable for any of the answers.
    """
    entries: list[Entry] = []
    workers: dict[int, WorkerStatus] = {}
    for answer in answers:
        entries += answer.entries
        for worker in answer.workers:
            earlier = workers.get(worker.number, worker)
            workers[worker.number] = max(earlier, worker, key=_badness)
    return msgspec.structs.replace(
        answers[0],
        entries=entries,
        workers=tuple(workers[number] for number in sorted(workers)),
        partial=any(answer.partial for answer in answers),
        standby=any(answer.standby for answer in answers),
    )


def _badness(status: WorkerStatus) -> tuple[bool, bool]:
    """Return a sort key: unavailable workers come last, after workers whose standby answered."""
    return status.status != "ok", status.standby


def _path(store: str, *texts: str) -> str:
    segments = [_segment(text) for text in (store, *texts)]
    return "/".join([STORES, *segments])


def _segment(text: str) -> str:
    # HTTP clients remove the segments "." and ".." from a path unless they are encoded.
    if text in (".", ".."):
        return text.replace(".", "%2E")
    return quote(text, safe="")


def _of_pipeline(pipeline: str, resource: str) -> str:
    return f"/sluice/v1/pipelines/{quote(pipeline, safe='')}/{resource}"


def _decode(content: bytes, answer: type[T]) -> T:
    try:
        value = msgspec.json.Decoder(float_hook=Decimal).decode(content)
        return msgspec.convert(value, answer)
    except msgspec.MsgspecError as error:
        raise StateError(f"Unexpected response body: {error}") from None


def error_of(response: httpx.Response) -> SluiceError:
    """Return the error that a problem document reports."""
    try:
        problem = msgspec.json.decode(response.content, type=dict[str, Any])
        detail, next_step = str(problem["detail"]), str(problem.get("nextStep", ""))
    except (msgspec.MsgspecError, KeyError):
        # The answer is not a problem document. Another server, such as a proxy, may have sent it.
        problem, detail, next_step = {}, f"The server answered {response.status_code}.", ""
    kind = _ERRORS.get(response.status_code, QueryError)
    return kind(detail, next_step=next_step, extensions=problem)


def _invalid(error: httpx.InvalidURL) -> QueryError:
    """Return the error for a request whose URL is too long or invalid."""
    return QueryError(
        f"The request has no valid URL: {sentence(error)}",
        next_step="Correct the address, or shorten the key.",
    )


@contextmanager
def transport_errors() -> Iterator[None]:
    """Raise StateError if no valid HTTP response comes, and QueryError for an invalid URL."""
    try:
        yield
    except httpx.RequestError as error:
        raise _unreachable(error) from error
    except httpx.InvalidURL as error:
        raise _invalid(error) from error


def _unreachable(error: httpx.RequestError) -> StateError:
    """Return the error for a server that does not answer, or whose response cannot be decoded."""
    url = error.request.url
    return StateError(
        f"The REST API at {url.scheme}://{url.netloc.decode()} cannot be reached "
        f"({type(error).__name__}).",
        next_step="Start Airflow or `sluice serve --rest`, or correct the address.",
    )
