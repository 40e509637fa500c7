"""Run the commands of the tutorial from start to end; `test_sessions.py` runs its Python session."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from sluice.local import broker
from sluice.settings import settings
from tests.docs.pages import ROOT, read, script, steps, write_files
from tests.support.ports import free_port

pytestmark = pytest.mark.timeout(900)

SEPARATOR = "-- next step --"
COMPLAINTS = ("WARN", "ERROR", "Warning", "%3|", "%4|", "Traceback")
"""How warnings of Spark, Python and Kafka's client look. A successful run prints none."""


@pytest.fixture
def clone(tmp_path: Path) -> Iterator[Path]:
    """A folder like a clone after set-up; stops the broker afterwards."""
    (tmp_path / "spark_jobs").symlink_to(ROOT / "spark_jobs")
    (tmp_path / ".sluice").mkdir()
    (tmp_path / ".sluice" / "jars").symlink_to(settings().jars.resolve())
    yield tmp_path
    broker.stop(tmp_path / ".sluice" / "kafka")


@pytest.mark.parametrize(
    "end",
    [
        pytest.param("## 7. Exactly once", id="a pipeline, a broker, a run, and queries"),
        pytest.param("", id="all steps", marks=pytest.mark.heavy),
    ],
)
def test_the_commands_print_their_output(clone: Path, end: str) -> None:
    """The part before the heading `end` takes one run; the whole tutorial takes a second run, a replay and more."""
    text = read("docs/tutorial.md")
    assert end in text
    text = text.partition(end)[0] if end else text
    ports = dict(zip(("9092", "7070", "7071"), (str(free_port()) for _ in range(3)), strict=True))
    for documented, free in ports.items():
        text = text.replace(documented, free)
    write_files(text, clone)
    told = list(steps(text))
    # With job control, as in an interactive shell, each job is a process group, which `kill` ends
    # as a whole.
    end_jobs = "trap 'kill -- $(jobs -p | sed s/^/-/) 2>/dev/null' EXIT"
    command = ["bash", "-c", f"set -m\n{end_jobs}\n{script(told, SEPARATOR)}"]
    status, output, errors = run(command, clone, environment(ports["9092"]))
    printed = output.split(f"{SEPARATOR}\n")
    differences = [step.differs(results) for step, results in zip(told, printed, strict=False)]
    if any(differences):
        pytest.fail("\n".join(filter(None, differences)), pytrace=False)
    assert (status, len(printed)) == (0, len(told) + 1), errors[-3_000:]
    log = (clone / "run.log").read_text()
    assert [complaint for complaint in COMPLAINTS if complaint in log] == []


def run(command: list[str], folder: Path, variables: dict[str, str]) -> tuple[int, str, str]:
    """Run a command; return its status, output and errors. If it is interrupted, its children end too."""
    pipe = subprocess.PIPE
    with subprocess.Popen(
        command,
        cwd=folder,
        env=variables,
        stdin=subprocess.DEVNULL,
        stdout=pipe,
        stderr=pipe,
        text=True,
    ) as process:
        try:
            output, errors = process.communicate()
        except BaseException:
            for child in psutil.Process(process.pid).children(recursive=True):
                child.kill()
            process.kill()
            raise
    return process.returncode, output, errors


def environment(port: str) -> dict[str, str]:
    """The environment after `source .venv/bin/activate`, with another port and the shared class archive."""
    mine = {name: value for name, value in os.environ.items() if not name.startswith("SLUICE_")}
    path = os.pathsep.join((str(Path(sys.executable).parent), os.environ["PATH"]))
    brokers = f'{{"bootstrap.servers": "127.0.0.1:{port}"}}'
    return mine | {"PATH": path, "SLUICE_KAFKA": brokers, "SLUICE_JARS": str(settings().jars)}
