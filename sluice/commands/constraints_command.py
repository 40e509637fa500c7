"""`sluice constraints`: prints the versions of packages with which Sluice has been tested."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from sluice.commands.console import errors_as_messages, out
from sluice.errors import SettingsError

_FOLDER = Path(__file__).parents[1] / "provision" / "constraints"


def constraints(
    airflow: Annotated[str, typer.Option(help="The release of Airflow, such as 3.2.")] = "3.3",
) -> None:
    """Print constraints for pip: the tested versions of all packages, for one release of Airflow.

    Then run: pip install 'sluice-streams[airflow]' --constraint FILE.
    """
    with errors_as_messages():
        out.print(constraints_text(airflow), markup=False, soft_wrap=True, end="")


def constraints_text(airflow: str) -> str:
    """Return the constraints for a version or release of Airflow.

    Raises SettingsError if there are none.
    """
    release = ".".join(airflow.split(".")[:2])
    file = _FOLDER / f"airflow-{release}.txt"
    releases = sorted(file.stem.removeprefix("airflow-") for file in _FOLDER.glob("airflow-*.txt"))
    if release not in releases:
        raise SettingsError(
            f"There are no constraints for Airflow {airflow}.",
            next_step=f"Choose a release with which Sluice has been tested: {', '.join(releases)}.",
        )
    return file.read_text()
