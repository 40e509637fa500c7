"""The on-call drill goes on, or says that it has ended, whatever an incident does."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.incidents import drill
from tests.incidents.incidents import INCIDENTS

pytestmark = pytest.mark.unit


def test_an_incident_that_ends_with_an_error_does_not_end_the_drill(tmp_path: Path) -> None:
    @contextmanager
    def ends_badly(_stage: Any) -> Iterator[None]:
        yield
        raise OSError("The file is gone.")

    stage: Any = None
    incident, present = replace(INCIDENTS[0], cause=ends_badly), ExitStack()
    said = [drill._begin(stage, present, tmp_path, incident, number) for number in ("1", "2", "3")]
    assert said == [
        "incident 1 has begun",
        "incident 2 could not be staged: OSError: The file is gone.",
        "incident 3 has begun",
    ]


def test_a_drill_that_has_ended_says_so(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    ended = subprocess.Popen(["true"])
    ended.wait()
    drill.write(tmp_path / drill.PID, str(ended.pid))
    assert drill.main(["next", str(tmp_path)]) == 1
    assert "The drill has ended." in capsys.readouterr().out
