"""A shard on another host, read and written through the state server there."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Self
from urllib.parse import urlsplit

import httpx
import msgspec
from typing_extensions import override

from sluice.errors import StateError, Unreachable
from sluice.state.model import EntryId, StateRow
from sluice.state.remote.connection import (
    NotAStateServer,
    call_limits,
    client_options,
    response_content,
)
from sluice.state.shard.answer_rows import Answer
from sluice.state.shard.checksums import checksum_of
from sluice.state.shard.operator_states import State, StateVersion, StoredState
from sluice.state.shard.ranges import EVERYTHING, Range
from sluice.state.shard.row_columns import RowColumns, RowIds
from sluice.state.shard.row_tuples import StoredRow, VersionId
from sluice.state.shard.shard import (
    NOTHING_FORGOTTEN,
    Checksums,
    Journal,
    LastPlaces,
    RowCounts,
    Shard,
    Version,
)

ANSWER_SECONDS = 60.0
"""How long a busy server may take to say that it has a shard. The wait must end, because a paused
server accepts connections and never answers."""
_WRITE_SECONDS = 600.0
_VERSIONS = msgspec.msgpack.Decoder(list[Version])
_STATE_VERSIONS = msgspec.msgpack.Decoder(list[StateVersion])
_STORED = msgspec.msgpack.Decoder(dict[int, StoredRow])
_STATES = msgspec.msgpack.Decoder(dict[str, StoredState])
_ANSWERS = msgspec.msgpack.Decoder(list[Answer])
_KEYS_AT_ONCE = 10_000


class RemoteShard(Shard):
    """A shard that a state server reads and writes.

    Raises Unreachable if the server does not respond.
    """

    def __init__(self, address: str, client: httpx.Client) -> None:
        self._address = address
        self._client = client

    @classmethod
    def open(cls, url: str, *, token: str = "") -> Self:
        """Open a shard. Raises StateError if the server does not have it.

        `token` defaults to the settings' token.
        """
        client = httpx.Client(**client_options(ANSWER_SECONDS, token))
        shard = cls(url, client)
        try:
            # This call raises an error if the server does not have the shard, or cannot open it.
            shard.journal()
        except BaseException:
            # Close the shard here, because the caller does not get it.
            shard.close()
            raise
        # Later calls may write a large batch, which takes longer than the first call.
        client.timeout = call_limits(_WRITE_SECONDS)
        return shard

    @classmethod
    def create(cls, url: str, *, anew: bool = False, continued: bool = False) -> Self:
        """Open a shard; create it if it does not exist.

        See `LocalShard.create` for `anew` and `continued`.
        """
        shard = cls(url, httpx.Client(**client_options(_WRITE_SECONDS)))
        try:
            shard._call("PUT", f"?anew={str(anew).lower()}&continued={str(continued).lower()}")
        except BaseException:
            # Close the shard here, because the caller does not get it.
            shard.close()
            raise
        return shard

    @override
    def close(self) -> None:
        self._client.close()

    @override
    def rows_before(self, batch: int, ids: RowIds, epoch: int) -> dict[int, StoredRow]:
        content = msgspec.msgpack.encode(ids)
        return _STORED.decode(self._call("POST", f"/batches/{batch}/before?epoch={epoch}", content))

    @override
    def write_pages(
        self,
        batch: int,
        pages: Iterable[RowColumns],
        epoch: int = 0,
        replaced: Callable[[], int] | None = None,
    ) -> int:
        content = msgspec.msgpack.encode(list(pages))
        parameter = "" if replaced is None else f"&replaced={checksum_of(replaced())}"
        written: int = msgspec.json.decode(
            self._call("PUT", f"/batches/{batch}?epoch={epoch}{parameter}", content)
        )
        return written

    @override
    def expire_windows(self, batch: int, ends: Mapping[int, int], epoch: int = 0) -> None:
        self._call(
            "POST", f"/batches/{batch}/expire?epoch={epoch}", msgspec.json.encode(dict(ends))
        )

    @override
    def read_states(
        self, operator: int, keys: Sequence[str], before: int, epoch: int, *, shared: bool = False
    ) -> dict[str, StoredState]:
        states: dict[str, StoredState] = {}
        for start in range(0, len(keys), _KEYS_AT_ONCE):
            content = msgspec.msgpack.encode(
                (operator, list(keys[start : start + _KEYS_AT_ONCE]), before, epoch, shared)
            )
            states |= _STATES.decode(self._call("POST", "/states", content))
        return states

    @override
    def due_keys(
        self,
        operator: int,
        until: int,
        before: int,
        epoch: int,
        clock: str = "due",
    ) -> list[str]:
        content = msgspec.json.encode((operator, until, before, epoch, clock))
        return msgspec.json.decode(self._call("POST", "/states/due", content), type=list[str])

    @override
    def earliest_timer(
        self,
        operator: int,
        before: int,
        epoch: int,
        clock: str = "wall",
        after: int = -1,
    ) -> int | None:
        content = msgspec.json.encode((operator, before, epoch, clock, after))
        return msgspec.json.decode(
            self._call("POST", "/states/earliest-timer", content), type=int | None
        )

    @override
    def write_states(
        self,
        batch: int,
        numbers: Iterable[int],
        states: Sequence[State],
        epoch: int,
    ) -> None:
        content = msgspec.msgpack.encode((list(numbers), states))
        self._call("PUT", f"/states/{batch}?epoch={epoch}", content)

    @override
    def read_answers(self, step: str, ids: Sequence[str], epoch: int) -> list[Answer]:
        answers: list[Answer] = []
        for start in range(0, len(ids), _KEYS_AT_ONCE):
            content = msgspec.msgpack.encode((step, list(ids[start : start + _KEYS_AT_ONCE])))
            answers += _ANSWERS.decode(self._call("POST", f"/answers/read?epoch={epoch}", content))
        return answers

    @override
    def write_answers(
        self,
        answers: Sequence[Answer],
        epoch: int,
        *,
        forget: Mapping[str, int] = NOTHING_FORGOTTEN,
    ) -> None:
        content = msgspec.msgpack.encode((list(answers), dict(forget)))
        self._call("POST", f"/answers?epoch={epoch}", content)

    @override
    def forget_failures(self, batch: int, epoch: int) -> None:
        self._call("POST", f"/answers/{batch}/forget-failures?epoch={epoch}")

    @override
    def answers(self, after: tuple[int, str, str] | None, limit: int) -> list[Answer]:
        return _ANSWERS.decode(
            self._call("POST", "/answers/page", msgspec.json.encode((after, limit)))
        )

    @override
    def absorb_answers(self, answers: Sequence[Answer], oldest: int) -> None:
        self._call("PUT", "/answers", msgspec.msgpack.encode((list(answers), oldest)))

    @override
    def begin_run(self, epoch: int, as_of: int) -> Checksums:
        return msgspec.json.decode(
            self._call("POST", "/begin", msgspec.json.encode((epoch, as_of))), type=Checksums
        )

    @override
    def journal(self) -> Journal:
        return msgspec.json.decode(self._call("GET", "/batches"), type=Journal)

    @override
    def checksums(self, as_of: int) -> Checksums:
        return msgspec.json.decode(
            self._call("POST", "/checksums", msgspec.json.encode(as_of)), type=Checksums
        )

    @override
    def verify_rows(self, as_of: int, published: Checksums | None = None) -> None:
        self._call("POST", "/verify", msgspec.json.encode((as_of, published)))

    @override
    def verify_states(self, as_of: int, published: Checksums | None = None) -> None:
        self._call("POST", "/states/verify", msgspec.json.encode((as_of, published)))

    @classmethod
    def drop(cls, url: str) -> None:
        """Delete a shard. Does nothing if it does not exist."""
        with cls(url, httpx.Client(**client_options(_WRITE_SECONDS))) as shard:
            shard._call("DELETE", "")

    @override
    def scan(
        self,
        group_id: int,
        as_of: int,
        within: Range = EVERYTHING,
        *,
        after: EntryId | None = None,
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
        content = msgspec.json.encode(page)
        return msgspec.json.decode(self._call("POST", "/state_rows", content), type=list[StateRow])

    @classmethod
    def size_of(cls, url: str) -> int:
        """The size of a shard in bytes. Raises StateError if its server does not answer or does not have it."""
        with cls(url, httpx.Client(**client_options(ANSWER_SECONDS))) as shard:
            size: int = msgspec.json.decode(shard._call("GET", "/size"))
        return size

    @override
    def compact(self, keep_from: int) -> int:
        removed: int = msgspec.json.decode(self._call("POST", f"/compact?keep_from={keep_from}"))
        return removed

    @override
    def row_versions(
        self,
        since: int,
        after: VersionId | None,
        limit: int,
    ) -> list[Version]:
        content = msgspec.json.encode([since, after, limit])
        return _VERSIONS.decode(self._call("POST", "/versions", content))

    @override
    def absorb_rows(self, versions: Iterable[Version]) -> None:
        self._call("PUT", "/versions", msgspec.msgpack.encode(list(versions)))

    @override
    def state_versions(
        self,
        since: int,
        after: tuple[int, int, str, int] | None,
        limit: int,
    ) -> list[StateVersion]:
        content = msgspec.json.encode((since, after, limit))
        return _STATE_VERSIONS.decode(self._call("POST", "/states/versions", content))

    @override
    def absorb_states(self, versions: Iterable[StateVersion]) -> None:
        self._call("PUT", "/states/versions", msgspec.msgpack.encode(list(versions)))

    @override
    def last_places(self) -> LastPlaces:
        return msgspec.json.decode(self._call("GET", "/last"), type=LastPlaces)

    @override
    def row_counts(self) -> RowCounts:
        return msgspec.json.decode(self._call("GET", "/rows"), type=RowCounts)

    @override
    def replace_journal(self, since: int, journal: Journal) -> None:
        self._call("POST", "/settle", msgspec.json.encode((since, journal)))

    @override
    def seal(self, *, sealed: bool = True) -> None:
        self._call("POST", f"/seal?sealed={str(sealed).lower()}")

    def _call(self, method: str, path: str, content: bytes = b"") -> bytes:
        try:
            response = self._client.request(method, self._address + path, content=content)
            return response_content(response.status_code, response.content)
        except httpx.HTTPError as error:
            raise Unreachable(
                f"The state server at {self._server} cannot be reached ({type(error).__name__})."
            ) from None
        except NotAStateServer:
            raise StateError(
                f"The server at {self._server} is not a state server.",
                next_step="Stop that program, and start the state server there again: sluice serve.",
            ) from None

    @property
    def _server(self) -> str:
        return urlsplit(self._address).netloc
