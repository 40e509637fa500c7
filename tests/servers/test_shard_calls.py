"""The calls of a shard over HTTP are derived from the methods of `Shard`."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from typing import Any

import msgspec
import pytest

from sluice.errors import StateError
from sluice.state.model import GenerationRef
from sluice.state.remote import remote_shard
from sluice.state.remote.opening import create_shard, open_shard
from sluice.state.remote.remote_shard import RemoteShard
from sluice.state.remote.shard_calls import CALLS, PROTOCOL
from sluice.state.shard.checksums import checksum_of
from sluice.state.shard.row_columns import RowColumns
from sluice.state.shard.shard import Shard
from tests.servers.hosts import TOKEN, Host
from tests.servers.test_untrusted_peers import FakeServer
from tests.support.state_rows import page_of

REF = GenerationRef("orders", 1)
OTHER_VERSION = "The state server and the program that calls it have different versions of Sluice"
NOTHING_THERE = b'{"title":"Not found","status":404,"detail":"There is nothing at this path."}'
DIGEST = "52b7437de2c42624"
"""The digest of the types of all arguments and results. If it changes, raise PROTOCOL, too."""


def test_every_method_of_the_protocol_can_be_called_remotely() -> None:
    methods = {name for name in vars(Shard) if not name.startswith("_") and name != "close"}
    assert CALLS.keys() == methods
    for name in methods:
        assert getattr(RemoteShard, name) is not getattr(Shard, name), name


def test_a_change_of_the_calls_needs_another_version() -> None:
    types: list[Any] = []
    for call in CALLS.values():
        types += [call.arguments.type, call.result.type]
    schemas = [[*CALLS], *msgspec.json.schema_components(types)]
    text = msgspec.json.encode(_without_descriptions(schemas), order="sorted")
    assert (PROTOCOL, hashlib.sha256(text).hexdigest()[:16]) == ("1", DIGEST)


def _without_descriptions(schema: Any) -> Any:
    if isinstance(schema, dict):
        return {
            name: _without_descriptions(part)
            for name, part in schema.items()
            if name != "description"
        }
    if isinstance(schema, list | tuple):
        return [_without_descriptions(part) for part in schema]
    return schema


def test_a_caller_of_another_version_is_refused(
    hosts: list[Host], monkeypatch: pytest.MonkeyPatch
) -> None:
    address = hosts[0].options.place("orders", 0).shard(REF)
    with create_shard(address) as shard:
        monkeypatch.setattr(remote_shard, "PROTOCOL", "0")
        with pytest.raises(StateError, match=OTHER_VERSION) as refused:
            shard.seal()
        assert "Install the same version of Sluice on all hosts" in refused.value.next_step
        monkeypatch.undo()
        shard.begin_run(1, -1)


@pytest.mark.parametrize(
    "path", ["batches", "states/due", "batches/1?epoch=1", "compact?keep_from=1"]
)
def test_calls_of_earlier_versions_are_refused(hosts: list[Host], path: str) -> None:
    answer = hosts[0].ask("POST", f"/local/orders/1/0/{path}")
    assert answer.json()["detail"].startswith(OTHER_VERSION)


def test_a_server_of_an_earlier_version_is_named() -> None:
    with (
        FakeServer(404, NOTHING_THERE) as earlier,
        pytest.raises(StateError, match=OTHER_VERSION),
    ):
        open_shard(f"http://127.0.0.1:{earlier.port}/local/orders/1/0", token=TOKEN)


@pytest.mark.parametrize("content", [b"", b"\x90", b"<html>", b"\xc0", b"\x91" * 100_000])
def test_a_program_that_is_no_state_server_is_named(content: bytes) -> None:
    with (
        FakeServer(200, content) as other,
        pytest.raises(StateError, match="is not a state server"),
    ):
        open_shard(f"http://127.0.0.1:{other.port}/local/orders/1/0", token=TOKEN)


def test_the_sum_of_replaced_digests_is_asked_for_after_the_pages(hosts: list[Host]) -> None:
    """Reading a page may find versions that the page replaces.

    Their sum may have more than 64 bits.
    """
    old, new = page_of([(0, "a", -1, -1, "[1]")]), page_of([(0, "a", -1, -1, "[2]")])
    replaced: list[int] = []

    def pages() -> Iterator[RowColumns]:
        yield new
        replaced.extend([*old.digests, 2**64])

    with create_shard(hosts[0].options.place("orders", 0).shard(REF)) as shard:
        shard.begin_run(1, -1)
        shard.write_pages(0, [old], 1)
        assert shard.write_pages(1, pages(), 1, lambda: sum(replaced)) == 1
        shard.verify_rows(1)
        assert shard.checksums(1).state_rows == checksum_of(sum(new.digests))
