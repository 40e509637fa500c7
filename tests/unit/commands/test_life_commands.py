"""The commands of a pipeline's life: pause, resume, and what rename and deploy refuse."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from sluice.commands.cli import app
from sluice.driver import reads_records
from sluice.orchestration.operator import ACTIONS
from sluice.settings import settings
from sluice.state.ledger.ledger import Ledger
from tests.support.states import States

pytestmark = pytest.mark.unit

Call = Callable[..., Result]


@pytest.fixture
def call(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Call:
    """Calls a command with the ledger of a published pipeline, `orders`."""
    States(f"sqlite:///{tmp_path}").publish({"key": "[1,null]"})
    (tmp_path / "jobs").mkdir()
    (tmp_path / "jobs" / "fresh.py").write_text('pipeline = Pipeline("fresh")')
    monkeypatch.setenv("SLUICE_HOME", str(tmp_path))
    monkeypatch.setenv("SLUICE_PIPELINES", str(tmp_path / "jobs"))
    monkeypatch.setenv("SLUICE_USER", "ann")
    settings.cache_clear()
    return lambda *words: CliRunner().invoke(app, [*words])


def test_a_pause_is_printed_with_its_reason_and_the_way_out(call: Call) -> None:
    said = call("pause", "orders", "--reason", " new prices ").output
    assert "orders is paused by ann since" in said
    assert "UTC: new prices" in said
    assert "sluice resume orders" in said
    said = call("resume", "orders").output
    assert "orders may run again. It was paused by ann" in said
    assert "orders was not paused" in call("resume", "orders").output


def test_a_pipeline_that_has_never_run_can_be_paused(call: Call, tmp_path: Path) -> None:
    assert call("pause", "fresh", "--reason", "not yet").exit_code == 0
    with Ledger.open(settings().ledger) as ledger:
        assert ledger.pauses.all().keys() == {"fresh"}


def test_whatever_reads_records_is_refused_while_the_pipeline_is_paused(call: Call) -> None:
    (settings().pipelines / "fresh.py").write_text(
        "from sluice import Pipeline\n"
        "pipeline = Pipeline('fresh')\n"
        "pipeline.stream('t', value=str).group_by_key().count(store='n')\n"
    )
    call("pause", "fresh", "--reason", "not yet")
    result = call("run", "fresh")
    assert result.exit_code == 1
    assert "fresh is paused by ann since" in " ".join(result.output.split())
    with Ledger.open(settings().ledger) as ledger:
        assert ledger.failures.of("fresh") == [], "a pause is no failure"


def test_actions_that_read_no_records_are_possible_while_a_pipeline_is_paused() -> None:
    assert reads_records(())
    assert reads_records(ACTIONS["change"])
    assert not any(reads_records(ACTIONS[name]) for name in ("replay", "promote", "drop"))
    assert not reads_records(["--rebuild", "--from-topics"])


@pytest.mark.parametrize(
    ("words", "why"),
    [
        (("pause", "orders", "--reason", " "), "A pause needs a reason"),
        (("pause", "orders", "--reason", "x" * 501), "of at most 500 characters"),
        (("pause", "nobody", "--reason", "x"), "The ledger has no pipeline 'nobody'"),
        (("resume", "nobody"), "The ledger has no pipeline 'nobody'"),
        (("rename", "orders"), "Pass either the pipeline's new name, or stores"),
        (("rename", "orders", "sales", "--store", "a=b"), "Pass either the pipeline's new name"),
        (("rename", "orders", "--store", "totals"), "is not OLD=NEW"),
        (("rename", "orders", "a/b"), "'a/b' is not a valid pipeline name"),
        (("deploy", "orders", "--promote", "--drop"), "Choose one of"),
        (("deploy", "orders", "--compare"), "has no generation beside the current one"),
    ],
)
def test_mistakes_are_errors_with_the_next_step(
    call: Call, words: tuple[str, ...], why: str
) -> None:
    result = call(*words)
    assert result.exit_code == 1
    assert why in " ".join(result.output.split())


def test_a_pause_needs_a_reason(call: Call) -> None:
    assert call("pause", "orders").exit_code == 2
