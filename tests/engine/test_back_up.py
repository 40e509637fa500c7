"""The commands of the page "Back up and restore" copy a state that a run can continue with."""

from __future__ import annotations

import shlex
import subprocess
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from typer.testing import CliRunner

from sluice import Pipeline
from sluice.commands.cli import app
from sluice.engine.publish.kafka_transaction import TransactionalOutput
from sluice.errors import EngineError
from sluice.operations.backups.back_up import back_up
from sluice.operations.backups.restore import restore
from sluice.operations.rebuild import Rebuild
from sluice.operations.repartition import repartition
from sluice.plan import plan
from sluice.settings import Settings
from sluice.settings import settings as current_settings
from tests.docs.pages import read, steps
from tests.engine.conftest import Running, Start
from tests.engine.shop import Build, Names, sale, sales_of, shop, simple_shop

BACK_UP, RESTORE = (step.commands for step in steps(read("docs/how-to/back-up.md")))


@pytest.fixture
def shell(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Callable[[str, Running], None]]:
    """Runs commands of the page in `tmp_path`: those of Sluice in this process, the others in a shell."""
    monkeypatch.chdir(tmp_path)

    def execute(commands: str, running: Running) -> None:
        monkeypatch.setenv("SLUICE_HOME", str(running.settings.home))
        current_settings.cache_clear()
        for command in commands.splitlines():
            program, *arguments = shlex.split(command)
            if program == "sluice":
                result = CliRunner().invoke(app, arguments)
                assert result.exit_code == 0, result.output
            else:
                subprocess.run(command, shell=True, check=True)

    yield execute
    current_settings.cache_clear()


def test_a_run_continues_after_the_backup_and_a_rebuild_writes_no_output_again(
    start: Start, shell: Callable[[str, Running], None], tmp_path: Path
) -> None:
    running = start(simple_shop, sales=2)
    running.send("sales", sale("a"), sale("b"))
    running.run()
    shell(BACK_UP, running)

    running.send("sales", sale("a"))
    shell(RESTORE, running)
    assert running.run() == 1
    assert running.store("n") == {"a": 2, "b": 1}
    assert len(running.output("copies")) == 3

    # Runs have written output since the backup, also in a later generation, so now a rebuild is
    # needed.
    running.send("sales", sale("b"), partition=1)
    running.run()
    wider = replace(running, pipeline=simple_shop(running.names))
    wider.pipeline.workers = 3
    repartition(plan(wider.pipeline).job, running.settings)
    running.send("sales", sale("a"))
    wider.run()
    (tmp_path / "replaced").rename(tmp_path / "replaced_first")
    shell(RESTORE, running)
    running.send("sales", sale("b"))
    with pytest.raises(
        EngineError, match=r"Generation 2 .* has written output, up to batch 3.* sluice recover"
    ):
        running.run()
    assert Rebuild(running.spark, plan(running.pipeline).job, running.settings).run() == 3
    running.run()
    assert running.store("n") == {"a": 3, "b": 3}
    assert len(running.output("copies")) == 6


def in_spark(names: Names) -> Pipeline:
    """A store that Spark aggregates, with state of its own."""
    pipeline = names.pipeline()
    sales_of(pipeline, names).group_by("shop").aggregate(store="n", last="max(at)", n="count(*)")
    return pipeline


@pytest.mark.parametrize("build", [pytest.param(shop, marks=pytest.mark.heavy), in_spark])
def test_a_backup_during_a_batch_has_the_state_before_the_batch(
    build: Build, start: Start, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    running = start(build)
    running.send("sales", sale("a"), sale("b"))
    running.run()

    def back_up_and_stop(*_: object) -> None:
        """All shards have the batch, but its output is not written."""
        with running.ledger() as ledger:
            back_up(ledger, tmp_path / "backup")
        raise EngineError("the run was stopped")

    running.send("sales", sale("a"), sale("c"))
    with monkeypatch.context() as patch:
        patch.setattr(TransactionalOutput, "send", back_up_and_stop)
        with pytest.raises(EngineError, match="the run was stopped"):
            running.run()
    running.send("sales", sale("a"))
    settings = Settings.read({"SLUICE_HOME": str(tmp_path / "new")})
    restored = replace(running, settings=replace(settings, kafka=running.settings.kafka))
    restore(tmp_path / "backup", restored.settings)
    assert restored.store("n").keys() == {"a", "b"}
    assert restored.run() == 3
    counts = {
        key: value if build is shop else value["n"] for key, value in restored.store("n").items()
    }
    assert counts == {"a": 3, "b": 1, "c": 1}
