"""Records in the ledger how runs end.

The process that waits for a driver records that the driver was killed. Modules that need SQLAlchemy
are imported only when a run fails, because importing them takes 0.2 seconds.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from datetime import UTC, datetime

from sluice.errors import SluiceError
from sluice.settings import Settings


@contextmanager
def note_failure(configuration: Settings, pipeline: str, run: str = "") -> Iterator[None]:
    """If an error ends the block, record it as the pipeline's failure, and raise it again.

    A run that reads all records clears the failure. If the ledger cannot be reached, nothing is
    recorded, and the same error is raised.
    """
    try:
        yield
    except Exception as error:
        _add(configuration, error, pipeline, run)
        raise


def note_killed(
    configuration: Settings,
    pipeline: str,
    run: str,
    since: datetime | None,
    error: SluiceError,
) -> None:
    """Record that a run failed with `error`, unless its driver has recorded why.

    The driver has recorded it if the pipeline has a failure of kind `run` that was seen at `since`
    or later. If `since` is None, any failure of this kind counts.
    """
    from sluice.state.ledger.ledger import Ledger
    from sluice.state.ledger.measurements import Measurement

    with suppress(SluiceError, OSError), Ledger.open(configuration.ledger) as ledger:
        failures = [failure for failure in ledger.failures.of(pipeline) if failure.kind == "run"]
        if any(since is None or failure.seen_at >= since for failure in failures):
            return
        # A driver counts its own run when the run ends. A killed driver could not.
        ledger.measurements.add(pipeline, [Measurement("runs_total", 1, (("outcome", "failed"),))])
    _add(configuration, error, pipeline, run)


def note_files(configuration: Settings, broken: Mapping[str, SluiceError]) -> None:
    """Record which pipelines' files cannot be loaded.

    `broken` replaces the earlier record of all files.
    """
    from sluice.state.ledger.failures import Failure
    from sluice.state.ledger.ledger import Ledger

    failures = [Failure.of(error, name, kind="file", secrets=configuration.secrets) for name, error in broken.items()]
    with suppress(SluiceError, OSError), Ledger.open(configuration.ledger) as ledger:
        ledger.failures.set_files(failures)


def now() -> datetime:
    """The current time in UTC."""
    return datetime.now(UTC)


def _add(configuration: Settings, error: Exception, pipeline: str, run: str) -> None:
    from sluice.state.ledger.failures import Failure
    from sluice.state.ledger.ledger import Ledger

    # The caller raises the error of the run, which must not be hidden by an error of the ledger.
    with suppress(SluiceError, OSError), Ledger.open(configuration.ledger) as ledger:
        ledger.failures.keep(Failure.of(error, pipeline, run=run, secrets=configuration.secrets))
