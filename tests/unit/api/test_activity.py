"""Who did what to a pipeline, and when: from the ledger, from Airflow and from the runs."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from typer.models import CommandInfo
from typer.testing import CliRunner

from sluice.answers import Run
from sluice.commands.activity_notes import note_activity
from sluice.commands.cli import app
from sluice.commands.pipeline_submission import action_of
from sluice.settings import settings
from sluice.state.ledger import activities
from sluice.state.ledger.ledger import Ledger
from sluice.state.ledger.placement import Placement
from tests.support.api_client import Api, User
from tests.support.installation import Installation, settings_of
from tests.support.states import States, ledger_url

pytestmark = pytest.mark.unit

PATH = "/v1/pipelines/orders/activity"
NOTED = {
    "backup", "restore", "import-state", "move", "pause", "resume", "recover", "rename", "retire",
    "run", "rebuild", "repartition", "deploy", "generations replay", "generations promote",
    "generations drop", "dead-letters redrive", "topics accept",
    "standby add", "standby refresh", "standby promote", "standby remove",
    # With the pipeline, its activities are removed. Only a former name that is removed is noted.
    "remove",
}  # fmt: skip
CHANGE_NO_STATE = {
    "audit", "check", "constraints", "demo", "describe", "explain", "init", "serve", "status",
    "warm", "workers", "dead-letters list", "generations list", "topics create", "topics read",
    "topics write",
}  # fmt: skip
CHANGE_NO_PIPELINE = {"kafka", "libraries", "observe", "produce", "query", "schema"}
"""Groups of commands."""


@pytest.fixture
def states(tmp_path: Path) -> States:
    return States(f"sqlite:///{tmp_path}")


@pytest.fixture
def editor(states: States) -> Api:
    states.publish({"a": "1"})
    return Api(states.ledger, User(editable=("orders",)))


def texts(api: Api) -> list[tuple[str, str, str]]:
    return [(each["by"], each["action"], each["detail"]) for each in api.get(PATH)]


def test_actions_over_rest_are_listed_with_their_user_newest_first(editor: Api) -> None:
    pipeline = "/v1/pipelines/orders"
    editor.ask("POST", f"{pipeline}/pause", json={"reason": "new prices"})
    editor.ask("POST", f"{pipeline}/resume", json={})
    editor.ask("POST", f"{pipeline}/resume", json={})
    editor.ask("POST", f"{pipeline}/runs", json={"action": "replay", "from": "beginning"})
    assert texts(editor) == [
        ("ada", "replay", "from beginning"),
        ("ada", "resume", ""),
        ("ada", "pause", "new prices"),
    ]
    newest = editor.get(PATH, limit=1)[0]
    assert newest["log"].endswith("/dags/orders/runs/manual__1")


def test_a_refused_action_leaves_no_trace(states: States) -> None:
    states.publish({"a": "1"})
    reader = Api(states.ledger, User())
    assert reader.ask("POST", "/v1/pipelines/orders/pause", json={"reason": "x"}).status_code == 403
    assert texts(reader) == []


def test_runs_that_users_start_in_airflow_are_listed_once(editor: Api) -> None:
    now = datetime.now(UTC)
    editor.ask("POST", "/v1/pipelines/orders/runs", json={})
    ours = editor.get(PATH)[0]["log"].rpartition("/")[2]
    begun = now - timedelta(hours=1)
    editor.runs.history["orders"] = [
        Run(ours, "success", now, now, "/log", "run", now, started_by="ada"),
        Run("manual__9", "success", begun, now, "/log9", "drop", begun, started_by="bob"),
        Run("scheduled__8", "success", begun, now, "/log8", "run", begun),
    ]
    assert texts(editor) == [("ada", "run", ""), ("bob", "drop", "")]


def test_changes_that_a_run_finds_are_listed_without_a_user(editor: Api, states: States) -> None:
    states.ledger.notes.add(states.ref, "", "The state was restored from a backup.")
    assert texts(editor) == [("", "change", "The state was restored from a backup.")]


def test_commands_note_the_user_of_the_machine(
    states: States, monkeypatch: pytest.MonkeyPatch
) -> None:
    states.publish({"a": "1"})
    monkeypatch.setenv("SLUICE_LEDGER", ledger_url(states.database))
    monkeypatch.setenv("SLUICE_USER", "eve")
    settings.cache_clear()
    for arguments in (["pause", "orders", "--reason", "a test"], ["resume", "orders"]):
        result = CliRunner().invoke(app, arguments)
        assert result.exit_code == 0, result.output
    note_activity("orders", "repartition", "generation 2 on 4 workers")
    noted = states.ledger.activities.of("orders", 10)
    assert [(each.by, each.action, each.detail) for each in noted] == [
        ("eve", "repartition", "generation 2 on 4 workers"),
        ("eve", "resume", ""),
        ("eve", "pause", "a test"),
    ]


def test_a_backup_and_its_restoration_are_noted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    old = Installation(settings_of(tmp_path / "old"))
    old.publish()
    new, folder = tmp_path / "new", tmp_path / "backup"
    monkeypatch.setenv("SLUICE_USER", "eve")
    for home, command in ((tmp_path / "old", "backup"), (new, "restore")):
        monkeypatch.setenv("SLUICE_HOME", str(home))
        monkeypatch.setenv("SLUICE_LEDGER", settings_of(home).ledger)
        monkeypatch.setenv("SLUICE_SHARDS", settings_of(home).shards)
        settings.cache_clear()
        result = CliRunner().invoke(app, [command, str(folder)])
        assert result.exit_code == 0, result.output
    (backed_up,) = old.ledger.activities.of(old.states.pipeline, 10)
    assert (backed_up.by, backed_up.action) == ("eve", "back up")
    assert backed_up.detail == f"snapshot 1.1 to {folder}"
    with Ledger.open(settings_of(new).ledger) as ledger:
        (restored,) = ledger.activities.of(old.states.pipeline, 10)
    assert (restored.by, restored.action) == ("eve", "restore")
    assert restored.detail.startswith("snapshot 1.1 from the backup of 20")


def test_a_standby_that_is_removed_is_noted(
    states: States, monkeypatch: pytest.MonkeyPatch
) -> None:
    states.publish({"a": "1"})
    states.ledger.standbys.add(Placement("orders", 1, "standby", 7070))
    monkeypatch.setenv("SLUICE_LEDGER", ledger_url(states.database))
    monkeypatch.setenv("SLUICE_USER", "eve")
    settings.cache_clear()
    result = CliRunner().invoke(app, ["standby", "remove", "orders", "1"])
    assert result.exit_code == 0, result.output
    (noted,) = states.ledger.activities.of("orders", 10)
    assert (noted.action, noted.detail) == ("remove standby", "of worker 1 at standby:7070")


def test_every_command_either_notes_an_activity_or_changes_no_pipeline() -> None:
    commands: set[str] = set()
    for command in app.registered_commands:
        commands.add(name_of(command))
    for group in app.registered_groups:
        assert group.typer_instance is not None
        if group.name in CHANGE_NO_PIPELINE:
            continue
        for command in group.typer_instance.registered_commands:
            commands.add(f"{group.name} {name_of(command)}")
    assert commands == {*NOTED, *CHANGE_NO_STATE}


def name_of(command: CommandInfo) -> str:
    assert command.callback is not None
    return command.name or command.callback.__name__.replace("_", "-")


def test_an_action_that_is_done_does_not_fail_because_the_ledger_is_away(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("SLUICE_LEDGER", f"sqlite:///{tmp_path}/no/folder/ledger.db")
    (tmp_path / "no").write_text("a file")
    settings.cache_clear()
    note_activity("orders", "re-drive")


@pytest.mark.parametrize(
    ("options", "action"),
    [((), "run"), (("--replay", "--from=beginning"), "replay"), (("--roll-back",), "roll-back")],
)
def test_a_driver_is_noted_by_what_it_does(options: tuple[str, ...], action: str) -> None:
    assert action_of(options) == action


def test_only_the_newest_activities_are_kept(
    states: States, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(activities, "MOST", 3)
    for number in range(5):
        states.ledger.activities.add("orders", "run", "ada", str(number))
    states.ledger.activities.add("words", "run", "ada")
    kept = states.ledger.activities.of("orders", 10)
    assert [activity.detail for activity in kept] == ["4", "3", "2"]
