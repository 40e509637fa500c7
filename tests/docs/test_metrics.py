"""The page "Metrics and alerts", the alert rules and the dashboard name metrics that exist, and the rules work."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from sluice.observe.metrics import METRICS
from tests.docs.pages import read
from tests.support.prometheus import RULES, promtool

PAGE = read("docs/how-to/metrics.md")
DASHBOARD = Path(__file__).parents[2] / "sluice" / "observe" / "grafana" / "sluice.json"
ALERTS = [rule for group in yaml.safe_load(RULES.read_text())["groups"] for rule in group["rules"]]


def names_in(expression: str) -> set[str]:
    """The metrics in an expression of PromQL, without the prefix and without the endings of histograms."""
    names = re.findall(r"\bsluice_(\w+)", expression)
    return {re.sub(r"_(bucket|sum|count)$", "", name) for name in names}


def expressions(panels: Any) -> Iterator[str]:
    for panel in panels:
        yield from (target["expr"] for target in panel["targets"])


def test_the_tables_list_every_metric() -> None:
    gauges = "\n".join(re.findall(r"^\| (`.*?`) \|", PAGE, re.MULTILINE))
    assert {re.sub("^sluice[._]", "", name) for name in re.findall(r"`([\w.]+)`", gauges)} >= {
        *METRICS
    }


def test_the_configuration_on_the_page_is_yaml_and_reads_the_rules() -> None:
    (configuration,) = [
        yaml.safe_load(body) for body in re.findall(r"^```yaml\n(.*?)^```", PAGE, re.M | re.S)
    ]
    assert configuration["rule_files"] == [RULES.name]


@pytest.mark.parametrize("rule", ALERTS, ids=lambda rule: rule["alert"])
def test_an_alert_uses_metrics_that_exist_and_is_described(rule: dict[str, Any]) -> None:
    assert names_in(rule["expr"])
    assert names_in(rule["expr"]) <= {*METRICS}
    described = re.findall(r"^\| (`.*?`) \|", PAGE[PAGE.index("| alert |") :], re.MULTILINE)
    assert f"`{rule['alert']}`" in " ".join(described)


def test_the_alerts_fire_in_their_incidents_and_only_then() -> None:
    assert "SUCCESS" in promtool("check", "rules", str(RULES))
    assert "SUCCESS" in promtool("test", "rules", str(RULES.with_name("sluice.rules.test.yml")))


def test_the_dashboard_shows_metrics_that_exist_and_misses_none_that_only_grow() -> None:
    dashboard = json.loads(DASHBOARD.read_text())
    shown = names_in("\n".join(expressions(dashboard["panels"])))
    assert shown <= {*METRICS}
    assert {name for name, metric in METRICS.items() if metric.kind != "gauge"} <= shown
    variables = {variable["name"] for variable in dashboard["templating"]["list"]}
    assert {*re.findall(r"\$\{?(\w+)", json.dumps(dashboard["panels"]))} <= variables | {"__all"}


def test_prometheus_can_read_every_expression_of_the_dashboard(tmp_path: Path) -> None:
    rules = [
        {"record": "x", "expr": text}
        for text in expressions(json.loads(DASHBOARD.read_text())["panels"])
    ]
    for rule in rules:
        rule["expr"] = rule["expr"].replace("$pipeline", ".*")
    numbered = [rule | {"record": f"panel:{number}"} for number, rule in enumerate(rules)]
    file = tmp_path / "dashboard.yml"
    file.write_text(yaml.safe_dump({"groups": [{"name": "dashboard", "rules": numbered}]}))
    assert "SUCCESS" in promtool("check", "rules", str(file))
