"""Failures of runs and pipeline files are recorded until the next success."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from sluice.errors import EngineError, NotFound, TopologyError
from sluice.settings import Settings, settings
from sluice.state.ledger.failures import Failure
from sluice.state.ledger.ledger import Ledger
from sluice.state.ledger.run_ends import note_failure, note_files, note_killed, now
from sluice.state.model import GenerationInfo


@pytest.fixture
def known(tmp_path: Path) -> Settings:
    kafka = {"bootstrap.servers": "kafka:9092", "sasl.password": "hunter22"}
    return Settings.read(
        {
            "SLUICE_HOME": str(tmp_path),
            "SLUICE_PIPELINES": str(tmp_path / "jobs"),
            "SLUICE_KAFKA": json.dumps(kafka),
        }
    )


def failures(known: Settings) -> list[Failure]:
    with Ledger.open(known.ledger) as ledger:
        return ledger.failures.all()


def fail(known: Settings, error: Exception, run: str = "") -> None:
    with pytest.raises(type(error)), note_failure(known, "orders", run):
        raise error


def test_a_failed_run_is_recorded_until_one_succeeds(known: Settings) -> None:
    begun = now()
    fail(known, EngineError("Kafka does not answer\nand more"), run="orders/manual__1/main")
    (failure,) = failures(known)
    assert (failure.pipeline, failure.run) == ("orders", "orders/manual__1/main")
    assert (failure.title, failure.detail) == ("The run stopped", "Kafka does not answer.")
    assert begun <= failure.at <= now()

    fail(known, ZeroDivisionError("x"))
    (last,) = failures(known)
    assert last.detail == "ZeroDivisionError: x.", "the newest error is kept"
    assert last.at == failure.at < last.seen_at, (
        "the pipeline has failed since its first attempt failed"
    )

    with note_failure(known, "orders"):
        pass
    assert len(failures(known)) == 1, "the brokers answer, but no run has succeeded"
    with Ledger.open(known.ledger) as ledger:
        ledger.failures.clear("words", "run")
        assert len(ledger.failures.all()) == 1, "another pipeline"
        ledger.failures.clear("orders", "run")
        assert ledger.failures.all() == []


def test_no_secret_is_recorded(known: Settings) -> None:
    fail(known, EngineError("SASL log-in as me with hunter22 refused \0"))
    assert failures(known)[0].detail == "SASL log-in as me with *** refused �."


URLS = ("SLUICE_LEDGER", "SLUICE_SHARDS", "SLUICE_CONNECTION_WAREHOUSE")


@pytest.mark.parametrize("variable", URLS)
def test_no_secret_of_the_settings_is_recorded(
    variable: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv(variable, "postgresql://ada@db/state?sslpassword=hunter%322")
    settings.cache_clear()
    failure = Failure.of(EngineError("no key for hunter22.", next_step="Use hunter%322."), "orders")
    settings.cache_clear()
    assert (failure.detail, failure.next_step) == ("no key for ***.", "Use ***.")


def test_a_killed_driver_is_recorded_by_its_parent(known: Settings) -> None:
    begun = now()
    note_killed(known, "orders", "r1", begun, EngineError("The driver ended with status 137."))
    assert [failure.detail for failure in failures(known)] == ["The driver ended with status 137."]
    begun = now()
    fail(known, EngineError("why"))
    # The failure began before this attempt, which has failed, too.
    note_killed(known, "orders", "r2", begun, EngineError("The driver ended with status 1."))
    assert [failure.detail for failure in failures(known)] == ["why."], (
        "the driver reported the error itself"
    )


def test_broken_files_are_recorded_until_fixed(known: Settings) -> None:
    fail(known, EngineError("why"))
    note_files(known, {"fraud": TopologyError("fraud.py:1"), "iot": TopologyError("iot.py:1")}, ())
    first = {one.pipeline: one for one in failures(known)}
    assert {name: one.kind for name, one in first.items()} == {
        "fraud": "file",
        "iot": "file",
        "orders": "run",
    }
    note_files(known, {"fraud": TopologyError("fraud.py:1"), "iot": TopologyError("iot.py:2")}, ())
    second = {one.pipeline: one for one in failures(known)}
    assert second["fraud"] == first["fraud"], "since when"
    assert (second["iot"].detail, second["iot"].at > first["iot"].at) == ("iot.py:2.", True)
    note_files(known, {}, ["fraud", "iot"])
    assert [one.pipeline for one in failures(known)] == ["orders"]


def test_an_unreachable_ledger_does_not_hide_the_error(tmp_path: Path) -> None:
    settings = Settings.read(
        {"SLUICE_HOME": str(tmp_path), "SLUICE_LEDGER": "postgresql://me@127.0.0.1:1/none"}
    )
    fail(settings, EngineError("why"))
    note_files(settings, {}, ())


def test_a_failure_with_surrogates_is_recorded(known: Settings) -> None:
    note_files(
        known,
        {"cafe": TopologyError("caf\udce9.py defines no pipeline"), "other": TopologyError("no")},
        (),
    )
    assert [failure.detail for failure in failures(known)] == [
        "caf?.py defines no pipeline.",
        "no.",
    ]


@pytest.fixture
def own_file(known: Settings) -> Path:
    """The file of the pipeline `orders`, which has run."""
    known.pipelines.mkdir()
    file = known.pipelines / "orders.py"
    file.touch()
    register(known, file)
    return file


def register(known: Settings, file: Path) -> None:
    """Register the pipeline `orders`, as a run of its file does."""
    with Ledger.open(known.ledger) as ledger:
        info = GenerationInfo(
            pipeline="orders",
            generation=1,
            workers=(),
            stores=(),
            topics=(),
            file=str(file),
        )
        ledger.generations.register(info)


def test_a_file_that_is_gone_is_recorded_until_it_is_back(known: Settings, own_file: Path) -> None:
    note_files(known, {}, ["orders"])
    assert failures(known) == []
    own_file.unlink()
    note_files(known, {}, ())
    (gone,) = failures(known)
    assert (gone.pipeline, gone.kind) == ("orders", "file")
    assert gone.detail.startswith(f"Its file is gone: {own_file}. Its state stays as it is")
    assert gone.next_step.endswith("sluice retire orders, or sluice remove orders.")
    note_files(known, {"orders": TopologyError("moved.py:1 is wrong")}, ())
    assert [failure.detail for failure in failures(known)] == ["moved.py:1 is wrong."]
    note_files(known, {}, ["orders"])
    assert failures(known) == []


def test_a_file_that_defines_another_pipeline_is_recorded(known: Settings, own_file: Path) -> None:
    note_files(known, {}, ["orders_v2"])
    (failure,) = failures(known)
    assert failure.detail.startswith(f"Its file no longer defines it: {own_file}.")


def test_a_file_of_another_folder_is_gone_only_if_the_folder_is_here(
    known: Settings,
    tmp_path: Path,
) -> None:
    register(known, tmp_path / "elsewhere" / "orders.py")
    note_files(known, {}, ())
    assert failures(known) == [], "the folder may be on another host"
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "elsewhere" / "orders.py").touch()
    note_files(known, {}, ())
    assert failures(known) == [], "the file is there"
    (tmp_path / "elsewhere" / "orders.py").unlink()
    note_files(known, {}, ())
    assert [failure.pipeline for failure in failures(known)] == ["orders"]


def test_the_file_of_a_retired_pipeline_may_be_gone_until_it_runs(
    known: Settings,
    own_file: Path,
) -> None:
    own_file.unlink()
    with Ledger.open(known.ledger) as ledger:
        ledger.generations.retire("orders")
        assert ledger.generations.retired() == {"orders"}
    note_files(known, {}, ())
    assert failures(known) == []
    register(known, own_file)
    note_files(known, {}, ())
    assert [failure.kind for failure in failures(known)] == ["file"]


def test_a_pipeline_that_never_ran_cannot_be_retired(known: Settings) -> None:
    unknown = pytest.raises(NotFound, match="has no pipeline 'orders'")
    with Ledger.open(known.ledger) as ledger, unknown:
        ledger.generations.retire("orders")


def notes(known: Settings) -> list[str]:
    with Ledger.open(known.ledger) as ledger:
        return [note.text for note in ledger.notes.all("orders")]


def test_a_failed_run_of_a_copy_is_no_failure_of_the_pipeline(
    known: Settings,
    own_file: Path,
    tmp_path: Path,
) -> None:
    copy = replace(known, pipelines=tmp_path / "home")
    begun = now()
    fail(copy, EngineError("orders has changed"))
    note_killed(copy, "orders", "", begun, EngineError("The driver ended with status 1."))
    assert failures(known) == []
    (note,) = notes(known)
    assert note.startswith(f"A run of a copy in {tmp_path}/home failed: orders has changed.")
    assert note.endswith(f"The pipeline's own file is {own_file}.")
    fail(known, EngineError("why"))
    fail(copy, EngineError("orders has changed"))
    assert [failure.detail for failure in failures(known)] == ["why."], "the pipeline's own"


def test_a_failed_run_in_another_folder_counts_if_it_is_the_pipelines_own(
    known: Settings, own_file: Path, tmp_path: Path
) -> None:
    elsewhere = replace(known, pipelines=tmp_path / "version-2")
    fail(elsewhere, EngineError("of Airflow"), run="orders/manual__1/main")
    details = [failure.detail for failure in failures(known)]
    assert details == ["of Airflow."], "Airflow has put the file there"
    own_file.unlink()
    fail(elsewhere, EngineError("moved"))
    assert [failure.detail for failure in failures(known)] == ["moved."], "the file has moved"
    assert notes(known) == []
