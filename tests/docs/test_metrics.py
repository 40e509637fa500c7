"""The page "Metrics and alerts" names the metrics that exist, and its files are YAML."""

from __future__ import annotations

import re

import yaml

from sluice.observe.metrics import METRICS
from tests.docs.pages import read

PAGE = read("docs/how-to/metrics.md")
FILES = [yaml.safe_load(body) for body in re.findall(r"^```yaml\n(.*?)^```", PAGE, re.MULTILINE | re.DOTALL)]


def test_the_tables_list_every_metric() -> None:
    gauges = "\n".join(re.findall(r"^\| (`.*?`) \|", PAGE, re.MULTILINE))
    assert {re.sub("^sluice[._]", "", name) for name in re.findall(r"`([\w.]+)`", gauges)} >= {*METRICS}


def test_alerts_use_metrics_that_exist() -> None:
    _, rules = FILES
    expressions = " ".join(rule["expr"] for group in rules["groups"] for rule in group["rules"])
    used = {*re.findall(r"sluice_(\w+)", expressions)}
    assert used
    assert used <= {*METRICS}


def test_the_alerts_are_described() -> None:
    _, rules = FILES
    alerts = {rule["alert"] for group in rules["groups"] for rule in group["rules"]} - {"NoMetrics"}
    assert alerts == {*re.findall(r"^\| `(\w+)` \|", PAGE[PAGE.index("| alert |") :], re.MULTILINE)}
