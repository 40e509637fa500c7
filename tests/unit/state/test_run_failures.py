"""Failures of runs and pipeline files are recorded until the next success."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from sluice.errors import EngineError, TopologyError
from sluice.settings import Settings, settings
from sluice.state.ledger.failures import Failure
from sluice.state.ledger.ledger import Ledger
from sluice.state.ledger.run_ends import note_failure, note_files, note_killed, now


@pytest.fixture
def known(tmp_path: Path) -> Settings:
    kafka = {"bootstrap.servers": "kafka:9092", "sasl.password": "hunter22"}
    return Settings.read({"SLUICE_HOME": str(tmp_path), "SLUICE_KAFKA": json.dumps(kafka)})


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
    assert last.at == failure.at < last.seen_at, "the pipeline has failed since its first attempt failed"

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


@pytest.mark.parametrize("variable", ["SLUICE_LEDGER", "SLUICE_SHARDS", "SLUICE_CONNECTION_WAREHOUSE"])
def test_no_secret_of_this_process_is_recorded(variable: str, monkeypatch: pytest.MonkeyPatch) -> None:
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
    assert [failure.detail for failure in failures(known)] == ["why."], "the driver reported the error itself"


def test_broken_files_are_recorded_until_fixed(known: Settings) -> None:
    fail(known, EngineError("why"))
    note_files(known, {"fraud": TopologyError("fraud.py:1"), "iot": TopologyError("iot.py:1")})
    first = {one.pipeline: one for one in failures(known)}
    assert {name: one.kind for name, one in first.items()} == {"fraud": "file", "iot": "file", "orders": "run"}
    note_files(known, {"fraud": TopologyError("fraud.py:1"), "iot": TopologyError("iot.py:2")})
    second = {one.pipeline: one for one in failures(known)}
    assert second["fraud"] == first["fraud"], "since when"
    assert (second["iot"].detail, second["iot"].at > first["iot"].at) == ("iot.py:2.", True)
    note_files(known, {})
    assert [one.pipeline for one in failures(known)] == ["orders"]


def test_an_unreachable_ledger_does_not_hide_the_error(tmp_path: Path) -> None:
    settings = Settings.read({"SLUICE_HOME": str(tmp_path), "SLUICE_LEDGER": "postgresql://me@127.0.0.1:1/none"})
    fail(settings, EngineError("why"))
    note_files(settings, {})


def test_a_failure_with_surrogates_is_recorded(known: Settings) -> None:
    note_files(known, {"cafe": TopologyError("caf\udce9.py defines no pipeline"), "other": TopologyError("no")})
    assert [failure.detail for failure in failures(known)] == ["caf?.py defines no pipeline.", "no."]
