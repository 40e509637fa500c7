"""`sluice observe`: the files with which Prometheus and Grafana watch pipelines."""

from __future__ import annotations

from typing import Annotated

import typer

from sluice.commands.console import errors_as_messages
from sluice.errors import SettingsError
from sluice.settings import settings

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
    """Return an owner's pipelines, sorted. Raise SettingsError if the owner has none."""
    from sluice.topology.loading.pipeline_files import named_files
    from sluice.topology.loading.run_options import OWNER, run_options

    if not owner:
        return []
    pipelines: set[str] = set()
    owners: set[str] = set()
    for name, file in named_files(settings().pipelines):
        theirs = run_options(settings().pipelines, file, name).owner or OWNER
        owners.add(theirs)
        if theirs == owner:
            pipelines.add(name)
    if not pipelines:
        raise SettingsError(
            f"No pipeline has the owner {owner!r}.",
            next_step=f"Owners: {', '.join(sorted(owners)) or 'none'}.",
        )
    return sorted(pipelines)
