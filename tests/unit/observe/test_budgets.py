"""Budgets: a warning when the runs of a day cost more than a pipeline, or its team, may use."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from sluice.errors import SettingsError
from sluice.observe.budgets import note_budgets
from sluice.settings import Settings
from sluice.state.ledger.finished_runs import FinishedRun
from sluice.state.ledger.ledger import Ledger
from sluice.topology.loading.pipeline_connections import allowances_of
from sluice.topology.loading.run_options import allowances, run_options

PIPELINE = 'from sluice import Pipeline\npipeline = Pipeline("{name}")\n'


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    """The settings of a folder with the team shop, which has the pipelines orders and stock."""
    shop = tmp_path / "pipelines" / "shop"
    shop.mkdir(parents=True)
    for name in ("orders", "stock"):
        (shop / f"{name}.py").write_text(PIPELINE.format(name=name))
    (shop.parent / "audit.py").write_text(PIPELINE.format(name="audit"))
    (shop / "sluice.toml").write_text(
        "[budget]\ncpu_hours_per_day = 3\n"
        "[pipelines.orders]\nbudget = {cpu_hours_per_day = 2, gigabyte_hours_per_day = 4}\n"
    )
    variables = {"SLUICE_HOME": str(tmp_path), "SLUICE_PIPELINES": str(shop.parent)}
    return Settings.read(variables)


def spend(
    settings: Settings, pipeline: str, hours: float, *, days_ago: int = 0, gigabytes: float = 0
) -> None:
    ended = datetime.now(UTC) - timedelta(days=days_ago)
    with Ledger.open(settings.ledger) as ledger:
        run = FinishedRun(
            pipeline=pipeline, began_at=ended - timedelta(hours=1), ended_at=ended, host="host",
            outcome="succeeded", version="1", cpu_seconds=hours * 3_600,
            memory_bytes=int(gigabytes * 2**30),
        )  # fmt: skip
        ledger.finished_runs.add(run)


def warning(settings: Settings, pipeline: str) -> str:
    """The warning after a run; empty if there is none."""
    note_budgets(settings, pipeline, allowances_of(settings.pipelines, pipeline))
    with Ledger.open(settings.ledger) as ledger:
        return "".join(f"{each.kind}: {each.detail}" for each in ledger.failures.of(pipeline))


def test_nothing_is_said_within_the_budget(settings: Settings) -> None:
    spend(settings, "orders", 1.9)
    spend(settings, "orders", 5, days_ago=1)
    assert warning(settings, "orders") == ""


def test_a_pipeline_that_costs_more_is_told(settings: Settings) -> None:
    spend(settings, "orders", 2.5, gigabytes=5)
    assert warning(settings, "orders") == (
        "budget: orders used 2.50 CPU hours of 2 and 5.00 GB hours of 4 today."
    )


def test_a_team_has_a_budget_for_all_of_its_pipelines(settings: Settings) -> None:
    spend(settings, "orders", 1.5)
    spend(settings, "stock", 2)
    spend(settings, "audit", 100)
    said = "budget: The pipelines of shop used 3.50 CPU hours of 3 today."
    assert warning(settings, "orders") == said
    assert warning(settings, "stock") == said
    assert warning(settings, "audit") == ""


def test_the_platform_has_a_budget_for_all(settings: Settings) -> None:
    (settings.pipelines / "sluice.toml").write_text("[budget]\ncpu_hours_per_day = 4\n")
    spend(settings, "stock", 2)
    spend(settings, "gone", 3)
    assert warning(settings, "audit") == "budget: All pipelines used 5.00 CPU hours of 4 today."


def test_the_warning_ends_with_a_higher_budget_or_with_the_day(settings: Settings) -> None:
    spend(settings, "orders", 2.5)
    assert warning(settings, "orders") != ""
    with Ledger.open(settings.ledger) as ledger:
        tomorrow = datetime.now(UTC) + timedelta(days=1)
        assert ledger.failures.all(tomorrow) == []
    (settings.pipelines / "shop" / "sluice.toml").write_text("[budget]\ncpu_hours_per_day = 3\n")
    assert warning(settings, "orders") == ""


def test_without_a_budget_there_is_nothing_to_note(settings: Settings) -> None:
    (settings.pipelines / "shop" / "sluice.toml").write_text("")
    assert allowances_of(settings.pipelines, "orders") == []


def test_the_options_name_the_budget(settings: Settings) -> None:
    file = settings.pipelines / "shop" / "orders.py"
    text = run_options(settings.pipelines, file, "orders").as_text()
    assert "budget: 2 CPU hours and 4 GB hours a day" in text


def test_a_budget_is_a_positive_number(settings: Settings) -> None:
    (settings.pipelines / "sluice.toml").write_text("[budget]\ncpu_hours_per_day = 0\n")
    with pytest.raises(SettingsError, match="cpu_hours_per_day"):
        allowances(settings.pipelines, None, "orders")
    assert allowances_of(settings.pipelines, "orders") == []
