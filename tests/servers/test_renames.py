"""A pipeline whose workers are at state servers is renamed through these servers."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from sluice.errors import Refused
from sluice.operations import renaming
from sluice.operations.rebuild import remove_forgotten
from sluice.settings import settings
from sluice.state.ledger.leases import Holder
from sluice.state.model import GenerationRef
from sluice.state.remote.opening import create_shard, open_shard
from tests.servers.hosts import Host
from tests.support.states import States


def test_shards_are_copied_to_their_new_names_at_their_servers(tmp_path: Path) -> None:
    database = f"sqlite:///{tmp_path}"
    states = States(database)
    host = Host(states.ledger, tmp_path / "host").start(0, 1)
    try:
        states.publish({"a": "[1,null]", "b": "[2,null]"})
        ledger, own = states.ledger, replace(settings(), shards=database)
        new = GenerationRef("sales", 1)
        addresses = {
            (1, number): renaming.new_address(ledger, own, states.ref, new, number)
            for number in (0, 1)
        }
        assert all(address.startswith("http://") for address in addresses.values())
        with pytest.raises(Refused, match="has no worker 0"):
            create_shard(addresses[1, 0], continued=True)
        lease = ledger.leases.take(states.ref, Holder(host="here", pid=1, process=""), None)
        assert lease is not None
        ledger.renames.begin(lease, "sales")
        info = ledger.generations.get(states.ref)
        assert info is not None
        renaming._copy_shards(ledger, info, {number: at for (_, number), at in addresses.items()})
        ledger.renames.switch([lease], "sales", addresses)
        for worker in ledger.generations.workers("sales"):
            assert worker.location == addresses[1, worker.number]
            with open_shard(worker.location, to_write=True) as shard:
                assert shard.journal().newest == 0
                shard.seal(sealed=False)
        remove_forgotten(ledger, "orders")
        assert ledger.generations.forgotten("orders") == {}
        ledger.renames.finish("orders")
        answer = host.get("/sluice/v1/stores/totals", pipeline="sales").json()
        assert [entry["key"] for entry in answer["entries"]] == ["a", "b"]
        assert not [*(tmp_path / "host" / "orders").rglob("*.sqlite")]
        moved = host.get("/sluice/v1/stores/totals", pipeline="orders")
        assert (moved.status_code, "renamed to 'sales'" in moved.text) == (404, True)
    finally:
        host.stop()
