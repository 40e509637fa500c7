"""An on-call drill: ten incidents, one by one, on a platform that keeps running.

`python -m tests.incidents.drill start FOLDER` starts the platform in a new folder, prints how to reach it, and runs
until `stop FOLDER`. In another shell, `next FOLDER` ends the present incident and causes the next one, in an order that
nobody knows, and `answer FOLDER` says what the present incident is. Some incidents leave their pipeline ill.
"""

from __future__ import annotations

import json
import random
import shlex
import sys
import time
from contextlib import ExitStack
from pathlib import Path

from sluice.errors import SluiceError
from tests.incidents.incidents import INCIDENTS, Incident
from tests.incidents.stage import READ_BEFORE, CannotBeStaged, Stage, stage

COUNT = 10
STARTED, REQUEST, ANSWER = "drill.json", "request", "answer"
POLL_S = 0.5


def chosen(seed: int) -> list[Incident]:
    """Ten incidents in a random order. If one of them leaves its pipeline ill, it is the pipeline's only incident."""
    incidents = random.Random(seed).sample(INCIDENTS, len(INCIDENTS))
    lasting = {incident.pipeline for incident in incidents if not incident.ends}
    picked: list[Incident] = []
    for incident in incidents:
        is_first = incident.pipeline not in {each.pipeline for each in picked}
        if len(picked) < COUNT and (is_first or incident.pipeline not in lasting):
            picked.append(incident)
    return picked


def start(folder: Path, seed: int) -> None:
    """Start the platform, cause an incident at each request `next`, and end at the request `stop`."""
    folder.mkdir(parents=True)
    incidents = chosen(seed)
    with stage(folder) as opened, ExitStack() as present:
        opened.read_first_records(*READ_BEFORE)
        _print_how_to_reach(opened, folder)
        number = 0
        while (request := _request(folder)) != "stop":
            if request == "next" and number < len(incidents):
                incident = incidents[number]
                number += 1
                _say(folder, _begin(opened, present, folder, incident, f"{number} of {len(incidents)}"))
            elif request == "next":
                _say(folder, "there are no more incidents")
            time.sleep(POLL_S)


def _begin(opened: Stage, present: ExitStack, folder: Path, incident: Incident, number: str) -> str:
    """End the present incident and cause another one. Returns what to say."""
    try:
        present.close()
        present.enter_context(incident.cause(opened))
    except (CannotBeStaged, SluiceError) as error:
        # The drill goes on with the other incidents.
        (folder / ANSWER).write_text("The incident could not be staged.\n")
        return f"incident {number} could not be staged: {error}"
    kind = incident.kind or "the ledger"
    text = f"{incident.name}. Pipeline {incident.pipeline}, kind {kind}, alert {incident.alert}."
    (folder / ANSWER).write_text(f"{text}\n{incident.cause.__doc__ or ''}\n")
    return f"incident {number} has begun"


def _print_how_to_reach(opened: Stage, folder: Path) -> None:
    platform = opened.platform
    log_in = platform.admin
    variables = {name: value for name, value in platform.variables().items() if name.startswith("SLUICE_")}
    environment = folder / "environment"
    environment.touch(mode=0o600)
    environment.write_text("".join(f"export {name}={shlex.quote(value)}\n" for name, value in variables.items()))
    assert opened.places.metrics is not None
    assert opened.places.prometheus is not None
    reach = {
        "Airflow": platform.url,
        "user": log_in.user,
        "password": log_in.password,
        "Prometheus": str(opened.places.prometheus.base_url),
        "state server": str(opened.places.metrics.base_url),
        "environment of the command sluice": f"source {environment}",
        "broker": platform.kafka.bootstrap,
    }
    text = json.dumps(reach, indent=2)
    (folder / STARTED).write_text(text)
    print(text, flush=True)


def _request(folder: Path) -> str:
    file = folder / REQUEST
    request = file.read_text() if file.exists() else ""
    file.unlink(missing_ok=True)
    return request


def _say(folder: Path, text: str) -> None:
    (folder / "said").write_text(text)
    print(text, flush=True)


def ask(folder: Path, request: str) -> None:
    """Ask the running drill for the next incident, and wait until it has begun; or tell it to stop."""
    said = folder / "said"
    said.unlink(missing_ok=True)
    (folder / REQUEST).write_text(request)
    while request == "next" and not said.exists():
        time.sleep(POLL_S)
    if said.exists():
        print(said.read_text())


def main(arguments: list[str]) -> int:
    match arguments:
        case ["start", folder, *rest]:
            start(Path(folder).absolute(), int(rest[0]) if rest else random.randrange(10**6))
        case ["next" | "stop" as request, folder]:
            ask(Path(folder), request)
        case ["answer", folder]:
            print((Path(folder) / ANSWER).read_text())
        case _:
            print(__doc__)
            return 2
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
