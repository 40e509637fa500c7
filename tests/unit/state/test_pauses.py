"""Pauses, and former names, in the ledger."""

from __future__ import annotations

import pytest

from sluice.errors import EngineError, LeaseError, PausedPipeline, Refused, StateGrows
from sluice.observe.health import calm_of, failures_of
from sluice.observe.monitoring import LedgerFigures
from sluice.state.ledger.failures import Failure
from sluice.state.ledger.leases import Holder
from sluice.state.model import GenerationRef
from tests.support.states import States, make_snapshot

pytestmark = pytest.mark.unit

HOLDER = Holder(host="here", pid=1, process="")


@pytest.fixture
def states(database: str) -> States:
    states = States(database)
    states.ledger.snapshots.publish(make_snapshot(0))
    return states


def test_a_paused_pipeline_says_who_paused_it_since_when_and_why(states: States) -> None:
    pauses = states.ledger.pauses
    pauses.require_running("orders")
    pauses.pause("orders", "new prices", "ann")
    with pytest.raises(PausedPipeline, match=r"orders is paused by ann since .* UTC: new prices\."):
        pauses.require_running("orders")
    pauses.pause("orders", "and new shops", "ben")
    (pause,) = pauses.all().values()
    assert (pause.reason, pause.paused_by) == ("and new shops", "ben")
    assert pauses.resume("orders")
    assert not pauses.resume("orders")
    assert pauses.of("orders") is None


def test_nothing_counts_as_wrong_with_a_paused_pipeline_but_what_concerns_its_state(
    states: States,
) -> None:
    states.ledger.failures.keep(Failure.of(EngineError("no"), "orders", kind="run"))
    states.ledger.failures.keep(Failure.of(StateGrows("big"), "orders", kind="growth"))
    states.ledger.pauses.pause("orders", "new prices", "ann")
    figures = LedgerFigures.read(states.ledger)
    assert calm_of(figures, "orders") == "paused"
    kinds = [failure.kind for failure in failures_of(figures, "orders", None, "No broker.")]
    assert kinds == ["growth"]
    states.ledger.pauses.resume("orders")
    figures = LedgerFigures.read(states.ledger)
    assert {failure.kind for failure in failures_of(figures, "orders", None)} == {"run", "growth"}


def test_a_pause_goes_with_its_pipeline(states: States) -> None:
    lease = states.ledger.leases.take(GenerationRef("orders", 1), HOLDER, None)
    assert lease is not None
    states.ledger.pauses.pause("orders", "new prices", "ann")
    states.ledger.renames.begin(lease, "sales")
    shards = {(1, worker): f"sqlite:///{worker}" for worker in range(2)}
    states.ledger.renames.switch([lease], "sales", shards)
    assert [*states.ledger.pauses.all()] == ["sales"]


def test_a_name_is_free_only_if_no_pipeline_has_or_had_it(states: States) -> None:
    renames = states.ledger.renames
    lease = states.ledger.leases.take(GenerationRef("orders", 1), HOLDER, None)
    assert lease is not None
    with pytest.raises(Refused, match="already"):
        renames.begin(lease, "orders")
    renames.begin(lease, "sales")
    with pytest.raises(Refused, match="renaming to sales has begun"):
        renames.begin(lease, "others")
    renames.require_current("orders")
    with pytest.raises(Refused, match="has not ended"):
        renames.require_current("sales")


def test_a_driver_that_has_lost_its_lease_renames_nothing(states: States) -> None:
    lease = states.ledger.leases.take(GenerationRef("orders", 1), HOLDER, None)
    assert lease is not None
    states.ledger.renames.begin(lease, "sales")
    assert states.ledger.leases.take(GenerationRef("orders", 1), HOLDER, lease) is not None
    with pytest.raises(LeaseError):
        states.ledger.renames.switch([lease], "sales", {})
    assert states.ledger.generations.pipelines() == ["orders"]


def test_former_names_follow_a_pipeline_through_several_renamings(states: States) -> None:
    renames, before = states.ledger.renames, "orders"
    for name in ("sales", "trades"):
        lease = states.ledger.leases.take(
            GenerationRef(before, 1), HOLDER, states.ledger.leases.get(GenerationRef(before, 1))
        )
        assert lease is not None
        renames.begin(lease, name)
        renames.switch([lease], name, {(1, 0): "sqlite:///0", (1, 1): "sqlite:///1"})
        renames.finish(before)
        before = name
    assert {*renames.former_names("trades")} == {"orders", "sales"}
    for former in ("orders", "sales"):
        with pytest.raises(Refused, match=f"{former} was renamed to trades"):
            renames.require_current(former)
    assert renames.forget("orders")
    renames.require_current("orders")
