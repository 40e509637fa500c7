"""`sluice observe`: the files with which Prometheus and Grafana watch pipelines."""

from __future__ import annotations

from typing import Annotated

import typer

from sluice.commands.console import err, errors_as_messages
from sluice.errors import SettingsError
from sluice.settings import settings
from sluice.values.phrases import joined

app = typer.Typer(
    no_args_is_help=True, help="Alert rules and a dashboard for all pipelines, or for one team's."
)
Owner = Annotated[
    str, typer.Option(help="Only the pipelines that have this owner in the files sluice.toml.")
]


@app.command("rules")
def rules(owner: Owner = "") -> None:
    """Print alert rules for Prometheus.

    If an owner is given, the alerts have the label `owner`, by which the Alertmanager can send them
    to the owner's team.
    """
    from sluice.observe.team_files import alert_rules

    with errors_as_messages():
        typer.echo(alert_rules(owner, _pipelines_of(owner)), nl=False)


@app.command("dashboard")
def dashboard(owner: Owner = "") -> None:
    """Print a dashboard for Grafana."""
    from sluice.observe import team_files

    with errors_as_messages():
        typer.echo(team_files.dashboard(owner, _pipelines_of(owner)), nl=False)


def _pipelines_of(owner: str) -> list[str]:
    """Return an owner's pipelines, sorted. Raise SettingsError if the owner has none.

    A mistake in the `sluice.toml` of one team must not keep the other teams from their alerts.
    """
    from sluice.topology.loading.pipeline_files import named_files
    from sluice.topology.loading.run_options import OWNER, unlimited_options

    if not owner:
        return []
    pipelines: set[str] = set()
    owners: set[str] = set()
    invalid: dict[str, list[str]] = {}
    for name, file in named_files(settings().pipelines):
        try:
            options = unlimited_options(settings().pipelines, file, name)
        except SettingsError as error:
            invalid.setdefault(error.detail, []).append(name)
            continue
        theirs = options.owner or OWNER
        owners.add(theirs)
        if theirs == owner:
            pipelines.add(name)
    for detail, names in invalid.items():
        left_out = f"warning: {detail} Left out: {joined(names)}."
        err.print(left_out, markup=False, soft_wrap=True)
    if not pipelines:
        raise SettingsError(
            f"No pipeline has the owner {owner!r}.",
            next_step=f"Owners: {', '.join(sorted(owners)) or 'none'}.",
        )
    return sorted(pipelines)
