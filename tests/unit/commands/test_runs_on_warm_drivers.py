"""What `sluice run` leaves to a warm driver, and what it does itself if the driver is lost."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import typer

from sluice.commands.pipeline_submission import SubmittedRun, submit
from sluice.provision.libraries import Libraries
from sluice.settings import Settings, settings
from sluice.state.ledger.ledger import Ledger
from sluice.warm import client
from sluice.warm.identity import driver_key, socket_path
from tests.support.fork_servers import fork_server

pytestmark = pytest.mark.unit

MASTER = "local[2]"
PIPELINE = """
from sluice import DeltaTable, Pipeline
pipeline = Pipeline("words")
words = pipeline.stream("words", value=str)
words.group_by_key().count(store="words_count")
"""
TO_DELTA = """
words.to(DeltaTable("/tables/words"))
"""
RUN = """
from sluice.driver import begun_for_command
from sluice.errors import SluiceError
from sluice.settings import settings
settings.cache_clear()
{before}
try:
    if begun_for_command(settings(), "words", ["words"]):
        print("runs on the warm driver", flush=True)
        {after}
except SluiceError as error:
    print(error, file=sys.stderr)
    sys.exit(1)
open(os.environ["SLUICE_FINISHED"], "w").close()
"""


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    monkeypatch.setenv("SLUICE_HOME", str(tmp_path))
    monkeypatch.setenv("SLUICE_PIPELINES", str(tmp_path / "pipelines"))
    monkeypatch.setenv("SLUICE_WARM", "use")
    monkeypatch.setenv("SLUICE_USER", "ann")
    (tmp_path / "pipelines").mkdir()
    (tmp_path / "pipelines" / "words.py").write_text(PIPELINE)
    settings.cache_clear()
    yield tmp_path
    settings.cache_clear()


@pytest.fixture
def elsewhere(monkeypatch: pytest.MonkeyPatch) -> list[SubmittedRun]:
    """The runs that the command has started in another way than on a driver that it knew."""
    runs: list[SubmittedRun] = []

    def run(submitted: SubmittedRun) -> int:
        runs.append(submitted)
        return 0

    monkeypatch.setattr(SubmittedRun, "_on_any_driver", run)
    return runs


@contextmanager
def driver(
    monkeypatch: pytest.MonkeyPatch, before: str = "", after: str = "pass"
) -> Iterator[None]:
    """A warm driver whose runs begin as those with Spark do."""
    monkeypatch.setenv("CODE", RUN.format(before=before, after=after))
    key = driver_key(settings(), MASTER, delta=False)
    with fork_server(socket_path(settings(), key), key):
        yield


def status_of_run() -> int:
    with pytest.raises(typer.Exit) as ended:
        submit("words", MASTER)
    return ended.value.exit_code


def noted() -> tuple[list[tuple[str, str]], list[str]]:
    """Return who did what, and the kinds of the failures, according to the ledger."""
    with Ledger.open(settings().ledger) as ledger:
        activities = [(each.by, each.action) for each in ledger.activities.of("words", 10)]
        return activities, [each.kind for each in ledger.failures.of("words")]


def test_the_driver_notes_who_runs_the_pipeline(
    monkeypatch: pytest.MonkeyPatch,
    elsewhere: list[SubmittedRun],
    capfd: pytest.CaptureFixture[str],
) -> None:
    with driver(monkeypatch):
        assert status_of_run() == 0
    assert capfd.readouterr().out == "runs on the warm driver\n"
    assert (noted(), elsewhere) == (([("ann", "run")], []), [])


def test_the_command_imports_neither_the_topology_nor_a_database(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    program = f"""
import sys, typer
from sluice.commands.pipeline_submission import submit
try:
    submit("words", {MASTER!r})
except typer.Exit as ended:
    print(ended.exit_code, {{"sqlalchemy", "sluice.topology.groups", "pyarrow"}} & {{*sys.modules}})
