"""An on-call drill: ten incidents, one by one, on a platform that keeps running.

`python -m tests.incidents.drill start FOLDER` starts the platform in a new folder, prints how to
reach it, and runs until `stop FOLDER`. In another shell, `next FOLDER` ends the present incident
and causes the next one, in an order that nobody knows, and `answer FOLDER` says what the present
incident is. Some incidents leave their pipeline ill.
"""

from __future__ import annotations

import json
import os
import random
import shlex
import sys
import time
from contextlib import ExitStack
from pathlib import Path

import psutil

from tests.incidents.incidents import INCIDENTS, Incident
from tests.incidents.stage import READ_BEFORE, Stage, stage

COUNT = 10
STARTED, PID, REQUEST, SAID, ANSWER = "drill.json", "pid", "request", "said", "answer"
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
    write(folder / PID, str(os.getpid()))
    incidents = chosen(seed)
    with stage(folder) as opened, ExitStack() as present:
        opened.read_first_records(*READ_BEFORE)
        _print_how_to_reach(opened, folder)
        number = 0
        while (request := _request(folder)) != "stop":
            if request == "next" and number < len(incidents):
                incident = incidents[number]
                number += 1
                _say(
                    folder,
                    _begin(opened, present, folder, incident, f"{number} of {len(incidents)}"),
                )
            elif request == "next":
                _say(folder, "there are no more incidents")
            time.sleep(POLL_S)


def _begin(opened: Stage, present: ExitStack, folder: Path, incident: Incident, number: str) -> str:
    """End the present incident and cause another one. Returns what to say."""
    try:
        present.close()
        present.enter_context(incident.cause(opened))
    except Exception as error:
        # Airflow, Kafka and PostgreSQL may fail in any way after an incident. The drill goes on
        # with the other incidents, because `next` would wait forever for a drill that has ended.
        (folder / ANSWER).write_text("The incident could not be staged.\n")
        return f"incident {number} could not be staged: {type(error).__name__}: {error}"
    kind = incident.kind or "the ledger"
    text = f"{incident.name}. Pipeline {incident.pipeline}, kind {kind}, alert {incident.alert}."
    (folder / ANSWER).write_text(f"{text}\n{incident.cause.__doc__ or ''}\n")
    return f"incident {number} has begun"


def _print_how_to_reach(opened: Stage, folder: Path) -> None:
    platform = opened.platform
    log_in = platform.admin
    variables = {
        name: value for name, value in platform.variables().items() if name.startswith("SLUICE_")
    }
    environment = folder / "environment"
    environment.touch(mode=0o600)
    environment.write_text(
        "".join(f"export {name}={shlex.quote(value)}\n" for name, value in variables.items())
    )
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
    write(folder / SAID, text)
    print(text, flush=True)


def write(file: Path, text: str) -> None:
    """Write a file that another process waits for, and that it therefore must not read half-written."""
    new = file.with_name(f"{file.name}.new")
    new.write_text(text)
    new.rename(file)


def ask(folder: Path, request: str) -> int:
    """Ask the running drill for the next incident, and wait until it has begun; or tell it to stop.

    Returns the status of the command: 1 if the drill has ended.
    """
    said, pid = folder / SAID, int((folder / PID).read_text())
    said.unlink(missing_ok=True)
    write(folder / REQUEST, request)
    while request == "next" and not said.exists():
        if not psutil.pid_exists(pid):
            print("The drill has ended. Its output says why.")
            return 1
        time.sleep(POLL_S)
    if said.exists():
        print(said.read_text())
    return 0


def main(arguments: list[str]) -> int:
    match arguments:
        case ["start", folder, *rest]:
            start(Path(folder).absolute(), int(rest[0]) if rest else random.randrange(10**6))
        case ["next" | "stop" as request, folder]:
            return ask(Path(folder), request)
        case ["answer", folder]:
            print((Path(folder) / ANSWER).read_text())
        case _:
            print(__doc__)
            return 2
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
