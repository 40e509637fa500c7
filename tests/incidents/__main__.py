"""Stages incidents on a real platform, and prints when each place names them: `python -m tests.incidents`.

With `--write`, the table also replaces the table in docs/how-to/operations.md. With words as
arguments, only incidents whose cause has such a word in its name are staged: `python -m
tests.incidents pool lease`.
"""

from __future__ import annotations

import sys
import time
import traceback
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import httpx

from sluice.errors import SluiceError
from tests.incidents.incidents import INCIDENTS, Incident
from tests.incidents.stage import READ_BEFORE, CannotBeStaged, Stage, stage
from tests.support.signals import interrupt_on_sigterm

PAGE = Path(__file__).parents[2] / "docs" / "how-to" / "operations.md"
BEGIN, END = "<!-- Written by `python -m tests.incidents --write` -->", "<!-- End -->"
PLACES = ("page and REST", "`sluice status`", "`/metrics`", "alert", "Airflow")
LATEST_S = 60.0
PATIENCE_S = 180.0


@dataclass(frozen=True)
class Sight:
    """What a place said, and how many seconds after the incident; an empty text if it never did."""

    text: str
    seconds: float

    def __str__(self) -> str:
        if not self.text:
            return "**never**"
        return self.text if self.text == "nothing" else f"{self.text}, {self.seconds:.0f} s"


@dataclass(frozen=True)
class Line:
    """A line of the table."""

    incident: Incident
    sights: list[Sight]
    over_s: float | None
    """How long after the end of its cause the pipeline was healthy; None if it needs somebody."""

    @property
    def is_in_time(self) -> bool:
        return all(sight.text and sight.seconds <= LATEST_S for sight in self.sights)

    def __str__(self) -> str:
        over = "" if self.over_s is None else f"{self.over_s:.0f} s"
        return f"| {' | '.join((self.incident.name, *map(str, self.sights), over))} |"


def says(stage: Stage, incident: Incident) -> list[Callable[[], str]]:
    """What each of the places says."""
    places, name, kind = stage.places, incident.pipeline, incident.kind
    if kind is None:
        return [
            lambda: _unavailable(places.airflow.ask("/sluice/v1/overview")),
            lambda: (
                "error"
                if "ledger" in (said := places.sluice("status")).stderr + said.stdout
                else ""
            ),
            lambda: _unavailable(places.metrics.get("/metrics")) if places.metrics else "",
            lambda: _code(places.alert(incident.alert, name)),
            lambda: incident.in_airflow(stage),
        ]
    return [
        lambda: _code(places.page(name, kind, incident.text)),
        lambda: _code(places.status(name, incident.title, incident.text)),
        lambda: _code(places.metric(name, kind)),
        lambda: _code(places.alert(incident.alert, name)),
        lambda: incident.in_airflow(stage),
    ]


def _code(text: str) -> str:
    return f"`{text}`" if text else ""


def _unavailable(answer: httpx.Response) -> str:
    return (
        f"{answer.status_code}" if answer.status_code >= httpx.codes.INTERNAL_SERVER_ERROR else ""
    )


def watch(said: Callable[[], str], began: float) -> Sight:
    """Ask a place again and again until it says something."""
    while (seconds := time.monotonic() - began) < PATIENCE_S:
        # A platform with an incident may answer late, or not at all.
        with suppress(httpx.HTTPError, SluiceError):
            text = said()
            if text:
                return Sight(text, time.monotonic() - began)
        time.sleep(0.5)
    return Sight("", seconds)


def play(stage: Stage, incident: Incident) -> Line:
    """Cause an incident, watch the places, end it, and wait until the pipeline is healthy again."""
    stage.begin_incident()
    with incident.cause(stage), ThreadPoolExecutor(len(PLACES)) as watching:
        began = time.monotonic()
        sights = [*watching.map(lambda said: watch(said, began), says(stage, incident))]
        if incident.grows_worse is not None:
            incident.grows_worse(stage)
    if not incident.ends:
        return Line(incident, sights, None)
    ended = time.monotonic()
    stage.wait(lambda: _is_over(stage, incident.pipeline), f"{incident.name} is not over")
    return Line(incident, sights, time.monotonic() - ended)


def _is_over(stage: Stage, pipeline: str) -> bool:
    with suppress(httpx.HTTPError, SluiceError):
        return stage.has_read(pipeline)
    return False


def table(rows: Iterable[str]) -> str:
    names = ("incident", *PLACES, "over after")
    return "\n".join([f"| {' | '.join(names)} |", f"|{' --- |' * len(names)}", *rows])


def write(lines: Iterable[Line]) -> None:
    """Replace the rows of these incidents on the page."""
    before, _, rest = PAGE.read_text().partition(BEGIN)
    shown, _, after = rest.partition(END)
    rows = {
        row.split(" | ")[0].removeprefix("| "): row
        for row in shown.splitlines()
        if row.startswith("| ")
    }
    rows |= {line.incident.name: str(line) for line in lines}
    ordered = [rows[incident.name] for incident in INCIDENTS if incident.name in rows]
    PAGE.write_text(f"{before}{BEGIN}\n\n{table(ordered)}\n\n{END}{after}")


def chosen(arguments: list[str]) -> list[Incident]:
    words = [word for word in arguments if not word.startswith("--")]
    return [
        each
        for each in INCIDENTS
        if not words or any(word in each.cause.__name__ for word in words)
    ]


def main(arguments: list[str]) -> int:
    incidents, lines, missing = chosen(arguments), list[Line](), list[str]()
    with stage() as opened:
        needed = {each.pipeline for each in incidents}
        opened.read_first_records(*(name for name in READ_BEFORE if name in needed))
        for incident in incidents:
            print(f"stages: {incident.name}", flush=True)
            try:
                lines.append(play(opened, incident))
                print(lines[-1], flush=True)
            except CannotBeStaged as error:
                print(f"not staged: {error}", flush=True)
            except Exception:
                # The other incidents are of interest, too.
                missing.append(incident.name)
                print(f"not played: {traceback.format_exc()}", flush=True)
    if "--write" in arguments:
        write(lines)
    late = [line.incident.name for line in lines if not line.is_in_time]
    print(
        f"{len(lines) - len(late)} of {len(incidents)} incidents are named in all places within {LATEST_S:.0f} s"
    )
    return 1 if late or missing else 0


if __name__ == "__main__":
    interrupt_on_sigterm()
    sys.exit(main(sys.argv[1:]))
