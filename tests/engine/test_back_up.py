"""The commands of the page "Back up and restore" copy a state that a run can continue with."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from sluice.engine.job.rebuild import Rebuild
from sluice.errors import EngineError
from sluice.plan import plan
from tests.docs.pages import read, steps
from tests.engine.conftest import Running, Start
from tests.engine.shop import sale, shop

BACK_UP, RESTORE = (step.commands for step in steps(read("docs/how-to/back-up.md")))


def shell(commands: str, running: Running, folder: Path) -> None:
    variables = os.environ | {"SLUICE_HOME": str(running.settings.home)}
    subprocess.run(["bash", "-ec", commands], env=variables, cwd=folder, check=True)


@pytest.fixture
def backed_up(start: Start, tmp_path: Path) -> Running:
    """A pipeline that has read a record of `a` and one of `b`, and a backup of its state."""
    running = start(shop)
    running.send("sales", sale("a"), sale("b"))
    running.run()
    shell(BACK_UP, running, tmp_path)
    return running


def test_a_run_continues_with_the_records_after_the_backup(backed_up: Running, tmp_path: Path) -> None:
    backed_up.send("sales", sale("a"))
    shell(RESTORE, backed_up, tmp_path)
    assert backed_up.run() == 1
    assert backed_up.store("n") == {"a": 2, "b": 1}
    assert len(backed_up.output("copies")) == 3


def test_if_output_was_written_since_a_rebuild_is_needed_and_writes_none_of_it_again(
    backed_up: Running, tmp_path: Path
) -> None:
    backed_up.send("sales", sale("a"))
    backed_up.run()
    shell(RESTORE, backed_up, tmp_path)
    backed_up.send("sales", sale("b"))
    with pytest.raises(EngineError, match="sluice rebuild"):
        backed_up.run()
    Rebuild(backed_up.spark, plan(backed_up.pipeline).job, backed_up.settings).run()
    backed_up.run(generation=2)
    assert backed_up.store("n") == {"a": 2, "b": 2}
    assert len(backed_up.output("copies")) == 4
