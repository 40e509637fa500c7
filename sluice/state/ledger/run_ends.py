"""How runs end, noted in the ledger: by the driver, and by whoever waits for a driver that may be killed."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from datetime import UTC, datetime

from sluice.errors import EngineError, SluiceError
from sluice.settings import Settings
from sluice.state.ledger.failures import Failure
from sluice.state.ledger.ledger import Ledger


@contextmanager
def noted(known: Settings, pipeline: str, job: str = "", run: str = "") -> Iterator[None]:
    """Note the error that ends the block as the failure of a job, or that it did not fail.

    A ledger that cannot be reached changes nothing about how the block ends.
    """
    try:
        yield
    except Exception as error:
        _add(known, Failure.of(error, pipeline, job, run=run, secrets=known.secrets))
        raise
    with suppress(SluiceError, OSError), Ledger.open(known.ledger) as ledger:
        ledger.failures.clear(pipeline, job)


def note_killed(known: Settings, pipeline: str, job: str, run: str, since: datetime, what: str) -> None:
    """Note that a driver failed, unless it has noted why itself since its start."""
    with suppress(SluiceError, OSError), Ledger.open(known.ledger) as ledger:
        if any(one.pipeline == pipeline and one.kind == "run" and one.at >= since for one in ledger.failures.all()):
            return
    _add(known, Failure.of(EngineError(what), pipeline, job, run=run, secrets=known.secrets))


def note_files(known: Settings, broken: Mapping[str, SluiceError]) -> None:
    """Note the pipelines, by name, whose files cannot be loaded: these, and no others."""
    found = [Failure.of(error, name, kind="file", secrets=known.secrets) for name, error in broken.items()]
    with suppress(SluiceError, OSError), Ledger.open(known.ledger) as ledger:
        ledger.failures.set_files(found)


def now() -> datetime:
    """The time, as failures have it."""
    return datetime.now(UTC)


def _add(known: Settings, failure: Failure) -> None:
    with suppress(SluiceError, OSError), Ledger.open(known.ledger) as ledger:
        ledger.failures.add(failure)
