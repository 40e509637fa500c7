"""Alert rules and a dashboard for the metrics of all pipelines, or of an owner's pipelines."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

_FOLDER = Path(__file__).parent
RULES = _FOLDER / "prometheus" / "sluice.rules.yml"
DASHBOARD = _FOLDER / "grafana" / "sluice.json"
_RULE = "      - alert: "
_SELECTOR = re.compile(r"\b(sluice_[a-z0-9_]+)(?:\{([^}]*)\})?")


def alert_rules(owner: str = "", pipelines: Sequence[str] = ()) -> str:
    """Return the rules for Prometheus, as YAML.

    If `owner` is given, return only the rules about individual pipelines, limited to `pipelines`
    and with the label `owner`. The other rules are about hosts, which all owners share.
    """
    text = RULES.read_text()
    if not owner:
        return text
    head, *rules = text.split(_RULE)
    group = _group(owner)
    written = [head.replace("  - name: sluice\n", f"  - name: {group}\n")]
    for rule in rules:
        if "$labels.pipeline" in rule:
            of_owner = _of_pipelines(rule, pipelines)
            labels = re.sub(r"(labels: \{[^}]*)", _with_owner(owner), of_owner, count=1)
            written.append(_RULE + labels)
    return "".join(written)


def _with_owner(owner: str) -> Callable[[re.Match[str]], str]:
    # A text in JSON is also a text in YAML.
    return lambda labels: f"{labels[1]}, owner: {json.dumps(owner)}"


def dashboard(owner: str = "", pipelines: Sequence[str] = ()) -> str:
    """Return the dashboard for Grafana, as JSON: of all pipelines, or of an owner's pipelines."""
    text = DASHBOARD.read_text()
    if not owner:
        return text
    board: dict[str, Any] = json.loads(text)
    board["title"] = f"{board['title']}: {owner}"
    board["uid"] = _group(owner)
    for variable in board["templating"]["list"]:
        if variable["name"] == "pipeline":
            variable["allValue"] = "|".join(pipelines)
            variable["query"]["query"] = _of_pipelines(variable["query"]["query"], pipelines)
    return json.dumps(board, indent=2) + "\n"


def _group(owner: str) -> str:
    """Return a name for the owner's rules and dashboard that Prometheus and Grafana accept."""
    name = re.sub("[^a-z0-9]+", "-", owner.lower()).strip("-")
    return f"sluice-{name}"[:40]


def _of_pipelines(expressions: str, pipelines: Sequence[str]) -> str:
    """Return expressions whose metrics are only those of some pipelines."""
    of_owner = f'pipeline=~"{"|".join(pipelines)}"'

    def selected(metric: re.Match[str]) -> str:
        own = [metric[2]] if metric[2] else []
        return f"{metric[1]}{{{','.join([*own, of_owner])}}}"

    return _SELECTOR.sub(selected, expressions)
