"""The failure of an action, such as a replay, is recorded if Airflow runs the action."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import Future
from pathlib import Path

import pytest

from sluice import driver
from sluice.errors import NothingToReplay
from sluice.settings import settings
from sluice.state.ledger.failures import Failure
from sluice.state.ledger.ledger import Ledger
from sluice.values.replay_span import Span

pytestmark = pytest.mark.unit

REPLAY = ("--replay", "--from=2026-11-29T00:00:00", "orders")
OPTIONS = {"replay": REPLAY, "changed_only": ("--rebuild", "--changed-only", "orders")}


@pytest.fixture
def failing(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[None]:
    """Every action fails, because its replay would read nothing."""
    monkeypatch.setenv("SLUICE_HOME", str(tmp_path))
    settings.cache_clear()

    def fail(*_arguments: object, **_options: object) -> None:
        raise NothingToReplay("No record was read there.", next_step="Choose an earlier start.")

    monkeypatch.setattr(driver, "rebuild", fail)
    monkeypatch.setattr(driver, "rebuild_changed", fail)
    yield
    settings.cache_clear()


def failures_after(options: tuple[str, ...]) -> list[Failure]:
    parsed = driver._Arguments.parse(options)
    assert parsed is not None
    with pytest.raises(NothingToReplay):
        parsed.act(Future(), Span.parse(parsed.begin, parsed.until))
    with Ledger.open(settings().ledger) as ledger:
        return ledger.failures.of("orders")


@pytest.mark.usefixtures("failing")
@pytest.mark.parametrize("options", OPTIONS.values(), ids=[*OPTIONS])
def test_the_ledger_has_the_error_of_an_action_in_airflow(
    monkeypatch: pytest.MonkeyPatch, options: tuple[str, ...]
) -> None:
    monkeypatch.setenv("SLUICE_RUN", "orders/manual__1/main")
    settings.cache_clear()
    (failure,) = failures_after(options)
    assert (failure.title, failure.run) == ("Nothing to replay", "orders/manual__1/main")
    assert failure.next_step == "Choose an earlier start."
    assert failure.is_lasting, "Airflow need not try again"


@pytest.mark.usefixtures("failing")
@pytest.mark.parametrize("action", ["replay", "run"])
def test_an_action_that_succeeds_clears_the_failure_of_an_action_but_not_of_a_run(
    monkeypatch: pytest.MonkeyPatch, action: str
) -> None:
    monkeypatch.setenv("SLUICE_RUN", "orders/manual__1/main")
    settings.cache_clear()
    assert len(failures_after(REPLAY)) == 1
    monkeypatch.setattr(driver, "rebuild", lambda *_arguments, **_options: None)
    with Ledger.open(settings().ledger) as ledger:
        ledger.activities.add("orders", action, "ada", run="manual__1")
        parsed = driver._Arguments.parse(REPLAY)
        assert parsed is not None
        parsed.act(Future(), Span.parse(parsed.begin, parsed.until))
        left = ledger.failures.of("orders")
    assert len(left) == (0 if action == "replay" else 1)


@pytest.mark.usefixtures("failing")
def test_somebody_who_calls_a_command_sees_its_error_there() -> None:
    assert failures_after(REPLAY) == []
