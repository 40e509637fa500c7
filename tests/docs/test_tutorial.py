"""Run the tutorial from start to end."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from sluice.settings import settings
from sluice.testing import kafka
from tests.docs.pages import ROOT, files, read, script, steps
from tests.ports import free_port

pytestmark = pytest.mark.timeout(900)

SEPARATOR = "-- next step --"


@pytest.fixture
def clone(tmp_path: Path) -> Iterator[Path]:
    """A folder like a clone after set-up; stops the broker afterwards."""
    (tmp_path / "spark_jobs").symlink_to(ROOT / "spark_jobs")
    (tmp_path / ".sluice").mkdir()
    (tmp_path / ".sluice" / "jars").symlink_to((settings().home / "jars").resolve())
    yield tmp_path
    kafka.stop(tmp_path / ".sluice" / "kafka")


def test_the_commands_of_the_tutorial_print_its_output(clone: Path) -> None:
    port = str(free_port())
    text = read("docs/tutorial.md").replace("9092", port)
    for path, content in files(text).items():
        (clone / path).parent.mkdir(parents=True, exist_ok=True)
        (clone / path).write_text(content)
    told = list(steps(text))
    command = ["bash", "-c", script(told, SEPARATOR)]
    nothing = subprocess.DEVNULL
    process = subprocess.run(command, env=environment(port), cwd=clone, stdin=nothing, capture_output=True, text=True)
    printed = process.stdout.split(f"{SEPARATOR}\n")
    differences = [found for step, results in zip(told, printed, strict=False) if (found := step.differs(results))]
    if differences:
        pytest.fail("\n".join(differences), pytrace=False)
    assert (process.returncode, len(printed)) == (0, len(told) + 1), process.stderr[-3_000:]


def environment(port: str) -> dict[str, str]:
    """The environment after `source .venv/bin/activate`, with another port and the shared class archive."""
    mine = {name: value for name, value in os.environ.items() if not name.startswith("SLUICE_")}
    path = os.pathsep.join((str(Path(sys.executable).parent), os.environ["PATH"]))
    brokers = f'{{"bootstrap.servers": "127.0.0.1:{port}"}}'
    return mine | {"PATH": path, "SLUICE_KAFKA": brokers, "SLUICE_JARS": str(settings().jars)}
