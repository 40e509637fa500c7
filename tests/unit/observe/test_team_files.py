"""Alert rules and a dashboard for the pipelines of one owner."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path

import pytest
import yaml
from typer.testing import CliRunner, Result

from sluice.commands.cli import app
from sluice.observe.team_files import DASHBOARD, RULES, alert_rules, dashboard
from sluice.settings import settings
from tests.support.prometheus import promtool

OF_SHOP = 'pipeline=~"orders|stock"'


@pytest.fixture
def call(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Result]:
    """Calls `sluice observe` with a team shop, which has the pipelines orders and stock."""
    shop = tmp_path / "shop"
    shop.mkdir()
    for file in (shop / "orders.py", shop / "stock.py", tmp_path / "audit.py"):
        file.write_text(f'pipeline = Pipeline("{file.stem}")')
    (shop / "sluice.toml").write_text('[defaults]\nowner = "shop"\n')
    monkeypatch.setenv("SLUICE_PIPELINES", str(tmp_path))
    settings.cache_clear()
    return lambda *words: CliRunner().invoke(app, ["observe", *words])


def test_without_an_owner_the_files_are_those_of_all(call: Callable[..., Result]) -> None:
    assert call("rules").output == RULES.read_text() == alert_rules()
    assert call("dashboard").output == DASHBOARD.read_text() == dashboard()


def test_the_rules_of_an_owner_are_about_their_pipelines(call: Callable[..., Result]) -> None:
    (group,) = yaml.safe_load(call("rules", "--owner", "shop").output)["groups"]
    (of_all,) = yaml.safe_load(RULES.read_text())["groups"]
    assert group["name"] == "sluice-shop"
    names = {rule["alert"] for rule in group["rules"]}
    left_out = {rule["alert"] for rule in of_all["rules"]} - names
    assert left_out == {"DiskNearlyFull", "DiskFillsUp", "ClockOff", "SlowQueries", "NoMetrics"}
    for rule in group["rules"]:
        assert rule["labels"]["owner"] == "shop"
        metrics = re.findall(r"sluice_\w+(\{[^}]*\})?", rule["expr"])
        assert metrics
        assert all(OF_SHOP in selector for selector in metrics), rule["expr"]


def test_prometheus_takes_the_rules_of_an_owner(tmp_path: Path) -> None:
    file = tmp_path / "shop.rules.yml"
    file.write_text(alert_rules('Shop "A"', ["orders"]))
    assert "SUCCESS" in promtool("check", "rules", str(file))


def test_the_dashboard_of_an_owner_offers_their_pipelines(call: Callable[..., Result]) -> None:
    board = json.loads(call("dashboard", "--owner", "shop").output)
    assert (board["title"], board["uid"]) == ("Sluice: shop", "sluice-shop")
    (variable,) = [each for each in board["templating"]["list"] if each["name"] == "pipeline"]
    assert variable["allValue"] == "orders|stock"
    assert variable["query"]["query"] == f"label_values(sluice_failed{{{OF_SHOP}}}, pipeline)"


def test_a_pipeline_over_a_limit_keeps_its_alerts(
    tmp_path: Path, call: Callable[..., Result]
) -> None:
    (tmp_path / "sluice.toml").write_text("[limits]\nretries = 1")
    (tmp_path / "shop" / "sluice.toml").write_text(
        '[defaults]\nowner = "shop"\n[pipelines.stock]\nretries = 2'
    )
    result = call("rules", "--owner", "shop")
    assert result.exit_code == 0
    assert OF_SHOP in result.output


def test_an_invalid_file_of_another_team_is_only_a_warning(
    tmp_path: Path, call: Callable[..., Result]
) -> None:
    expected = call("rules", "--owner", "shop").output
    web = tmp_path / "web"
    web.mkdir()
    (web / "pages.py").write_text('pipeline = Pipeline("pages")')
    (web / "sluice.toml").write_text("[default]")
    result = call("rules", "--owner", "shop")
    assert result.exit_code == 0
    assert result.stdout == expected
    warning = " ".join(result.stderr.split())
    assert "unknown field `default`. Left out: pages." in warning


def test_an_unknown_owner_is_told_with_those_that_there_are(call: Callable[..., Result]) -> None:
    result = call("rules", "--owner", "shopp")
    assert result.exit_code == 1
    said = " ".join(result.output.split())
    assert "No pipeline has the owner 'shopp'. Owners: shop, sluice." in said
