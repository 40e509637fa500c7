"""The commands and the sessions of the page "Debug a pipeline" print what the page shows."""

from __future__ import annotations

import io
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import redirect_stdout
from pathlib import Path
from typing import Any

import pytest

from sluice.kafka.topics import produce
from sluice.local.broker import EmbeddedKafka
from sluice.settings import settings
from tests.docs.pages import Step, read, steps, write_files

PAGE = "docs/how-to/debug.md"
LOADS = [
    b'{"page": "home", "bytes": 700, "milliseconds": 20}',
    b'{"page": "news", "bytes": 900, "milliseconds": 30}',
    b'{"page": "news", "bytes": 900, "milliseconds": 0}',
]


@pytest.fixture
def broker(kafka: EmbeddedKafka, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A broker with the records of the batch that the page replays."""
    monkeypatch.setenv(
        "SLUICE_KAFKA", json.dumps({"bootstrap.servers": kafka.bootstrap, "log_level": "0"})
    )
    settings.cache_clear()
    kafka.create_topics({"page_loads": 2})
    produce(settings().kafka, "page_loads", [(None, value, 0) for value in LOADS])
    yield
    settings.cache_clear()


@pytest.mark.heavy  # test_tutorial.py runs most of these commands
def test_the_page_prints_its_output(
    broker: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = read(PAGE)
    write_files(text, tmp_path)
    monkeypatch.chdir(tmp_path)
    before, heading, after = text.partition("## See the state")
    assert heading
    environment = dict(os.environ) | {
        "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    }
    differences = _run_shell(list(steps(before)), environment)
    session: dict[str, Any] = {}
    opened, *others = steps(after, "python")
    differences += _run_python([opened], session)
    environment["SLUICE_HOME"] = str(session["driver"].home)
    environment["SLUICE_PIPELINES"] = "debugging"
    differences += _run_shell(list(steps(after)), environment)
    differences += _run_python(others, session)
    assert not any(differences), "\n".join(filter(None, differences))


def _run_shell(commands: list[Step], environment: dict[str, str]) -> list[str]:
    """Run the blocks in one shell each, with the exports of the blocks before. Returns the differences."""
    differences = []
    exports = ""
    for step in commands:
        done = subprocess.run(
            ["bash", "-ec", exports + step.commands],
            env=environment,
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, step.commands + done.stdout + done.stderr
        differences.append(step.differs(done.stdout))
        exports += "".join(
            f"{line}\n" for line in step.commands.splitlines() if line.startswith("export ")
        )
    return differences


def _run_python(blocks: list[Step], session: dict[str, Any]) -> list[str]:
    differences = []
    for step in blocks:
        with redirect_stdout(io.StringIO()) as printed:
            exec(step.commands, session)
        differences.append(step.differs(printed.getvalue()))
    return differences
