"""Records in the ledger who did what to a pipeline from the command line."""

from __future__ import annotations

from sluice.settings import settings


def note_activity(pipeline: str, action: str, detail: str = "") -> None:
    """Record in the ledger an action of the command's user on a pipeline.

    The action has already been done, so this raises no error if the ledger does not answer.
    """
    from sluice.state.ledger.run_begins import begin_run

    begin_run(settings(), pipeline, action, detail, reads_records=False)


def user_name() -> str:
    """Return the user who runs the command, as Airflow or the operating system knows them."""
    from sluice.state.ledger import run_begins

    return run_begins.user_name(settings())
