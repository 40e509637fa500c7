"""While snapshots are published, every response is from one snapshot, and none is older than the last one."""

from __future__ import annotations

import os
import threading

import pytest

from sluice.state.remote.opening import open_shard
from sluice.state.shard.shard import Shard
from sluice.values.key_owners import owner
from tests.api.states import totals
from tests.servers.conftest import LOCATIONS
from tests.servers.hosts import Host
from tests.support.state_rows import write_rows
from tests.support.states import States, make_snapshot

SNAPSHOTS = int(os.environ.get("SNAPSHOTS", "25"))
PATHS = [
    "/sluice/v1/stores/general_orders_count",
    "/sluice/v1/stores/general_orders_count/keys?"
    + "&".join(f"key={location}" for location in LOCATIONS),
    "/sluice/v1/stores/general_orders_count/top?limit=40",
]


class Reader(threading.Thread):
    """Queries one host continuously, and records wrong responses."""

    def __init__(self, host: Host, path: str) -> None:
        super().__init__(daemon=True)
        self.host, self.path = host, path
        self.done = threading.Event()
        self.wrong: list[str] = []
        self.looks, self.newest = 0, 0

    def run(self) -> None:
        while not self.done.is_set():
            body = self.host.get(self.path).json()
            batch = int(body["snapshot"]["id"].partition(".")[2])
            values = {entry["value"] for entry in body["entries"]}
            if values != {batch} or len(body["entries"]) != len(LOCATIONS) or body["partial"]:
                self.wrong.append(f"torn: snapshot {batch} has {values}")
            if batch < self.newest:
                self.wrong.append(f"backward: {self.newest} to {batch}")
            self.newest, self.looks = batch, self.looks + 1


def publish(states: States, places: tuple[Shard, ...], batch: int) -> None:
    """Publish a batch in which every location's count is the number of the batch."""
    rows = list(totals("general", dict.fromkeys(LOCATIONS, (batch, "0.00"))))
    for number, shard in enumerate(places):
        write_rows(shard, batch, [row for row in rows if owner(row[1], states.workers) == number])
    assert states.ledger.snapshots.publish(make_snapshot(batch))


@pytest.mark.fault(
    "F15", "snapshots published under constant queries to three hosts (SNAPSHOTS=1000 for as many)"
)
def test_responses_are_from_one_snapshot_and_never_older_than_the_last(
    hosts: list[Host], states: States
) -> None:
    places = tuple(open_shard(place, to_write=True) for place in states.written_at)
    publish(states, places, 1)
    readers = [Reader(host, path) for host, path in zip(hosts, PATHS, strict=True)]
    for reader in readers:
        reader.start()
    for batch in range(2, SNAPSHOTS + 1):
        publish(states, places, batch)
    for reader in readers:
        reader.done.set()
        reader.join(20)
    for shard in places:
        shard.close()
    assert [reader.wrong for reader in readers] == [[], [], []]
    assert all(reader.looks > 5 for reader in readers)
