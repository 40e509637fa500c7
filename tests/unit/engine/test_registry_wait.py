"""A run waits for a registry that is away, and says so in the ledger."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast

import pytest

from sluice import Avro, Pipeline
from sluice.engine.run import registry_wait
from sluice.engine.run.registry_wait import RegistryWait
from sluice.errors import LeaseError, RegistryAway
from sluice.plan import plan
from sluice.registry.memory import MemoryRegistry
from sluice.state.ledger.failures import Failure
from sluice.state.ledger.ledger import Ledger
from tests.engine.shop import Shop

pytestmark = pytest.mark.unit
AWAY = RegistryAway.of("http://registry:8081", "connection refused")


@dataclass
class ComingBack(MemoryRegistry):
    """A registry that is away for some requests."""

    away_for: int = 0
    ledger: Ledger | None = None
    seen: list[str] = field(default_factory=list)
    """The kinds of failures that the ledger had at each request."""

    def version(self, subject: str, version: int | str = "latest") -> Any:
        assert self.ledger is not None
        self.seen += [failure.kind for failure in self.ledger.failures.of("p")]
        if self.away_for:
            self.away_for -= 1
            raise AWAY
        return super().version(subject, version)


class HeldLease:
    is_lost = False

    def check(self) -> None:
        if self.is_lost:
            raise LeaseError("another driver has the lease")


@dataclass
class Waiting:
    wait: RegistryWait
    registry: ComingBack
    lease: HeldLease
    ledger: Ledger


@pytest.fixture
def waiting(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.setattr(registry_wait, "FIRST_PAUSE_S", 0.01)
    pipeline = Pipeline("p")
    pipeline.stream("shops", value=Avro(Shop)).to("copies", value=Avro(Shop))
    with Ledger.open(f"sqlite:///{tmp_path}/ledger.sqlite") as ledger:
        registry = ComingBack(ledger=ledger)
        lease = HeldLease()
        wait = RegistryWait(plan(pipeline).job, registry, ledger, cast("Any", lease), "run1")
        yield Waiting(wait, registry, lease, ledger)


def kinds(waiting: Waiting) -> list[str]:
    return [failure.kind for failure in waiting.ledger.failures.of("p")]


def test_the_ledger_says_that_the_run_waits_until_the_registry_answers(waiting: Waiting) -> None:
    waiting.registry.away_for = 2
    waiting.wait.wait(AWAY, has_read=True)
    assert waiting.registry.seen == ["registry"] * 3
    assert not kinds(waiting)


def test_a_run_fails_after_its_patience(waiting: Waiting, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(registry_wait, "PATIENCE_S", 0.05)
    waiting.registry.away_for = 1_000
    with pytest.raises(RegistryAway):
        waiting.wait.wait(AWAY, has_read=False)
    assert kinds(waiting) == ["registry"]


def test_patience_ends_for_a_registry_that_answers_only_questions_about_topics(
    waiting: Waiting, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(registry_wait, "PATIENCE_S", 0.05)

    def wait_again_and_again() -> None:
        for _ in range(100):
            waiting.wait.wait(AWAY, has_read=False)

    with pytest.raises(RegistryAway):
        wait_again_and_again()


def test_a_run_that_reads_records_between_waits_does_not_fail(
    waiting: Waiting, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(registry_wait, "PATIENCE_S", 0.05)
    for _ in range(10):
        waiting.wait.wait(AWAY, has_read=True)


def test_a_driver_that_loses_its_lease_stops_waiting(waiting: Waiting) -> None:
    waiting.lease.is_lost = True
    with pytest.raises(LeaseError):
        waiting.wait.wait(AWAY, has_read=False)


def test_a_run_begins_with_waiting_if_an_earlier_run_has_found_the_registry_away(
    waiting: Waiting,
) -> None:
    waiting.registry.away_for = 2
    waiting.wait.begin()
    assert not waiting.registry.seen
    waiting.ledger.failures.keep(Failure.of(AWAY, "p", kind="registry"))
    waiting.wait.begin()
    assert waiting.registry.seen == ["registry"] * 3
    assert not kinds(waiting)
