"""A shard on another host, read and written through the state server there."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Concatenate, ParamSpec, Self, TypeVar
from urllib.parse import urlsplit

import httpx
import msgspec
from typing_extensions import override

from sluice.errors import StateError, Unreachable
from sluice.state.remote.connection import (
    NotAStateServer,
    call_limits,
    client_options,
    response_content,
)
from sluice.state.remote.shard_calls import CALLS, PROTOCOL, PROTOCOL_HEADER, OtherVersion
from sluice.state.shard.answer_rows import RecordedAnswer
from sluice.state.shard.operator_states import StoredState
from sluice.state.shard.shard import Shard

P = ParamSpec("P")
R = TypeVar("R")

ANSWER_SECONDS = 60.0
"""How long a busy server may take to say that it has a shard. The wait must end, because a paused
server accepts connections and never answers."""
_WRITE_SECONDS = 600.0
_KEYS_AT_ONCE = 10_000


def _remote(
    method: Callable[Concatenate[Shard, P], R],
) -> Callable[Concatenate[RemoteShard, P], R]:
    """Make the method of `RemoteShard` that calls this method of the server's shard."""
    call = CALLS[method.__name__]

    def send(self: RemoteShard, /, *args: P.args, **kwargs: P.kwargs) -> R:
        content = call.encode_arguments(self, *args, **kwargs)
        result: R = self._request("POST", f"/calls/{call.name}", call.decode_result, content)
        return result

    send.__name__, send.__doc__ = method.__name__, method.__doc__
    return send


class RemoteShard(Shard):
    """A shard that a state server reads and writes.

    Raises Unreachable if the server does not respond.
    """

    def __init__(self, address: str, client: httpx.Client) -> None:
        self._address = address
        self._client = client

    @classmethod
    def open(cls, url: str, *, token: str = "") -> Self:
        """Open a shard. Raise StateError if the server does not have it.

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
        query = f"?anew={str(anew).lower()}&continued={str(continued).lower()}"
        try:
            shard._request("PUT", query, bytes)
        except BaseException:
            # Close the shard here, because the caller does not get it.
            shard.close()
            raise
        return shard

    @classmethod
    def drop(cls, url: str) -> None:
        """Delete a shard. Do nothing if it does not exist."""
        with cls(url, httpx.Client(**client_options(_WRITE_SECONDS))) as shard:
            shard._request("DELETE", "", bytes)

    @classmethod
    def size_of(cls, url: str) -> int:
        """Return the size of a shard in bytes.

        Raise StateError if its server does not answer or does not have it.
        """
        with cls(url, httpx.Client(**client_options(ANSWER_SECONDS))) as shard:
            return shard._request("GET", "/size", msgspec.json.Decoder(int).decode)

    @override
    def close(self) -> None:
        self._client.close()

    begin_run = _remote(Shard.begin_run)
    rows_before = _remote(Shard.rows_before)
    write_pages = _remote(Shard.write_pages)
    expire_windows = _remote(Shard.expire_windows)
    due_keys = _remote(Shard.due_keys)
    earliest_timer = _remote(Shard.earliest_timer)
    write_states = _remote(Shard.write_states)
    write_answers = _remote(Shard.write_answers)
    forget_failures = _remote(Shard.forget_failures)
    answers = _remote(Shard.answers)
    absorb_answers = _remote(Shard.absorb_answers)
    journal = _remote(Shard.journal)
    checksums = _remote(Shard.checksums)
    verify_rows = _remote(Shard.verify_rows)
    verify_states = _remote(Shard.verify_states)
    scan = _remote(Shard.scan)
    compact = _remote(Shard.compact)
    row_versions = _remote(Shard.row_versions)
    absorb_rows = _remote(Shard.absorb_rows)
    state_versions = _remote(Shard.state_versions)
    absorb_states = _remote(Shard.absorb_states)
    last_places = _remote(Shard.last_places)
    row_counts = _remote(Shard.row_counts)
    replace_journal = _remote(Shard.replace_journal)
    seal = _remote(Shard.seal)
    _read_states_at_once = _remote(Shard.read_states)
    _read_answers_at_once = _remote(Shard.read_answers)

    @override
    def read_states(
        self, operator: int, keys: Sequence[str], before: int, epoch: int, *, shared: bool = False
    ) -> dict[str, StoredState]:
        states: dict[str, StoredState] = {}
        for some in _divide(keys):
            states |= self._read_states_at_once(operator, some, before, epoch, shared=shared)
        return states

    @override
    def read_answers(self, step: str, ids: Sequence[str], epoch: int) -> list[RecordedAnswer]:
        answers: list[RecordedAnswer] = []
        for some in _divide(ids):
            answers += self._read_answers_at_once(step, some, epoch)
        return answers

    def _request(
        self,
        method: str,
        path: str,
        decode: Callable[[bytes], R],
        content: bytes = b"",
    ) -> R:
        """Send a request, and decode the content of the server's response."""
        headers = {PROTOCOL_HEADER: PROTOCOL}
        try:
            response = self._client.request(
                method, self._address + path, content=content, headers=headers
            )
            if _is_of_other_version(response):
                raise OtherVersion
            return decode(response_content(response.status_code, response.content))
        except httpx.HTTPError as error:
            raise Unreachable(
                f"The state server at {self._server} cannot be reached ({type(error).__name__})."
            ) from None
        except (NotAStateServer, msgspec.DecodeError, RecursionError):
            raise StateError(
                f"The server at {self._server} is not a state server.",
                next_step="Stop that program, and start the state server at this address again: "
                "sluice serve.",
            ) from None

    @property
    def _server(self) -> str:
        return urlsplit(self._address).netloc


def _is_of_other_version(response: httpx.Response) -> bool:
    """Return whether the response shows that the state server's version lacks the call."""
    is_unknown = response.status_code == httpx.codes.NOT_FOUND
    return is_unknown and PROTOCOL_HEADER not in response.headers


def _divide(keys: Sequence[str]) -> Iterator[Sequence[str]]:
    """Divide keys into parts that are small enough for one call."""
    for start in range(0, len(keys), _KEYS_AT_ONCE):
        yield keys[start : start + _KEYS_AT_ONCE]
