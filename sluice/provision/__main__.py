"""`python -m sluice.provision jars | libraries | lock-jars | checks`: steps of set-up."""

from __future__ import annotations

import sys
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from sluice.errors import SluiceError
from sluice.provision import jars, machine_checks
from sluice.provision.jars import Bundle
from sluice.provision.libraries import Libraries
from sluice.settings import settings

app = typer.Typer(add_completion=False, help="Set up this machine for Sluice.")
console = Console(stderr=True)


class Jars(StrEnum):
    """The jars that can be downloaded alone.

    Those of the local broker, of Delta Lake for the installed Spark, or of a local schema registry.
    """

    BROKER = "broker"
    DELTA = "delta"
    REGISTRY = "registry"


@app.command("jars")
def provide_jars(
    only: Annotated[Jars | None, typer.Option(help="Only these jars.")] = None,
) -> None:
    """Download missing jars and verify their checksums."""
    root = settings().jars
    bundles = jars.bundles_for_this_machine()
    if only is not None:
        bundles = [jars.delta_bundle() if only is Jars.DELTA else Bundle(only)]
    missing = jars.count_missing(root, bundles)
    if not missing:
        return
    java = machine_checks.find_java().path
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
    )
    with Progress(*columns, console=console) as progress:
        task = progress.add_task("Fetching jars", total=missing)
        jars.provide(root, java, bundles=bundles, on_jar=lambda: progress.advance(task))
    console.print(f"Downloaded {missing} jars to {root} and verified their checksums")


@app.command("libraries")
def install_libraries(requirements: Path) -> None:
    """Install a pipeline's libraries, which its REQUIREMENTS in sluice.toml name."""
    Libraries(requirements, settings().home).build(print)


@app.command("lock-jars")
def lock_jars() -> None:
    """Resolve the jars again and write their checksums to the lock file."""
    with console.status("Resolving jars"):
        count = jars.write_lock(machine_checks.find_java().path)
    console.print(f"{count} jars in {jars.LOCK.name}")


@app.command("checks")
def run_checks() -> None:
    """Check that this machine has Java and enough memory for the demo."""
    java = machine_checks.find_java()
    machine_checks.check_memory()
    console.print(
        f"Java {java.release} ({java.path}) and at least {machine_checks.DEMO_MEMORY_MIB} MiB of "
        "memory are available"
    )


def main() -> None:
    """Run a command. Print a SluiceError without a traceback and exit with status 1."""
    try:
        app()
    except SluiceError as problem:
        console.print(
            f"[bold red]{problem.title}:[/] {escape(str(problem))}", highlight=False, soft_wrap=True
        )
        sys.exit(1)


if __name__ == "__main__":
    main()
