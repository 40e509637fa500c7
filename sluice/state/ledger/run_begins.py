"""Records in the ledger who begins a run, and refuses runs of paused pipelines."""

from __future__ import annotations

import getpass
from contextlib import suppress

from sluice.errors import StateError
from sluice.settings import Settings


def begin_run(
    settings: Settings, pipeline: str, action: str, detail: str = "", *, reads_records: bool
) -> None:
    """Record that this process's user runs a pipeline or performs another action.

    Raise PausedPipeline if the action reads records and somebody has paused the pipeline. This
    error does not count as a failure. If the ledger cannot be reached, do nothing: the run will
    report the error.
    """
    # SQLAlchemy's import takes 0.1 s.
    from sluice.state.ledger.ledger import Ledger

    with suppress(StateError, OSError), Ledger.open(settings.ledger) as ledger:
        if reads_records:
            ledger.pauses.require_running(pipeline)
        ledger.activities.add(pipeline, action, user_name(settings), detail)


def user_name(settings: Settings) -> str:
    """Return the user of this process, as Airflow or the operating system knows them."""
    if settings.user:
        return settings.user
    try:
        return getpass.getuser()
    except (KeyError, OSError):  # the user has no name, as in some containers
        return ""
