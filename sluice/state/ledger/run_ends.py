"""Writes to the ledger how runs have ended.

The process that waits for a driver records that the driver was killed. Modules that need SQLAlchemy
are imported only when a run fails, because importing them takes 0.2 seconds.
"""

from __future__ import annotations

import socket
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from pathlib import Path

from sluice.answers import FailureKind
from sluice.errors import RegistryAway, SluiceError, TopologyError
from sluice.settings import Settings
from sluice.version import __version__


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


@contextmanager
def note_failed_action(configuration: Settings, pipeline: str, run: str) -> Iterator[None]:
    """Like `note_failure`, for a run of Airflow with an action, such as a replay.

    If the block succeeds, the failure of an earlier action no longer matters, and is cleared. The
    failure of a run that reads records stays until such a run succeeds.
    """
    with note_failure(configuration, pipeline, run):
        yield
    _clear_failed_action(configuration, pipeline)


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
    from sluice.state.ledger.failures import RUN_KINDS
    from sluice.state.ledger.finished_runs import FinishedRun
    from sluice.state.ledger.ledger import Ledger
    from sluice.state.ledger.measurements import Measurement

    with suppress(SluiceError, OSError), Ledger.open(configuration.ledger) as ledger:
        for failure in ledger.failures.of(pipeline):
            is_of_run = failure.kind in RUN_KINDS
            if is_of_run and (since is None or failure.seen_at >= since):
                return
        info = ledger.generations.current(pipeline)
        if not run and info is not None and is_copy(info.file, configuration.pipelines):
            # Somebody has run a copy of the pipeline's file by hand. This user sees the failure,
            # and the driver has noted the cause.
            return
        # A driver adds its own run to the ledger when the run ends. A killed driver could not, so
        # add its run here.
        ended_at = now()
        killed = FinishedRun(
            pipeline=pipeline,
            began_at=since or ended_at,
            ended_at=ended_at,
            run=run,
            outcome="failed",
            host=socket.gethostname(),
            version=__version__,
        )
        totals = [Measurement("runs_total", 1, (("outcome", "failed"),))]
        ledger.finished_runs.add(killed, totals)
    _add(configuration, error, pipeline, run)


def note_files(
    configuration: Settings,
    broken: Mapping[str, SluiceError],
    loaded: Collection[str],
) -> None:
    """Record which pipelines' files cannot be loaded, or are gone.

    `broken` and `loaded` are the pipelines of all files in the folder of pipelines. The record
    replaces the earlier record of all files.
    """
    from sluice.state.ledger.failures import Failure
    from sluice.state.ledger.ledger import Ledger

    with suppress(SluiceError, OSError), Ledger.open(configuration.ledger) as ledger:
        gone = gone_files(ledger.generations.files(), configuration.pipelines, {*broken, *loaded})
        failures: list[Failure] = []
        for name, error in {**gone, **broken}.items():
            failures.append(Failure.of(error, name, kind="file", secrets=configuration.secrets))
        ledger.failures.set_files(failures)


def gone_files(
    files: Mapping[str, str],
    folder: Path,
    found: Collection[str],
) -> dict[str, SluiceError]:
    """Return the errors for pipelines that have run, but that no file defines any more.

    `files` maps each pipeline that has run to the path of its file in its newest run. `found` are
    the pipelines that the files in `folder` define. A pipeline of another folder counts only if
    this process sees the folder, and its file is gone.
    """
    gone: dict[str, SluiceError] = {}
    for name, path in files.items():
        file = Path(path)
        if name in found or not file.parent.is_dir():
            continue
        if not file.exists():
            gone[name] = _gone(name, f"Its file is gone: {file}.")
        elif file.is_relative_to(folder):
            gone[name] = _gone(name, f"Its file no longer defines it: {file}.")
    return gone


def _gone(name: str, detail: str) -> SluiceError:
    return TopologyError(
        f"{detail} Its state stays as it is, and can be queried.",
        next_step="Restore the file. If the pipeline should not run again: sluice retire "
        f"{name}, or sluice remove {name}.",
    )


def now() -> datetime:
    """Return the current time in UTC."""
    return datetime.now(UTC)


def _clear_failed_action(configuration: Settings, pipeline: str) -> None:
    from sluice.state.ledger.activities import MOST
    from sluice.state.ledger.failures import RUN_KINDS
    from sluice.state.ledger.ledger import Ledger

    with suppress(SluiceError, OSError), Ledger.open(configuration.ledger) as ledger:
        failed = [each for each in ledger.failures.of(pipeline) if each.kind in RUN_KINDS]
        if not failed:
            return
        actions: set[str] = set()
        for activity in ledger.activities.of(pipeline, MOST):
            if activity.run and activity.action != "run":
                actions.add(activity.run)
        for failure in failed:
            # The run of a failure is DAG/RUN/TASK. The id of a run may contain slashes.
            if "/".join(failure.run.split("/")[1:-1]) in actions:
                ledger.failures.clear(pipeline, failure.kind)


def _add(configuration: Settings, error: Exception, pipeline: str, run: str) -> None:
    from sluice.state.ledger.failures import RUN_KINDS, Failure
    from sluice.state.ledger.ledger import Ledger

    # The caller raises the error of the run, which must not be hidden by an error of the ledger.
    with suppress(SluiceError, OSError), Ledger.open(configuration.ledger) as ledger:
        kind: FailureKind = "registry" if isinstance(error, RegistryAway) else "run"
        failure = Failure.of(error, pipeline, run=run, kind=kind, secrets=configuration.secrets)
        info = ledger.generations.current(pipeline)
        # Airflow may put the pipeline's own file elsewhere for each run, so its runs never count as
        # runs of a copy.
        if run or info is None or not is_copy(info.file, configuration.pipelines):
            ledger.failures.keep(failure)
            # Only the newest run counts, so clear the failures of earlier runs.
            ledger.failures.clear(pipeline, *(RUN_KINDS - {kind}))
        else:
            failed = f"A run of a copy in {configuration.pipelines} failed: {failure.detail}"
            ledger.notes.add(info.ref, run, f"{failed} The pipeline's own file is {info.file}.")


def is_copy(own: str, folder: Path) -> bool:
    """Return whether the pipeline's file in `folder` is a copy of its own file `own`.

    `own` is the file of the newest run that wrote the pipeline's state; empty if it is unknown.
    """
    file = Path(own)
    if not own or file.is_relative_to(folder):
        return False
    # The file may have moved to this folder. If the file's folder is not on this host, the file may
    # be on another host.
    return file.exists() or not file.parent.is_dir()
