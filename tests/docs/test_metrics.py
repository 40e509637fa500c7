"""The page "Metrics and alerts" names the gauges that exist, and its files are YAML."""

from __future__ import annotations

import re

import yaml

from sluice.observe.metrics import HELP
from tests.docs.pages import read

PAGE = read("docs/how-to/metrics.md")
FILES = [yaml.safe_load(body) for body in re.findall(r"^```yaml\n(.*?)^```", PAGE, re.MULTILINE | re.DOTALL)]


def test_the_table_lists_every_gauge() -> None:
    gauges = "\n".join(re.findall(r"^\| (`.*?`) \|", PAGE, re.MULTILINE))
    assert {name.removeprefix("sluice.") for name in re.findall(r"`([\w.]+)`", gauges)} >= {*HELP}


def test_alerts_use_gauges_that_exist() -> None:
    _, rules = FILES
    expressions = " ".join(rule["expr"] for group in rules["groups"] for rule in group["rules"])
    used = {*re.findall(r"sluice_(\w+)", expressions)}
    assert used
    assert used <= {*HELP}


def test_the_alerts_are_described() -> None:
    _, rules = FILES
    alerts = {rule["alert"] for group in rules["groups"] for rule in group["rules"]} - {"NoMetrics"}
    assert alerts == {*re.findall(r"^\| `(\w+)` \|", PAGE[PAGE.index("| alert |") :], re.MULTILINE)}