"""
    with driver(monkeypatch):
        shown = subprocess.check_output([sys.executable, "-c", program], text=True)
    assert shown == "runs on the warm driver\n0 set()\n"


def printed(capfd: pytest.CaptureFixture[str]) -> list[str]:
    """Return the lines of both outputs, without those of Kafka clients that other tests have left."""
    both = capfd.readouterr()
    return [line for line in (both.out + both.err).splitlines() if "|rdkafka#" not in line]


def test_the_driver_refuses_a_paused_pipeline(
    monkeypatch: pytest.MonkeyPatch,
    elsewhere: list[SubmittedRun],
    capfd: pytest.CaptureFixture[str],
) -> None:
    with Ledger.open(settings().ledger) as ledger:
        ledger.pauses.pause("words", "moving", "bob")
    with driver(monkeypatch):
        assert status_of_run() == 1
    output = capfd.readouterr()
    assert (output.out, "words is paused by bob" in output.err) == ("", True)
    # That is neither a run nor a failure.
    assert (noted(), elsewhere) == (([], []), [])


def test_a_run_that_ends_without_an_error_message_is_a_failure_once_it_has_begun(
    monkeypatch: pytest.MonkeyPatch, elsewhere: list[SubmittedRun]
) -> None:
    with driver(monkeypatch, after="os._exit(7)"):
        assert status_of_run() == 7
    assert (noted(), elsewhere) == (([("ann", "run")], ["run"]), [])


def test_a_file_that_ends_the_process_does_not_make_the_pipeline_fail(
    monkeypatch: pytest.MonkeyPatch, elsewhere: list[SubmittedRun], home: Path
) -> None:
    (home / "pipelines" / "words.py").write_text(f"import os\nos._exit(7)\n{PIPELINE}")
    with driver(monkeypatch):
        assert status_of_run() == 7
    assert (noted(), elsewhere) == (([], []), [])


def test_a_driver_without_delta_leaves_a_pipeline_with_delta_tables_to_others(
    monkeypatch: pytest.MonkeyPatch,
    elsewhere: list[SubmittedRun],
    home: Path,
    capfd: pytest.CaptureFixture[str],
) -> None:
    (home / "pipelines" / "words.py").write_text(PIPELINE + TO_DELTA)
    with driver(monkeypatch):
        assert status_of_run() == 0
    assert printed(capfd) == []
    assert [(run.has_begun, run.asks_warm) for run in elsewhere] == [(False, True)]
    assert noted() == ([], [])


@pytest.mark.parametrize("has_begun", [False, True])
def test_a_run_whose_driver_is_lost_starts_its_own_and_is_noted_once(
    monkeypatch: pytest.MonkeyPatch, elsewhere: list[SubmittedRun], *, has_begun: bool
) -> None:
    dies = "os.kill(os.getppid(), 9); time.sleep(60)"
    before, after = ("", dies) if has_begun else (dies, "pass")
    with driver(monkeypatch, before, after):
        assert status_of_run() == 0
    assert [(run.has_begun, run.asks_warm) for run in elsewhere] == [(has_begun, False)]
    assert noted()[0] == [("ann", "run")] * has_begun


def test_a_command_without_a_warm_driver_does_everything_itself(
    elsewhere: list[SubmittedRun], capfd: pytest.CaptureFixture[str]
) -> None:
    assert status_of_run() == 0
    assert [(run.has_begun, run.asks_warm) for run in elsewhere] == [(False, True)]
    assert printed(capfd) == []


@pytest.mark.parametrize(
    "options", ['[defaults]\nwarm = "off"\n', '[pipelines.words]\nrequirements = "words.txt"\n']
)
def test_a_driver_is_not_asked_for_a_pipeline_that_it_cannot_run(
    monkeypatch: pytest.MonkeyPatch, elsewhere: list[SubmittedRun], home: Path, options: str
) -> None:
    (home / "pipelines" / "sluice.toml").write_text(options)
    with driver(monkeypatch):
        assert status_of_run() == 0
    assert [(run.has_begun, run.asks_warm) for run in elsewhere] == [(False, True)]


def test_a_pipelines_libraries_are_looked_up_once_for_its_file_and_its_driver(
    monkeypatch: pytest.MonkeyPatch, home: Path
) -> None:
    requirements = home / "pipelines" / "words.txt"
    requirements.touch()
    (home / "pipelines" / "sluice.toml").write_text(
        '[pipelines.words]\nrequirements = "words.txt"\n'
    )
    built: list[Path] = []
    given: list[Path | None] = []

    def build(libraries: Libraries, say: object) -> Path:
        built.append(libraries.requirements)
        return home / "packages"

    def run(own: Settings, *_: object, **__: object) -> int:
        given.append(own.libraries)
        return 0

    monkeypatch.setattr(Libraries, "build", build)
    monkeypatch.setattr(client, "run_warm", run)
    assert status_of_run() == 0
    assert (built, given) == ([requirements], [home / "packages"])
