"""A run on a host without the SQLite files of the shards is refused, and does not compute the state again."""

from __future__ import annotations

import socket
from pathlib import Path

import pytest
from msgspec import Struct

from sluice import Pipeline
from sluice.engine.run.job_run import JobRun
from sluice.engine.run.shard_hosts import require_host_of_shards
from sluice.errors import SettingsError
from sluice.plan import plan
from sluice.settings import Settings
from sluice.state.ledger.leases import Holder
from sluice.state.ledger.placement import Placement
from sluice.state.shard.addresses import drop, file_of
from tests.support.postgres import new_database
from tests.support.spark_in_process import SparkInProcess
from tests.support.states import States

pytestmark = pytest.mark.unit

POSTGRES = "postgresql://sluice:hidden-word@database/ledger"
SERVER = "http://other:7070/local/orders/1/0"


class Order(Struct):
    item: str


@pytest.fixture
def states(tmp_path: Path) -> States:
    """State that a run has published whose lease is not known."""
    states = States(f"sqlite:///{tmp_path}")
    states.publish({})
    return states


def ran_on(states: States, host: str) -> None:
    holder = Holder(host=host, pid=1, process="")
    lease = states.ledger.leases.take(states.ref, holder, None)
    assert lease is not None
    states.ledger.leases.release(lease)


def lose(states: States, *workers: int) -> list[str]:
    """Delete shards of workers. Returns the addresses of all shards."""
    for worker in workers:
        drop(states.location(worker))
    return [states.location(worker) for worker in range(states.workers)]


def check(states: States, addresses: list[str], ledger_url: str = POSTGRES) -> None:
    require_host_of_shards(states.ledger, ledger_url, states.ref, addresses)


def test_another_host_is_refused_and_learns_what_to_do(states: States) -> None:
    ran_on(states, "worker-a")
    with pytest.raises(SettingsError) as refused:
        check(states, lose(states, 0, 1))
    own = socket.gethostname()
    assert refused.value.detail == (
        "The shards of orders are SQLite files of the host worker-a, such as "
        f"{file_of(states.location(0))}, which this host, {own}, does not have."
    )
    for advice in ("on worker-a only", "SLUICE_SHARDS", "sluice rebuild orders"):
        assert advice in refused.value.next_step
    assert refused.value.is_lasting, "a repetition on this host would be refused again"


def test_the_refused_host_is_refused_again(states: States) -> None:
    ran_on(states, "worker-a")
    addresses = lose(states, 0, 1)
    for _ in range(2):
        with pytest.raises(SettingsError, match="worker-a"):
            check(states, addresses)


def test_a_run_checks_this_before_it_takes_the_lease(postgres: str, tmp_path: Path) -> None:
    ledger = new_database(postgres)
    shards = f"sqlite:///{tmp_path}/shards"
    states = States(shards, ledger_at=ledger)
    states.publish({})
    ran_on(states, "worker-a")
    before = states.ledger.leases.get(states.ref)
    lose(states, 0, 1)
    settings = Settings.read({"SLUICE_LEDGER": ledger, "SLUICE_SHARDS": shards})
    run = JobRun(SparkInProcess.session(), plan(pipeline()).job, settings)
    with pytest.raises(SettingsError, match="SQLite files of the host worker-a"):
        run.run()
    assert states.ledger.leases.get(states.ref) == before


def pipeline() -> Pipeline:
    pipeline = Pipeline("orders", workers=2)
    pipeline.stream("orders", value=Order, key="item").group_by_key().count(store="totals")
    return pipeline


def test_lost_shards_of_the_own_host_are_not_refused(states: States) -> None:
    ran_on(states, socket.gethostname())
    check(states, lose(states, 0, 1))


def test_a_lost_shard_beside_another_is_lost(states: States) -> None:
    ran_on(states, "worker-a")
    check(states, lose(states, 1))


def test_files_on_a_shared_disk_are_used(states: States) -> None:
    ran_on(states, "worker-a")
    check(states, lose(states))


@pytest.mark.parametrize("address", [SERVER, f"{POSTGRES}?schema=s"], ids=["server", "PostgreSQL"])
def test_shards_that_all_hosts_reach_are_used(states: States, address: str) -> None:
    ran_on(states, "worker-a")
    check(states, [address, address])


def test_standbys_may_take_the_places_of_the_shards(states: States) -> None:
    ran_on(states, "worker-a")
    for worker in range(states.workers):
        states.ledger.standbys.add(Placement("orders", worker, "standby", 7070))
    check(states, lose(states, 0, 1))


def test_with_a_ledger_in_a_file_there_is_one_host(states: States) -> None:
    ran_on(states, "name-before")
    check(states, lose(states, 0, 1), ledger_url="sqlite:////var/lib/sluice/ledger.sqlite")


def test_shards_without_a_snapshot_may_be_created_anywhere(tmp_path: Path) -> None:
    states = States(f"sqlite:///{tmp_path}")
    ran_on(states, "worker-a")
    check(states, lose(states, 0, 1))
